"""The outcome event of a step of one message: the one place where events are made of what a message says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .envelope import HEADER, Envelope
from .events import Event, Outcome
from .identity import MAX_TEXT, recorded_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .identity import Bytes

__all__ = ["about", "published"]

_FIRST = Envelope()


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
