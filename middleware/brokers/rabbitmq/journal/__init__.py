"""The journal of moves on RabbitMQ: it shows whether a message was moved, if the worker died before it acknowledged the message.

A worker that moves a message writes entries into a stream, and so does a command that moves a dead letter. A worker that receives a
message again waits for a moment and then reads them; a command reads them if it finds a dead letter that was taken before:

- `moved`: written when the successor is confirmed, directly after the event. The message is only acknowledged.
- `unrecorded`: takes `moved` back if the log has refused the event. The message is delivered again.
- `moving`: written before the successor is published; it names the successor, too. The reader waits for the successor's delay, and
  half a minute more. If the successor has `moved` or `ended` meanwhile, the message is only acknowledged, else delivered again.
- `turning`: written instead of `moving` if the move ends or begins a life (a death, a redrive), with the event. For a dead letter,
  the reader looks in its queue (`letter_look`). If the successor is there, or has `moved` or `ended`, the message is acknowledged
  with that event, else delivered again.
- `ended`: written when the end of a message that was moved before is recorded. The message is only acknowledged.
- `stayed`: takes `moving` and `turning` back if the successor did not get into a queue.

A message with `moved` has its event in the log. If only its successor is known, the event may be missing: the reader records one.

An entry names messages by digests (`entries`). A reader writes a marker of its own and reads until the marker comes back: then it
has read all that was written before. The journal only avoids copies: without it, nothing is lost. `docs/rabbitmq.md` gives its
limits.
"""
