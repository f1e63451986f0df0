"""A look into a queue of RabbitMQ: its messages are taken without being acknowledged, read, and given back in their order.

RabbitMQ has no way to read a queue and leave it alone. What was measured on 3.10 of what looking costs:

- While it is looked at, a message is held: nobody else is given it. Where the looker dies, the broker gives everything back.
- A classic queue puts what comes back into its old place, and marks it `redelivered`.
- A broker holds acknowledgements of a quorum queue back where more than 32 are under way, and forgets them where the channel is
  closed then. So every few of them something is asked of the queue.
- A quorum queue counts every return in `x-delivery-count`, puts what comes back behind whatever came back before, and all of that
  before what was never taken; many at once come back in any order. So a look goes on until it meets a message that was never taken,
  or the end, and gives back few at a time, in their order, each lot when the last has arrived: then the order stays.

Nothing but the marks is changed, and they go when the message is published again. Refused: nothing; a queue that is not there is
empty. Limits: a quorum queue with a `delivery-limit` (20 by default from RabbitMQ 4.0 on) lets go what was taken more often than
that, so `Look.most_taken` says how often that was. Only dead letters and delayed messages are looked at so: for what waits to be
run, the mark would count as a delivery.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from amqp.exceptions import AMQPError, NotFound

from .messages import delivery_count, envelope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kombu import Connection

#: Messages that are given back at once: a quorum queue keeps the order of so many, and a client of 3.10 of twice as many.
LOT = 16
#: Seconds to wait for a lot to arrive: others may take from the queue meanwhile, so that its depth never says so.
ARRIVAL = 1.0
#: Messages that one look holds at the most; the broker keeps 150 bytes for each.
MAX_HELD = 200_000


@dataclass(frozen=True, slots=True)
class Found:
    """One message: its envelope, the tag it is held under, how often it was taken before, and the routing key that it came by.

    A classic queue says of a message that was taken before that it was taken once.
    """

    raw: bytes
    tag: int
    taken: int
    routing_key: str


class Look:
    """One way through a queue, from its head (the oldest message) on; for one thread.

    What `take` was not told of goes back when the look ends. `held` is how many messages it has met. `read` makes bytes of a
    message of py-amqp; its envelope, where it is not given.
    """

    def __init__(
        self, connection: Connection, queue: str, *, most: int = MAX_HELD, read: Callable[[Any], bytes] | None = None
    ) -> None:
        self.queue = queue
        self._read = functools.partial(envelope_of, queue=queue) if read is None else read
        self.most_taken = 0
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
        with contextlib.suppress(OSError, AMQPError):  # then the broker gives back what was held
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
        """This message goes: it has arrived elsewhere, or is to be no more."""
        self._tags.pop(found.tag, None)
        self._channel.basic_ack(found.tag)
        self._acknowledged += 1
        if self._acknowledged % LOT == 0:
            # Its answer comes when the acknowledgements before it are in the queue's own log.
            following = self._next()
            if following is not None:
                self._ahead.append(following)

    def _next(self) -> Found | None:
        try:
            message = self._channel.basic_get(self.queue)
        except NotFound:
            self._channel = self._connection.channel()
            return None
        if message is None:
            return None
        tag = int(message.delivery_tag)
        message.delivery_info["delivery_tag"] = ""  # of this look alone: the same letter is to have the same bytes in the next one
        routing_key = str(message.delivery_info.get("routing_key") or "")
        found = Found(self._read(message), tag, delivery_count(message), routing_key)
        self._tags[found.tag] = None
        self._may_be_turned = "x-delivery-count" in (message.headers or {}) and found.taken > 0
        self.most_taken = max(self.most_taken, found.taken)
        self.held += 1
        return found

    def _meet_the_rest(self) -> None:
        """Of what a quorum queue was given back once, everything: what is given back now would go behind the rest."""
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
            time.sleep(0.001)  # the broker says nothing when a message is back


def counts_of(connection: Connection, queue: str) -> tuple[int, int] | None:
    """How many messages are ready in a queue, and how many consumers it has; None where there is none of this name."""
    try:
        answer: Any = connection.default_channel.queue_declare(queue, passive=True)
    except NotFound:
        return None
    return int(answer.message_count), int(answer.consumer_count)


def depth_of(connection: Connection, queue: str) -> int | None:
    """How many messages are ready in a queue; None where there is none of this name."""
    counts = counts_of(connection, queue)
    return None if counts is None else counts[0]
