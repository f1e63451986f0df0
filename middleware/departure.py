"""What every departure of a message has in common, whoever sends it off: the event that is recorded, and the letter that is kept.

Egress sends off what a task has done with, ingress what must not run, recovery what a dead worker held.

Nothing is discarded because its dead-letter queue is missing: where that queue may not be made by us, the letter waits in its
origin's delay store, is not run, and is sent off again whenever it comes back, until the queue is there (`burial_at_last`).
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redelivery.middleware.envelope import Attempt, Envelope, Failed, dead, opened, sealed, undelivered
from redelivery.middleware.logs import log
from redelivery.middleware.outcomes import Event, Outcome
from redelivery.middleware.transports.base import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from redelivery.middleware.outcomes import Reason
    from redelivery.middleware.transports.base import Held, Transport
    from redelivery.settings import RedeliveryPolicy

__all__ = [
    "RestingPlace",
    "about",
    "burial",
    "burial_at_last",
    "milliseconds",
    "named_after",
    "raw_id",
    "recorded_id",
    "resting_place",
    "tell_death",
    "wrapped",
]

MOST_TEXT = 256
#: What names a dead-letter queue where the policy has neither prefix nor suffix.
DEFAULT_PREFIX = "DLQ."
#: How long a letter whose queue is missing waits before it is tried again (milliseconds).
UNDELIVERED_WAIT = 5_000


def about(headers: Mapping[str, Any], held: Held, outcome: Outcome, **facts: Any) -> Event:
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
    must_exist: bool = False,
    parked: bool = False,
) -> Callable[[], Answer]:
    """The transition that ends a message which died: into its dead-letter queue, or, where `target` is None, away.

    `event` says `dead_lettered` or `discarded` accordingly. `tag` is the held one's, or empty where nothing is held any more.
    `must_exist`: the queue may not be made by us (`auto_create_dead_letter_resources`). `parked`: see `resting_place`. A letter
    that its handler failed on only moves: the books know of its death already, and its life has one end.
    """
    under = held.tag if tag is None else tag
    if target is None:
        return lambda: transport.acknowledge(under, event)
    letter = dead(
        message,
        held.queue,
        dead_letter_queue=target,
        reason=reason,
        at_ms=now_ms,
        seen_ms=held.seen_ms or now_ms,
        attempt=attempt,
        failed=failed,
        detail=detail,
        parked=parked,
    )
    recorded = None if Envelope.of(message["headers"]).is_letter else event
    return _delivery(transport, held, letter, recorded, target=target, tag=under, must_exist=must_exist)


@dataclass(frozen=True, slots=True)
class RestingPlace:
    """Where a dead message goes, None where it is not kept; `parked` says that it is held there instead of going round."""

    target: str | None
    parked: bool = False


def resting_place(envelope: Envelope, queue: str, target: str | None, policy: RedeliveryPolicy) -> RestingPlace:
    """Where what dies in `queue` goes, whose policy names `target`.

    A message that died in `target` before, with no rejection and no redrive since, would go round for ever: it is parked in the
    dead-letter queue that is named after the queue where it is now. A letter that its handler failed on is parked where its policy
    says; it is never discarded for that.
    """
    if not envelope.deaths or (target is None and not envelope.is_letter):
        return RestingPlace(target)
    if target is not None and not envelope.closes_circle(target):
        return RestingPlace(target, parked=envelope.is_letter)
    return RestingPlace(_parking_place(envelope, queue, policy), parked=True)


def named_after(queue: str, policy: RedeliveryPolicy) -> str:
    """The dead-letter queue that is named after this queue."""
    prefix, suffix = policy.dead_letter_queue_prefix, policy.dead_letter_queue_suffix
    return f"{prefix if prefix or suffix else DEFAULT_PREFIX}{queue}{suffix}"


def _parking_place(envelope: Envelope, queue: str, policy: RedeliveryPolicy) -> str:
    """The first one named after the queue where it is that the message has not died in; the last death does not change it."""
    place = named_after(queue, policy)
    while any(each.get("queue") == place for each in envelope.deaths):
        place = named_after(place, policy)
    return place


def burial_at_last(
    transport: Transport,
    held: Held,
    envelope: Envelope,
    *,
    worker: str,
    policy: RedeliveryPolicy,
) -> Callable[[], Answer]:
    """The transition of a letter that came back because its queue was missing: its death is recorded once, when it is kept.

    The queue is the one of its policy now, and never one that the message names: anybody may have written that. Where nothing is
    kept any more, it is the one named after its queue.
    """
    letter = undelivered(opened(held.raw), None)
    death = envelope.deaths[0] if envelope.deaths else {}
    reason, failure = str(death.get("reason") or ""), envelope.failure or {}
    find = policy.expiry_queue_for if reason == "expired" else policy.dead_letter_queue_for
    place = _parking_place(envelope, held.queue, policy) if envelope.parked else find(held.queue)
    target = named_after(held.queue, policy) if place is None else place
    event = replace(
        about(letter["headers"], held, Outcome.DEAD_LETTERED, reason=reason, worker=worker),
        attempt=max(envelope.attempt, 1),
        delivery=envelope.delivery,
        exception=str(failure.get("type") or ""),
        fingerprint=str(failure.get("fingerprint") or ""),
    )
    must_exist = not policy.auto_create_dead_letter_resources
    was_letter = len(envelope.deaths) > 1 and envelope.deaths[1].get("generation") == envelope.generation
    recorded = None if was_letter else event  # its own death is in the books already
    return _delivery(transport, held, letter, recorded, target=target, tag=held.tag, must_exist=must_exist)


def _delivery(
    transport: Transport,
    held: Held,
    letter: dict[str, Any],
    event: Event | None,
    *,
    target: str,
    tag: str,
    must_exist: bool,
) -> Callable[[], Answer]:
    """The letter goes to its queue; where that is missing, back to wait for it."""
    if not must_exist:
        raw = sealed(letter)
        return lambda: transport.dead_letter(tag, raw, dead_letter_queue=target, queue=held.queue, event=event)

    said = letter["headers"].get("id")
    task_id = said[:MOST_TEXT] if isinstance(said, str) else raw_id(held.raw)

    def deliver() -> Answer:
        raw = sealed(letter)
        answer = transport.dead_letter(tag, raw, dead_letter_queue=target, queue=held.queue, event=event, must_exist=True)
        if answer is not Answer.MISSING:
            return answer
        log.error("dead_letter_queue.missing", dead_letter_queue=target, queue=held.queue, task_id=task_id, why=MISSING)
        waiting = sealed(undelivered(letter, target))
        return transport.defer(tag, held.list_name, waiting, task_id=task_id, event=None, delay_ms=UNDELIVERED_WAIT)

    return deliver


MISSING = "auto_create_dead_letter_resources is off: declare the queue; until then its letters wait and nothing is discarded"


def recorded_id(said: object, held: Held) -> str:
    """The id under which a message is recorded that says this of its id: cut, or made from its bytes, where it is none."""
    return said[:MOST_TEXT] if isinstance(said, str) and said else raw_id(held.raw)


def raw_id(raw: bytes) -> str:
    """The id under which a message without one of its own is recorded: equal bytes, equal id."""
    return f"raw-{hashlib.sha1(raw, usedforsecurity=False).hexdigest()}"


def tell_death(event: Event, target: str | None, detail: str) -> None:
    """One line of the log for a message that died."""
    if target is None:
        log.info("message.discarded", task_id=event.task_id, queue=event.queue, reason=event.reason, detail=detail)
    else:
        log.info("message.dead_lettered", task_id=event.task_id, queue=event.queue, dead_letter_queue=target, reason=event.reason)


def wrapped(raw: bytes) -> dict[str, Any]:
    """An envelope for bytes that have none: they are its body, in base64, whatever they are."""
    return {
        "body": base64.b64encode(raw).decode(),
        "content-type": "application/octet-stream",
        "content-encoding": "binary",
        "headers": {"id": raw_id(raw)},
        "properties": {"body_encoding": "base64", "delivery_tag": "raw", "delivery_info": {}},
    }


def milliseconds(moment: object, app: Any) -> int | None:
    """When an `eta` or `expires` header says; None where it cannot be read: Celery says what is wrong with it."""
    from celery.utils.time import maybe_iso8601, maybe_make_aware  # noqa: PLC0415 - only for messages that have one

    try:
        return round(float(maybe_make_aware(maybe_iso8601(moment), app.conf.timezone).timestamp()) * 1000)
    except (AttributeError, ValueError, TypeError, OverflowError):
        return None


def _text(value: object) -> str:
    return str(value)[:MOST_TEXT] if value else ""
