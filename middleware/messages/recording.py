"""The outcome event of a step of one message, and the id under which it is recorded: whatever its bytes are, it has both."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Protocol

from .envelope import HEADER, Envelope
from .events import Event, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_TEXT", "Bytes", "about", "published", "raw_id", "recorded_id", "wrapped"]

#: Characters of an id, or of a name, that are recorded.
MAX_TEXT = 256
_FIRST = Envelope()


class Bytes(Protocol):
    """A message and the queue that it is in, as far as an event needs them."""

    @property
    def queue(self) -> str:
        """The queue."""
        ...

    @property
    def raw(self) -> bytes:
        """The whole message."""
        ...


def recorded_id(said: object, held: Bytes) -> str:
    """The id under which a message is recorded that says this of its id: cut, or made from its bytes, where it is none."""
    return said[:MAX_TEXT] if isinstance(said, str) and said else raw_id(held.raw)


def raw_id(raw: bytes) -> str:
    """The id under which a message without one of its own is recorded: equal bytes, equal id."""
    return f"raw-{hashlib.sha1(raw, usedforsecurity=False).hexdigest()}"


def wrapped(raw: bytes) -> dict[str, Any]:
    """An envelope for bytes that have none: they are its body, in base64, whatever they are."""
    return {
        "body": base64.b64encode(raw).decode(),
        "content-type": "application/octet-stream",
        "content-encoding": "binary",
        "headers": {"id": raw_id(raw)},
        "properties": {"body_encoding": "base64", "delivery_tag": "raw", "delivery_info": {}},
    }


def about(headers: Mapping[str, Any], held: Bytes, outcome: Outcome, **facts: Any) -> Event:
    """The event of a step of this message, whatever its headers are; `facts` are further fields of `Event`."""
    envelope = Envelope.of(headers)
    nesting = headers.get("replaced_task_nesting")
    return Event(
        task_id=recorded_id(headers.get("id"), held),
        outcome=outcome,
        generation=envelope.generation,
        task=_text(headers.get("task")),
        queue=envelope.life_queue(held.queue),
        attempt=envelope.attempt + 1,
        delivery=envelope.delivery + 1,
        root_id=_text(headers.get("root_id")),
        parent_id=_text(headers.get("parent_id")),
        nesting=nesting if isinstance(nesting, int) else 0,
        **facts,
    )


def published(message: dict[str, Any], queue: str) -> Event | None:
    """The event of a publication; None for what is no task. What Celery's own `retry` publishes is a redelivery of one life."""
    headers = message.get("headers") or {}
    task_id, task = headers.get("id"), headers.get("task")
    if not isinstance(task_id, str) or not task_id or not isinstance(task, str):
        return None
    retries = headers.get("retries") or 0
    envelope = _FIRST if HEADER not in headers else Envelope.of(headers)
    return Event(
        task_id=task_id[:MAX_TEXT],
        outcome=Outcome.REDELIVERY_SCHEDULED if retries or envelope.attempt else Outcome.PUBLISHED,
        generation=envelope.generation,
        task=task,
        queue=envelope.life_queue(queue),
        attempt=envelope.attempt or retries,
        delivery=envelope.delivery,
        root_id=headers.get("root_id") or "",
        parent_id=headers.get("parent_id") or "",
        nesting=headers.get("replaced_task_nesting") or 0,
    )


def _text(value: object) -> str:
    return str(value)[:MAX_TEXT] if value else ""
