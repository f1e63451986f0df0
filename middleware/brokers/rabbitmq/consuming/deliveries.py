"""The messages that one worker holds on RabbitMQ: its deliveries.

There is no lease: when a worker's connection is gone, the broker delivers its messages again, and tags of that connection
(`<connection token>.<delivery tag>`) are refused. There is one exception: if a queue was deleted under its consumer, the broker
does not deliver again, and the worker ends the messages that it has. The consumer's thread acknowledges all ended messages in one
write.

A message is leaving if it has ended, and its event is not confirmed yet. It still takes a place in the prefetch window, so the
worker widens the window for leaving messages, by 128 and the window's own size at most (`window`). Leaving messages may run twice
if the worker dies. If windows are fixed, a queue gets a second consumer (`second_consumer`). With a pool of greenlets the window is
not widened: Celery's loop for greenlets loses 0.1 s for each answer of the broker.
"""

from __future__ import annotations

import uuid
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from ....logs import log
from ....messages.envelope import HEADER, RELEASED
from ...deliveries import Claim, Delivered
from ..messages import delivery_count, envelope_of, published_to, shown
from ..publisher import ENOUGH
from .second_consumer import SecondConsumers

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from ....ports import Held, Transport
    from ..publisher import Publisher

#: The most leaving messages that the window is widened for.
MAX_LEAVING = 128


class ChannelClaim(Claim):
    """The messages that this worker holds (`Deliveries`)."""

    def __init__(self, transport: Transport, publisher: Publisher, worker: str) -> None:
        super().__init__(transport, worker)
        self._publisher = publisher
        self._consumer: Any = None
        self._channel: Any = None
        self._ended: deque[str] = deque()
        self._leaving: set[str] = set()
        self._is_widening = False
        self._is_green, self._most = False, MAX_LEAVING
        self._second_consumers: Any = None
        self._origins: dict[str, tuple[str, str]] = {}
        self._deleted: dict[str, set[str]] = {}
        #: Queues that have delivered nothing new yet since the worker has connected again.
        self._coming_back: set[str] = set()

    def attach(self, consumer: Consumer) -> None:
        self._deleted = {token: queues for token, queues in self._deleted.items() if queues}
        lost = [tag for tag, held in list(self.held.items()) if not self._is_last(tag, held.queue)]
        is_again = self._consumer is not None
        for tag in lost:
            self.held.pop(tag, None)
        self._consumer, self._channel = consumer, consumer.task_consumer.channel
        self.token = uuid.uuid4().hex[:12]
        self._deleted[self.token] = self._channel.deleted
        self._ended.clear()
        self._leaving.clear()
        self._is_widening = False
        self._is_green = getattr(consumer.pool, "is_green", False)
        self._most = 0 if self._is_green else MAX_LEAVING
        self._second_consumers = SecondConsumers(consumer, self._most, self._set_enough)
        self._origins = {
            queue.name: (queue.exchange.name, queue.routing_key or queue.name)
            for queue in consumer.task_consumer.queues
            if queue.exchange is not None
        }
        self._coming_back = {queue.name for queue in consumer.task_consumer.queues} if is_again else set()
        self._set_enough()
        if lost or self.held:
            log.info("owner.reconnected", worker=self.worker, holds=len(self.held), suspects=len(lost), given_back=len(lost))

    def take(self, message: Any) -> Held | None:
        raw, queue = getattr(message, "received", None), getattr(message, "queue", None)
        if raw is None or queue is None:
            return None
        tag = f"{self.token}.{message.delivery_tag}"
        origin, info = self._origins.get(queue), message.delivery_info
        read: Any = partial(envelope_of, raw, queue=queue, origin=origin)
        held = Delivered(tag, queue, queue, read, self.now_ms())
        held.handed_over_before = delivery_count(raw)
        held.was_moved = not {HEADER, RELEASED}.isdisjoint(message.headers or {})
        if not held.handed_over_before:
            self._coming_back.discard(queue)
        held.was_cut = queue in self._coming_back
        was_moved = info.get("redelivered") or bool((message.headers or {}).get("redelivered"))
        message.delivery_info = {**info, **published_to(raw, queue=queue, origin=origin), "redelivered": was_moved}
        message.headers = shown(message.headers or {})
        self.held[tag] = held
        message.held = held
        return held

    def is_current(self, tag: str, queue: str) -> bool:
        """Whether this worker may still end the delivery: its channel is open, or its queue was deleted, or there is no tag."""
        if not tag:
            return True
        connection = getattr(self._channel, "connection", None) if self.holds(tag) else None
        return (connection is not None and bool(connection.connected)) or self._is_last(tag, queue)

    def _is_last(self, tag: str, queue: str) -> bool:
        """Whether the message will not be delivered again, because its queue was deleted."""
        return queue in self._deleted.get(tag.partition(".")[0], ())

    def _set_enough(self) -> None:
        """Tell the publisher how many moves do not wait for more: half of a fixed window, at most `ENOUGH`."""
        window = 0 if self._channel.window else self._channel.for_each + self._second_consumers.more
        self._publisher.enough = max(min(window // 2, ENOUGH), 1) if window else ENOUGH

    def leave(self, tag: str) -> None:
        """Note that the message has ended, and is leaving until its event is confirmed. Called from any thread."""
        if not tag or not self.holds(tag):
            return
        self._leaving.add(tag)
        if not self._channel.window:
            self._second_consumers.note(self.held.get(tag), len(self._leaving))
        elif self._channel.wider < min(len(self._leaving), self._most) and not self._is_widening:
            self._is_widening = True
            self._consumer.call_soon(self._widen)

    def release(self, keep: set[str]) -> int:
        """As any claim's, except for messages that were delivered before: the broker delivers these again, with its mark."""
        again = {tag for tag, held in list(self.held.items()) if held.handed_over_before and not self._is_last(tag, held.queue)}
        return super().release(keep | again)

    def settle(self, tag: str) -> None:
        """Note that the delivery may be acknowledged at the next `settled`. Called from any thread."""
        if tag:
            self._ended.append(tag)

    def settled(self) -> None:
        """Acknowledge the settled deliveries, soon and in the consumer's thread. Called from any thread."""
        if not self._ended:
            return
        if self._is_green:  # at once: the loop of a greenlet pool turns only when data comes
            self.flush()
        else:
            self._consumer.call_soon(self.flush)

    def flush(self) -> None:
        tags = []
        while self._ended:
            tag = self._ended.popleft()
            self._leaving.discard(tag)
            if self.holds(tag):
                tags.append(int(tag.rpartition(".")[2]))
        if not tags:
            return
        try:
            self._set_window()  # first: the acknowledgements must not make room in a window that is too wide
            self._channel.acknowledge(tags)
        except Exception as exc:  # noqa: BLE001 - the channel is gone: the broker delivers again
            log.warning("acknowledge.failed", count=len(tags), error=str(exc), why="the messages are delivered again")

    def rest(self) -> None:
        """Wait until quorum queues have stored the acknowledgements, before the channel is closed."""
        if not self._channel or self._channel.connection is None:
            return
        for queue in self._consumer.task_consumer.queues if self._consumer.task_consumer else ():
            try:
                self._channel.await_acknowledged(queue.name)
            except Exception as exc:  # noqa: BLE001 - the channel is gone: the broker delivers again
                log.warning("acknowledge.unsure", queue=queue.name, error=str(exc), why="some messages may be delivered again")
                return

    def _widen(self) -> None:
        self._is_widening = False
        try:
            self._set_window()
        except Exception as exc:  # noqa: BLE001 - the channel is gone, and the consumer will find out
            log.debug("window.not_set", error=str(exc))

    def _set_window(self) -> None:
        """Widen the window by the leaving messages and by its own size, so that it need not change for the next few.

        Narrow it if it is too wide by more than its size, or if no message is leaving: otherwise more messages would wait behind a
        long task.
        """
        channel, leaving = self._channel, min(len(self._leaving), self._most)
        if not leaving or leaving > channel.wider or channel.wider - leaving > channel.window:
            channel.widen(leaving and leaving + channel.window)
