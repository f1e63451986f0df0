"""Where a dead message goes: the dead-letter queue that its policy names, or, to avoid a circle, a queue that parks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redelivery.settings.names import objection

if TYPE_CHECKING:
    from redelivery.settings import RedeliveryPolicy

    from ..messages.envelope import Envelope

#: The prefix of a dead-letter queue's name if the policy has neither prefix nor suffix.
DEFAULT_PREFIX = "DLQ."


@dataclass(frozen=True, slots=True)
class RestingPlace:
    """Where a dead message goes; None if it is not kept. `parked`: it stays there, so that it does not go in a circle."""

    target: str | None
    parked: bool = False


def resting_place(envelope: Envelope, queue: str, target: str | None, policy: RedeliveryPolicy) -> RestingPlace:
    """Where a message that dies in `queue` goes; `target` is the queue that its policy names.

    A message that died in `target` before, with no rejection and no redrive since, would go in a circle for ever: it is parked in
    the dead-letter queue named after its current queue. A dead letter whose handler failed is parked in `target`, never discarded.
    """
    if not envelope.deaths or (target is None and not envelope.is_letter):
        return RestingPlace(target)
    if target is not None and not envelope.closes_circle(target):
        return RestingPlace(target, parked=envelope.is_letter)
    return RestingPlace(parking_place(envelope, queue, policy), parked=True)


def letter_queues(envelope: Envelope, queue: str, policy: RedeliveryPolicy) -> frozenset[str]:
    """Every queue to which the policy may send a message that dies in `queue`, for any reason."""
    named = {policy.dead_letter_queue_for(queue), policy.expiry_queue_for(queue), parking_place(envelope, queue, policy)}
    return frozenset(name for name in named if name is not None)


def named_after(queue: str, policy: RedeliveryPolicy) -> str:
    """The dead-letter queue named after this queue."""
    prefix, suffix = policy.dead_letter_queue_prefix, policy.dead_letter_queue_suffix
    return f"{prefix if prefix or suffix else DEFAULT_PREFIX}{queue}{suffix}"


def parking_place(envelope: Envelope, queue: str, policy: RedeliveryPolicy) -> str:
    """The dead-letter queue named after `queue`; if the message has died in it, the one named after that, and so on.

    Any client may have written the list of deaths. If it leads to a name that no queue can have, the first name is used.
    """
    place = first = named_after(queue, policy)
    while any(each.get("queue") == place for each in envelope.deaths):
        place = named_after(place, policy)
        if objection(place) is not None:
            return first
    return place
