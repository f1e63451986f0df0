"""The journal of moves on RabbitMQ: what has been moved on is known, though the worker died before it could acknowledge it.

A worker that moves a message writes entries into a stream, and so does a command that moves a dead letter. A worker that is handed
a message again waits for a moment and reads them; a command that meets a dead letter which was taken before reads them, too:

- `moved`, written when the successor is confirmed, right behind the event: the message is only acknowledged;
- `unrecorded` takes `moved` back, where the log has refused the event: the message is delivered again;
- `moving`, written before the successor is published, names the successor, too. The reader waits for as long as the successor is
  delayed, and half a minute: where it has `moved` or `ended` meanwhile, the message is only acknowledged, else delivered again;
- `turning`, written in place of `moving` where a life ends or begins by the move (a death, a redrive), has its event as well. For a
  dead letter the reader looks in its queue (`letter_look`). If the successor is there, or has `moved` or `ended`, the message is
  acknowledged with that event; else it is delivered again;
- `ended`, written when the end of a message that has been moved before is recorded: the message is only acknowledged;
- `stayed` takes `moving` and `turning` back, where nothing takes the successor.

A message with `moved` has its event in the log. If only its successor is known, it may have none: its reader records one.

An entry names messages by digests (`entries`). A reader writes a marker of its own and reads until it comes back:
then it has read all that was written before. Nothing is lost without the journal: it only ever saves a copy. `docs/rabbitmq.md`
says what it cannot tell.
"""
