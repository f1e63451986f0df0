"""The death of a message that does not run: what nobody can read, what names no task, what has been delivered too often.

Enters: the message as this worker holds it, and why it dies. Leaves: its move to the dead-letter queue, in the outbox: with a death
record where it has an envelope, else in an envelope of ours, its bytes kept. Refuses nothing: whatever arrived can be buried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.errors import EnvelopeError
from redelivery.middleware import decision
from redelivery.middleware.departure import about, burial, burial_at_last, raw_id, resting_place, tell_death, wrapped
from redelivery.middleware.envelope import Envelope, eligible_of, opened
from redelivery.middleware.failure import tell_failure
from redelivery.middleware.outcomes import Outcome, Reason

if TYPE_CHECKING:
    from redelivery.middleware.envelope import Failed
    from redelivery.middleware.install import Redelivery
    from redelivery.middleware.transports.base import Held

__all__ = ["bury", "bury_at_last", "carry_out"]


def bury(install: Redelivery, held: Held, reason: Reason, failed: Failed, *, told: bool = True) -> None:
    """Move the message to its dead-letter queue.

    Unless its caller has been `told` (by Celery), it is, before the message leaves.
    """
    try:
        message = opened(held.raw)
    except EnvelopeError:
        message = wrapped(held.raw)
    headers = message["headers"]
    if not isinstance(headers.get("id"), str):
        headers["id"] = raw_id(held.raw)  # so that the letter can be found under the id that its event has
    elif not told and not Envelope.of(headers).is_letter:  # whoever waits for a letter's task was told when it died
        tell_failure(install.app, message, reason, failed.text)
    policy = install.policy_for(held.queue, str(headers.get("task")))
    ending = decision.ending(policy, reason, eligible=eligible_of(headers))
    wanted = policy.dead_letter_queue_for(held.queue) if isinstance(ending, decision.DeadLetter) else None
    place = resting_place(Envelope.of(headers), held.queue, wanted, policy)
    target = place.target
    event = about(
        headers,
        held,
        Outcome.DISCARDED if target is None else Outcome.DEAD_LETTERED,
        reason=ending.reason,
        worker=install.worker,
        exception=failed.type,
        fingerprint=failed.fingerprint,
    )
    transition = burial(
        install.transport,
        held,
        message,
        event,
        target=target,
        reason=reason,
        now_ms=install.owner.now_ms(),
        attempt=None,
        failed=failed,
        must_exist=not policy.auto_create_dead_letter_resources,
        parked=place.parked,
    )
    carry_out(install, held, transition)
    tell_death(event, target, ending.detail)


def bury_at_last(install: Redelivery, held: Held, known: Envelope, task: str) -> None:
    """Send off a dead message of this task that has waited for its dead-letter queue."""
    policy = install.policy_for(held.queue, task)
    carry_out(install, held, burial_at_last(install.transport, held, known, worker=install.worker, policy=policy))


def carry_out(install: Redelivery, held: Held, transition: Any) -> None:
    """Have the outbox move a message that no request of Celery's stands for; done, it is no longer held."""
    install.outbox.carry_out(held.tag, transition, lambda _: install.owner.drop(held.tag))
