"""The outcome event of a step of one message: the one place where events are made of what a message says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.header import Envelope
from redelivery.middleware.identity import MOST_TEXT, recorded_id
from redelivery.middleware.outcomes import Event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redelivery.middleware.identity import Bytes
    from redelivery.middleware.outcomes import Outcome

__all__ = ["about"]


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


def _text(value: object) -> str:
    return str(value)[:MOST_TEXT] if value else ""
