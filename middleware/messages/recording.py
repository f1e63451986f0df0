"""The outcome event of a message's step, and the id under which it is recorded. Any bytes give both."""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from redelivery.errors import EnvelopeError

from .envelope import Envelope, count, text
from .events import Event, Outcome
from .steps import opened

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The most characters of an id, or of a name, in an event.
MAX_TEXT = 256


class HasBytes(Protocol):
    """An object that has the bytes of a message; it may make them only on access."""

    @property
    def raw(self) -> bytes:
        """The bytes."""


def recorded_id(own: object, of: bytes | HasBytes) -> str:
    """The id under which a message is recorded: its `own` id, cut; made from its bytes if `own` is not an id."""
    return text(own, MAX_TEXT) or raw_id(of if isinstance(of, bytes) else of.raw)


def raw_id(raw: bytes) -> str:
    """The id of a message without an id: equal bytes give the same id."""
    return f"raw-{hashlib.sha1(raw, usedforsecurity=False).hexdigest()}"


def opened_or_wrapped(raw: bytes) -> dict[str, Any]:
    """The message in these bytes; if they are not a message, a new one whose body is the bytes in base64."""
    with suppress(EnvelopeError):
        return opened(raw)
    return {
        "body": base64.b64encode(raw).decode(),
        "content-type": "application/octet-stream",
        "content-encoding": "binary",
        "headers": {"id": raw_id(raw)},
        "properties": {"body_encoding": "base64", "delivery_tag": "raw", "delivery_info": {}},
    }


def about(
    headers: Mapping[str, Any], queue: str, of: bytes | HasBytes, outcome: Outcome, envelope: Envelope | None = None, **facts: Any
) -> Event:
    """The event of a step of a message of this queue, for any headers; `facts` are fields of `Event`.

    `of` is the message's bytes, or an object that has them, used only if the headers have no id. `envelope` is the headers' own, if
    it has been read already.
    """
    envelope = Envelope.of(headers) if envelope is None else envelope
    return Event(
        task_id=recorded_id(headers.get("id"), of),
        outcome=outcome,
        generation=facts.pop("generation", envelope.generation),
        task=_text(headers.get("task")),
        queue=envelope.life_queue(queue),
        attempt=facts.pop("attempt", envelope.attempt + 1),
        delivery=facts.pop("delivery", envelope.delivery + 1),
        root_id=_text(headers.get("root_id")),
        parent_id=_text(headers.get("parent_id")),
        nesting=count(headers.get("replaced_task_nesting")),
        **facts,
    )


def published(message: dict[str, Any], queue: str) -> Event | None:
    """The event of a publication; None if it is not a task. A message that Celery's `retry` publishes continues its life."""
    headers = message.get("headers") or {}
    task_id = headers.get("id")
    if not isinstance(task_id, str) or not task_id or not isinstance(headers.get("task"), str):
        return None
    retries = count(headers.get("retries"))
    envelope = Envelope.of(headers)
    outcome = Outcome.REDELIVERY_SCHEDULED if retries or envelope.attempt else Outcome.PUBLISHED
    return about(headers, queue, b"", outcome, envelope, attempt=envelope.attempt or retries, delivery=envelope.delivery)


def _text(value: object) -> str:
    return text(value if isinstance(value, str) else str(value), MAX_TEXT) if value else ""
