"""What every departure of a message has in common, whoever sends it off: the event that is recorded, and the letter that is kept.

Egress sends off what a task has done with, ingress what must not run, recovery what a dead worker held.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from redelivery.middleware.envelope import Attempt, Envelope, Failed, dead, sealed
from redelivery.middleware.outcomes import Event, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from redelivery.middleware.outcomes import Reason
    from redelivery.middleware.transports.base import Answer, Held, Transport

__all__ = ["about", "burial", "raw_id"]

MOST_TEXT = 256


def about(headers: Mapping[str, Any], held: Held, outcome: Outcome, **facts: Any) -> Event:
    """The event of a step of this message, whatever its headers are; `facts` are further fields of `Event`."""
    envelope = Envelope.of(headers)
    task_id, nesting = headers.get("id"), headers.get("replaced_task_nesting")
    return Event(
        task_id=task_id[:MOST_TEXT] if isinstance(task_id, str) and task_id else raw_id(held.raw),
        outcome=outcome,
        generation=envelope.generation,
        task=_text(headers.get("task")),
        queue=held.queue,
        attempt=envelope.attempt + 1,
        delivery=envelope.delivery + 1,
        root_id=_text(headers.get("root_id")),
        parent_id=_text(headers.get("parent_id")),
        nesting=nesting if isinstance(nesting, int) else 0,
        **facts,
    )


def burial(
    transport: Transport,
    held: Held,
    message: dict[str, Any],
    event: Event,
    *,
    target: str | None,
    reason: Reason,
    now_ms: int,
    attempt: Attempt | None,
    failed: Failed | None,
    detail: str = "",
    tag: str | None = None,
) -> Callable[[], Answer]:
    """The transition that ends a message which died: into its dead-letter queue, or, where `target` is None, away.

    `event` says `dead_lettered` or `discarded` accordingly. `tag` is the held one's, or empty where nothing is held any more.
    """
    under = held.tag if tag is None else tag
    if target is None:
        return lambda: transport.acknowledge(under, event)
    letter = sealed(
        dead(
            message,
            held.queue,
            dead_letter_queue=target,
            reason=reason,
            at_ms=now_ms,
            seen_ms=held.seen_ms or now_ms,
            attempt=attempt,
            failed=failed,
            detail=detail,
        ),
    )
    return lambda: transport.dead_letter(under, letter, dead_letter_queue=target, queue=held.queue, event=event)


def raw_id(raw: bytes) -> str:
    """The id under which a message without one of its own is recorded: equal bytes, equal id."""
    return f"raw-{hashlib.sha1(raw, usedforsecurity=False).hexdigest()}"


def _text(value: object) -> str:
    return str(value)[:MOST_TEXT] if value else ""
