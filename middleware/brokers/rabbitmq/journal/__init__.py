"""The journal of moves on RabbitMQ. It shows whether a message was moved by a worker that died before it acknowledged the message.

A worker that moves a message, or a command that moves a dead letter, writes entries into a stream. The successor is the message
that the move publishes. A worker that receives a message again waits for a moment, and then reads the entries; a command reads them
if it finds a dead letter that was taken before. The message is acknowledged if it was moved, and otherwise delivered again:

- `moved`: the successor is confirmed; written directly after the event.
- `unrecorded`: takes `moved` back, because the log has refused the event.
- `moving`: written before the successor is published; it names the successor. The reader waits for the successor's delay, and half
  a minute more. The message was moved if its successor has `moved` or `ended` meanwhile.
- `turning`: written instead of `moving` if the move ends or begins a life (a death, a redrive), with the event. For a dead letter,
  the reader looks in its queue (`letter_look`). The message was moved if the successor is there, or has `moved` or `ended`; then
  the reader also records the event.
- `ended`: the end of a message that was moved before is recorded.
- `stayed`: takes `moving` and `turning` back, because the successor did not get into a queue.

A message with `moved` has its event in the log. If only its successor is known, the event may be missing: the reader records one.

An entry names messages by digests (`entries`). A reader writes a marker, and reads until the marker comes back: then it has read
all earlier entries. The journal only avoids copies: without it, nothing is lost. `docs/rabbitmq.md` gives its limits.
"""
