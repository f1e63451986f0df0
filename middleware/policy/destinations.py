"""Where what dies goes: the dead-letter queue that its policy names, or, where it would go in a circle, one that holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redelivery.settings.names import objection

if TYPE_CHECKING:
    from redelivery.settings import RedeliveryPolicy

    from ..messages.envelope import Envelope

#: What names a dead-letter queue where the policy has neither prefix nor suffix.
DEFAULT_PREFIX = "DLQ."


@dataclass(frozen=True, slots=True)
class RestingPlace:
    """Where a dead message goes, None where it is not kept; `parked` says that it is held there instead of going round."""

    target: str | None
    parked: bool = False


def resting_place(envelope: Envelope, queue: str, target: str | None, policy: RedeliveryPolicy) -> RestingPlace:
    """Where what dies in `queue` goes, whose policy names `target`.

    A message that died in `target` before, with no rejection and no redrive since, would go in a circle for ever: it is parked in
    the dead-letter queue that is named after the queue where it is now. A letter that its handler failed on is parked where its
    policy says; it is never discarded for that.
    """
    if not envelope.deaths or (target is None and not envelope.is_letter):
        return RestingPlace(target)
    if target is not None and not envelope.closes_circle(target):
        return RestingPlace(target, parked=envelope.is_letter)
    return RestingPlace(parking_place(envelope, queue, policy), parked=True)


def letter_queues(envelope: Envelope, queue: str, policy: RedeliveryPolicy) -> frozenset[str]:
    """Every queue that the policy sends what dies in `queue` to, for whatever reason it dies."""
    named = {policy.dead_letter_queue_for(queue), policy.expiry_queue_for(queue), parking_place(envelope, queue, policy)}
    return frozenset(name for name in named if name is not None)


def named_after(queue: str, policy: RedeliveryPolicy) -> str:
    """The dead-letter queue that is named after this queue."""
    prefix, suffix = policy.dead_letter_queue_prefix, policy.dead_letter_queue_suffix
    return f"{prefix if prefix or suffix else DEFAULT_PREFIX}{queue}{suffix}"


def parking_place(envelope: Envelope, queue: str, policy: RedeliveryPolicy) -> str:
    """The first one named after the queue where it is that the message has not died in; the last death does not change it.

    Anybody may have written where it has died: a name that no queue can have is none.
    """
    place = first = named_after(queue, policy)
    while any(each.get("queue") == place for each in envelope.deaths):
        place = named_after(place, policy)
        if objection(place) is not None:
            return first
    return place
