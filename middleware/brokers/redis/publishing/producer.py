"""Publishing on Redis: every channel of an app with `Redelivery` publishes a task and its outcome event in one step.

All tasks of a batch (`batch`) are published and recorded in one step. kombu itself publishes other messages (replies, remote
control, events), and its own batches. So that a worker can connect to a full server and empty the queues, a script makes the
bindings there, and kombu's transactions are replaced by single commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from ....messages.countdown import from_now, with_gaps
from ....messages.envelope import ANNOUNCED
from ....messages.recording import published
from ....messages.ttl import is_dated
from ..keys import Keys
from ..replicas import ConfirmedRedis
from ..scripts import Script, encoded
from ..transport import RedisTransport
from .batch import Gathering
from .bounds import publish_within
from .producer_clock import ProducerClock
from .purging import purge

if TYPE_CHECKING:
    from redis import Redis

    from ....messages.publication import Batch


class Publishing:
    """The publishing half of a channel: a mixin, because kombu has one channel for Redis and one for Sentinel."""

    _publishing: tuple[Redis, Keys] | None = None
    #: The batch that is being collected, if there is one.
    _gathering: Gathering | None = None

    def _queue_bind(self: Any, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        try:
            super()._queue_bind(exchange, routing_key, pattern, queue)  # type: ignore[misc]
        except OutOfMemoryError:
            client, keys = self._publisher()
            _BIND(client, [keys.bindings(exchange)], [self.sep.join([routing_key or "", pattern or "", queue or ""])])
        except ResponseError as exc:
            if not RedisTransport.is_transient(exc):
                raise
            what = "is read-only, perhaps a replica" if isinstance(exc, ReadOnlyError) else "accepts no writes now"
            msg = f"the broker {what}: {exc}"
            raise ConnectionError(msg) from None  # Celery's consumer connects again at this error

    # A full Redis 7.0 refuses every command in kombu's transactions, even if it only reads or frees memory.

    def _size(self: Any, queue: str) -> int:
        try:
            return int(super()._size(queue))  # type: ignore[misc]
        except OutOfMemoryError:
            client, keys = self._publisher()
            return sum(int(client.llen(keys.list(name))) for name in keys.list_names(queue))

    def _has_queue(self: Any, queue: str, **kwargs: Any) -> bool:
        try:
            return bool(super()._has_queue(queue, **kwargs))  # type: ignore[misc]
        except OutOfMemoryError:
            return bool(self._size(queue))

    def _delete(self: Any, queue: str, *args: Any, **kwargs: Any) -> None:
        try:
            super()._delete(queue, *args, **kwargs)  # type: ignore[misc]
        except OutOfMemoryError:
            client, keys = self._publisher()
            client.delete(*(keys.list(name) for name in keys.list_names(queue)))

    def _put(self: Any, queue: str, message: dict[str, Any], **kwargs: Any) -> Any:
        event = published(message, queue)
        if event is None or kwargs.get("_publish_batch") is not None:
            return super()._put(queue, message, **kwargs)  # type: ignore[misc]
        message["headers"][ANNOUNCED] = 1
        client, keys = self._publisher()
        list_name = keys.list_name(queue, self._get_message_priority(message, reverse=False))
        queues_expire = getattr(self, "_expires", None)  # kombu 5.6 has no queues that expire
        expires = queues_expire.get(queue, "") if queues_expire else ""
        runtime = getattr(self.connection.client, "redelivery", None)
        bounds = None if runtime is None else runtime.policies.bounds_of(queue, event.task)
        where = {"list_name": list_name, "expires": expires}
        if self._gathering is not None:
            return self._gathering.add(message, event, queue, bounds=bounds, **where)
        if runtime is not None and (bounds is not None or is_dated(message["headers"])):
            publish_within(client, keys, runtime, bounds, message=message, event=event, queue=queue, **where)
            _CLOCK.look(client, keys)
            return None
        name = keys.list(list_name)
        lists = [keys.list(each) for each in keys.list_names(queue)] if expires != "" else []
        text, gaps = with_gaps(message, from_now(message["headers"]))
        answer = _PUBLISH(client, [keys.outcomes, name, *lists], [text, expires, *encoded(event), gaps])
        _CLOCK.look(client, keys)
        return answer

    def publish_together(self: Any, batch: Batch) -> None:
        """Publish and record the rest of a batch in one step, or one by one if a queue has no room for all."""
        if batch.are_published is None:
            self.send_together(batch)
        are_published, batch.are_published = batch.are_published, None
        if are_published is None:
            return
        if not are_published():
            self._publish_each(batch)
            return
        for each in batch.left:
            each.is_published = True
        _CLOCK.look(*self._publisher())

    def send_together(self: Any, batch: Batch) -> None:
        """Send the rest of a batch to the server; `publish_together` then waits for the answer. Raises the same errors."""
        left = batch.left
        if len(left) <= 1:
            self._publish_each(batch)
            return
        client, keys = self._publisher()
        self._gathering = gathering = Gathering(keys)
        try:
            for each in left:
                gathered = len(gathering)
                self.basic_publish(each.message(self), **each.how)
                each.is_published = len(gathering) == gathered  # kombu has sent it already (a fanout)
        finally:
            self._gathering = None
        if len(gathering):
            batch.are_published = gathering.send(client, batch)

    def _publish_each(self: Any, batch: Batch) -> None:
        for each in batch.left:
            self.basic_publish(each.message(self), **each.how)
            each.is_published = True

    def _purge(self: Any, queue: str) -> int:
        """Discard the messages in a queue, and record it: `celery purge` is an operator's action."""
        client, keys = self._publisher()
        return purge(client, keys, queue)

    def _publisher(self: Any) -> tuple[Redis, Keys]:
        """The publishing client, made again after a fork. It has no prefix: kombu's prefixing cannot handle a script's keys."""
        if self._publishing is None or self._publishing[0].connection_pool is not self.pool:
            self._publishing = ConfirmedRedis(self.pool, self.connection.client), Keys.of(self)
        publishing: tuple[Redis, Keys] = self._publishing
        return publishing


_PUBLISH = Script("publish", answers_last=True)
_BIND = Script("bind")
_CLOCK = ProducerClock()
