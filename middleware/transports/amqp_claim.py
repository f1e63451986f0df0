"""What one worker holds on RabbitMQ: its deliveries, under the channel that brought them.

There is no lease: what a worker held, the broker delivers again by itself as soon as its connection is gone. A tag is
`<channel>.<delivery tag>`; once the consumer has connected anew, the tags of the channel before are no longer ours to end.
Acknowledging is done on the consumer's channel, in the consumer's own thread.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

from redelivery.middleware.logs import log
from redelivery.middleware.transports.amqp_messages import delivery_count, envelope_of, published_to
from redelivery.middleware.transports.base import Held

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from redelivery.middleware.transports.amqp import AmqpTransport

__all__ = ["ChannelClaim"]


class ChannelClaim:
    """Who holds what; offers what `middleware.owner.Owner` does. Its clock is this machine's: RabbitMQ tells nobody its own."""

    def __init__(self, transport: AmqpTransport, worker: str) -> None:
        self.transport = transport
        self.worker = worker
        self.held: dict[str, Held] = {}
        self.token = ""
        self._consumer: Any = None
        self._channel: Any = None
        self._ended: deque[str] = deque()
        self._origins: dict[str, tuple[str, str]] = {}

    def attach(self, consumer: Consumer) -> None:
        """The consumer has connected, for the first time or again."""
        lost = len(self.held)
        self._consumer, self._channel = consumer, consumer.task_consumer.channel
        self.token = uuid.uuid4().hex[:12]
        self.held.clear()
        self._ended.clear()
        self._origins = {
            queue.name: (queue.exchange.name, queue.routing_key or queue.name)
            for queue in consumer.task_consumer.queues
            if queue.exchange is not None
        }
        if lost:
            log.info("owner.reconnected", worker=self.worker, holds=0, suspects=lost, given_back=lost)

    def take(self, message: Any) -> Held | None:
        """The message as this worker holds it, from now on; None where it is none of the task consumer's."""
        raw, queue = getattr(message, "received", None), getattr(message, "queue", None)
        if raw is None or queue is None:
            return None
        tag = f"{self.token}.{message.delivery_tag}"
        origin, info = self._origins.get(queue), message.delivery_info
        held = Held(tag, queue, queue, envelope_of(raw, queue=queue, origin=origin), self.now_ms())
        held.handed_over_before = delivery_count(raw)
        was_moved = info.get("redelivered") or bool((message.headers or {}).get("redelivered"))
        message.delivery_info = {**info, **published_to(raw, queue=queue, origin=origin), "redelivered": was_moved}
        self.held[tag] = held
        message.held = held
        return held

    def is_current(self, tag: str) -> bool:
        """Whether the delivery is still ours to end: its channel is there. A move without a tag is nobody's delivery."""
        if not tag:
            return True
        if not self.holds(tag):
            return False
        connection = getattr(self._channel, "connection", None)
        return connection is not None and bool(connection.connected)

    def settle(self, tag: str) -> None:
        """Acknowledge the delivery, soon, in the consumer's thread. Called from any thread."""
        if tag:
            self._ended.append(tag)
            if len(self._ended) == 1:
                self._consumer.call_soon(self.flush)

    def flush(self) -> None:
        """Acknowledge what has ended."""
        while self._ended:
            tag = self._ended.popleft()
            if not self.holds(tag):
                continue
            try:
                self._channel.basic_ack(int(tag.rpartition(".")[2]))
            except Exception as exc:  # noqa: BLE001 - the channel is gone: the broker delivers it again
                log.warning("acknowledge.failed", tag=tag, error=str(exc), why="the message is delivered again")

    # what `Owner` offers

    def holds(self, tag: str) -> bool:
        """Whether this tag was given under the channel that the consumer has now."""
        return not tag or tag.startswith(self.token)

    @staticmethod
    def has_minted(_: str) -> bool:
        """Never: there are no leases here."""
        return False

    @staticmethod
    def now_ms() -> int:
        """This machine's time."""
        return time.time_ns() // 1_000_000

    def drop(self, tag: str) -> None:
        """Its move is under way, or answered: the message is no longer looked after here."""
        self.held.pop(tag, None)

    def make_room(self, tag: str) -> None:
        """The broker keeps the prefetch window, by what is acknowledged."""

    def release(self, keep: set[str]) -> int:
        """Give back what has not run, but for the tags to `keep`; how many went back."""
        given = [held for tag, held in list(self.held.items()) if tag not in keep]
        count = self.transport.release(given)
        for held in given:
            self.held.pop(held.tag, None)
        return count
