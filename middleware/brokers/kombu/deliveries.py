"""The messages that one worker holds on a broker that is used only through kombu's own interface.

A delivery is acknowledged in the thread in which its message ended, as in Celery; kombu allows that. When the channel closes, kombu
puts unacknowledged deliveries back, if it can: unchanged and marked, whatever the worker did with them meanwhile.

Limits: bytes that are not a message end the consumer's connection inside kombu, before our code sees them.
"""

from __future__ import annotations

import itertools
import json
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.utils.json import JSONEncoder, loads

from ...logs import log
from ...messages.envelope import mapping
from ..deliveries import Claim, Delivered

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker.consumer import Consumer

    from ...ports import Held, Transport

#: The fields that kombu gives every delivery. Some transports add objects of their own, which do not go into envelopes.
DELIVERY_INFO = ("exchange", "routing_key", "redelivered", "priority")


class GenericClaim(Claim):
    """The messages that this worker holds (`Deliveries`)."""

    def __init__(self, transport: Transport, worker: str) -> None:
        super().__init__(transport, worker)
        self._acknowledge: dict[str, Callable[[], None]] = {}
        self._numbers = itertools.count(1)

    def attach(self, consumer: Consumer) -> None:
        """Hold this consumer's deliveries. Called each time it has connected, before it consumes."""
        lost = len(self.held)
        self.token = uuid.uuid4().hex[:12]
        self.held.clear()
        self._acknowledge.clear()
        channel: Any = consumer.task_consumer.channel
        channel.basic_consume = partial(_consume, channel.basic_consume)
        if lost:
            log.info("owner.reconnected", worker=self.worker, holds=0, suspects=lost, given_back=lost)

    def take(self, message: Any) -> Held | None:
        payload, queue = getattr(message, "_raw", None), getattr(message, "queue", None)
        if payload is None or queue is None:
            return None
        tag = f"{self.token}.{next(self._numbers)}"
        info, headers = message.delivery_info, mapping(message.headers)
        was_moved = bool(info.get("redelivered") or payload.get("redelivered") or headers.get("redelivered"))
        message.delivery_info = {**info, "redelivered": was_moved}
        message.properties = {**message.properties, "delivery_info": message.delivery_info}
        held = Delivered(tag, queue, queue, partial(envelope_of, payload, was_moved=was_moved), self.now_ms())  # type: ignore[arg-type]
        message.serializable = lambda: loads(held.raw)
        self._acknowledge[tag] = message.ack
        self.held[tag] = held
        message.held = held
        return held

    def settle(self, tag: str) -> None:
        acknowledge = self._acknowledge.pop(tag, None)
        if acknowledge is None:
            return
        try:
            acknowledge()
        except Exception as exc:  # noqa: BLE001 - the channel is gone, but the message has ended or moved
            log.warning("acknowledge.failed", count=1, error=str(exc), why="the message is delivered again")

    def drop(self, tag: str) -> None:
        super().drop(tag)
        self._acknowledge.pop(tag, None)


def envelope_of(payload: dict[str, Any], *, was_moved: bool) -> bytes:
    """What kombu received, as bytes, without a transport's own objects. A value that is not JSON becomes text."""
    properties = payload["properties"]
    info = {name: value for name, value in (properties.get("delivery_info") or {}).items() if name in DELIVERY_INFO}
    info |= {"redelivered": True} if was_moved else {}
    envelope = {**payload, "headers": payload.get("headers") or {}, "properties": {**properties, "delivery_info": info}}
    envelope.pop("redelivered", None)
    return json.dumps(envelope, cls=_Anything, separators=(",", ":")).encode()


class _Anything(JSONEncoder):
    def default(self, value: Any) -> Any:
        try:
            return super().default(value)
        except TypeError:
            return str(value)


def _consume(consume: Callable[..., Any], queue: str, *args: Any, callback: Callable[[Any], Any], **kwargs: Any) -> Any:
    """As the channel's own `basic_consume`; each message gets the name of its queue."""

    def knowing(message: Any) -> Any:
        message.queue = queue
        return callback(message)

    return consume(queue, *args, callback=knowing, **kwargs)
