"""A look into a RabbitMQ queue: takes messages without acknowledging them, reads them, and gives them back in their order.

During a look no consumer gets the messages. If the looking process dies, the broker puts them back. A returned message is marked:

- A classic queue puts it into its old place, and marks it `redelivered`.
- A quorum queue counts the return in `x-delivery-count`. It puts the message behind messages that were returned earlier, and before
  all that were never taken. It mixes up the order of many messages that are returned together. So a look goes on until it meets a
  message that was never taken, or the end of the queue. It returns the messages in small lots, each when the last lot has arrived.
- A quorum queue forgets acknowledgements beyond 32 if the channel is closed before they have arrived. So after every few
  acknowledgements the look asks the queue something.

The marks are gone when the message is published again. A missing queue counts as empty. Limits: a quorum queue with a
`delivery-limit` (20 by default from RabbitMQ 4.0 on) drops a message that was taken more often. Only dead letters and delayed
messages are looked at: elsewhere the mark would count as a delivery.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from amqp.exceptions import AMQPError, NotFound
from kombu.exceptions import OperationalError

from .messages import delivery_count, envelope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kombu import Connection

#: Messages that are given back together: a quorum queue keeps the order of this many (RabbitMQ 3.10, of twice as many).
LOT = 16
#: Seconds to wait for a lot to arrive. The queue's depth may never show it, because consumers may take messages meanwhile.
ARRIVAL = 1.0
#: The most messages that one look holds; the broker keeps 150 bytes for each.
MAX_HELD = 200_000


@dataclass(frozen=True, slots=True)
class Found:
    """A message: its envelope, its tag, how often it was taken before (a classic queue says 1 at most), and its routing key."""

    raw: bytes
    tag: int
    taken: int
    routing_key: str


class Look:
    """One pass through a queue, from the oldest message on; for one thread.

    When the look ends, all messages go back, except those passed to `take`. `held` is how many messages it has met. `read` makes
    bytes of a py-amqp message; by default, its envelope.
    """

    def __init__(
        self, connection: Connection, queue: str, *, most: int = MAX_HELD, read: Callable[[Any], bytes] | None = None
    ) -> None:
        self.queue = queue
        self._read = functools.partial(envelope_of, queue=queue) if read is None else read
        self.held = 0
        self._connection = connection
        self._most = most
        self._channel: Any = None
        self._tags: dict[int, None] = {}
        self._may_be_turned = False
        self._ahead: deque[Found] = deque()
        self._acknowledged = 0

    def __enter__(self) -> Self:
        self._channel = self._connection.channel()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, AMQPError, OperationalError):  # then the broker puts back what was held
            if self._tags:
                self._meet_the_rest()
                self._give_back()
            self._channel.close()

    def __iter__(self) -> Iterator[Found]:
        while self._ahead or self.held < self._most:
            found = self._ahead.popleft() if self._ahead else self._next()
            if found is None:
                return
            yield found

    def take(self, found: Found) -> None:
        """Remove this message from the queue."""
        self._tags.pop(found.tag, None)
        self._channel.basic_ack(found.tag)
        self._acknowledged += 1
        if self._acknowledged % LOT == 0:
            # The answer comes when the earlier acknowledgements are in the queue's log.
            following = self._next()
            if following is not None:
                self._ahead.append(following)

    def settle(self) -> None:
        """Wait until the broker has all acknowledgements. Raises what the connection raises."""
        self._channel.queue_declare(self.queue, passive=True)

    def _next(self) -> Found | None:
        try:
            message = self._channel.basic_get(self.queue)
        except NotFound:
            self._channel = self._connection.channel()
            return None
        if message is None:
            return None
        tag = int(message.delivery_tag)
        message.delivery_info["delivery_tag"] = ""  # a dead letter must have the same bytes in each look
        routing_key = str(message.delivery_info.get("routing_key") or "")
        found = Found(self._read(message), tag, delivery_count(message), routing_key)
        self._tags[found.tag] = None
        self._may_be_turned = "x-delivery-count" in (message.headers or {}) and found.taken > 0
        self.held += 1
        return found

    def _meet_the_rest(self) -> None:
        """Take all messages that a quorum queue got back earlier: messages that are returned now would go behind them."""
        while self._may_be_turned and self._next() is not None:
            pass

    def _give_back(self) -> None:
        tags, before = list(self._tags), depth_of(self._connection, self.queue) or 0
        for start in range(0, len(tags), LOT):
            lot = tags[start : start + LOT]
            for tag in lot:
                self._channel.basic_reject(tag, requeue=True)
            self._await(before + start + len(lot))
        self._tags.clear()

    def _await(self, depth: int) -> None:
        deadline = time.monotonic() + ARRIVAL
        while (depth_of(self._connection, self.queue) or 0) < depth and time.monotonic() < deadline:
            time.sleep(0.001)  # the broker does not report that a message is back


def counts_of(connection: Connection, queue: str) -> tuple[int, int] | None:
    """How many messages are ready in a queue, and how many consumers it has; None if there is no queue of this name."""
    try:
        answer: Any = connection.default_channel.queue_declare(queue, passive=True)
    except NotFound:
        return None
    return int(answer.message_count), int(answer.consumer_count)


def depth_of(connection: Connection, queue: str) -> int | None:
    """How many messages are ready in a queue; None if there is no queue of this name."""
    counts = counts_of(connection, queue)
    return None if counts is None else counts[0]
