"""Death: how a message that dies leaves, whoever ends it; into its dead-letter queue, or away.

Nothing is discarded because its dead-letter queue is missing: where that queue may not be made by us, the letter waits in its
origin's delay store, is not run, and is sent off again whenever it comes back, until the queue is there (`burial_at_last`).

`bury` is for what does not run: what nobody can read, what names no task, what has been delivered too often. Whatever arrived can
be buried: what has no envelope gets one of ours, its bytes kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from redelivery.errors import EnvelopeError

from ..logs import log
from ..messages.envelope import Envelope, eligible_of
from ..messages.events import Outcome, Reason
from ..messages.recording import MAX_TEXT, about, raw_id, wrapped
from ..messages.steps import dead, opened, sealed, undelivered
from ..policy.decision import DeadLetter, Discard, ending
from ..policy.destinations import named_after, parking_place, resting_place
from ..ports import Answer
from .notify import tell_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.settings import RedeliveryPolicy

    from ..messages.envelope import Attempt, Failed
    from ..messages.events import Event
    from ..policy.destinations import RestingPlace
    from ..ports import Held, Transport
    from ..runtime import Runtime

__all__ = ["Death", "burial", "burial_at_last", "bury", "bury_at_last", "carry_out", "tell_death"]

#: How long a letter whose queue is missing waits before it is tried again (milliseconds).
UNDELIVERED_WAIT = 5_000
MISSING = "auto_create_dead_letter_resources is off: declare the queue; until then its letters wait and nothing is discarded"


@dataclass(frozen=True, slots=True)
class Death:
    """How one message dies: of what, where it goes, and what its letter says of it.

    `reason` is the event's; the letter's is the `cause`, which is another one where a letter dies once more that is not eligible:
    no letter is thrown away. `must_exist`: the queue may not be made by us (`auto_create_dead_letter_resources`).
    """

    reason: Reason
    cause: Reason
    place: RestingPlace
    must_exist: bool
    detail: str = ""
    failed: Failed | None = None
    attempt: Attempt | None = None

    @classmethod
    def of(
        cls,
        decided: DeadLetter | Discard,
        policy: RedeliveryPolicy,
        envelope: Envelope,
        queue: str,
        *,
        cause: Reason | None = None,
        detail: str | None = None,
        failed: Failed | None = None,
        attempt: Attempt | None = None,
    ) -> Self:
        """The death that follows from a decision, for a message of this queue; `cause` and `detail` are the decision's own."""
        find = policy.expiry_queue_for if decided.reason is Reason.EXPIRED else policy.dead_letter_queue_for
        place = resting_place(envelope, queue, find(queue) if isinstance(decided, DeadLetter) else None, policy)
        said, why = cause or decided.reason, decided.detail if detail is None else detail
        return cls(decided.reason, said, place, not policy.auto_create_dead_letter_resources, why, failed, attempt)

    @property
    def target(self) -> str | None:
        """The dead-letter queue; None where it is not kept."""
        return self.place.target

    @property
    def outcome(self) -> Outcome:
        """What is recorded of it."""
        return Outcome.DISCARDED if self.target is None else Outcome.DEAD_LETTERED

    def letter(self, message: dict[str, Any], queue: str, *, now_ms: int, seen_ms: int) -> dict[str, Any]:
        """The dead letter. Only for what is kept."""
        return dead(
            message,
            queue,
            dead_letter_queue=str(self.target),
            reason=self.cause,
            at_ms=now_ms,
            seen_ms=seen_ms,
            attempt=self.attempt,
            failed=self.failed,
            detail=self.detail,
            parked=self.place.parked,
        )


def burial(
    transport: Transport,
    held: Held,
    message: dict[str, Any],
    event: Event,
    death: Death,
    *,
    now_ms: int,
    tag: str | None = None,
) -> Callable[[], Answer]:
    """The transition that ends a message which died: into its dead-letter queue, or, where it is not kept, away.

    `event` says `dead_lettered` or `discarded` accordingly. `tag` is the held one's, or empty where nothing is held any more. A
    letter that its handler failed on only moves: the books know of its death already, and its life has one end.
    """
    under = held.tag if tag is None else tag
    if death.target is None:
        return lambda: transport.acknowledge(under, event)
    letter = death.letter(message, held.queue, now_ms=now_ms, seen_ms=held.seen_ms or now_ms)
    recorded = None if Envelope.of(message["headers"]).is_letter else event
    return _delivery(transport, held, letter, recorded, target=death.target, tag=under, must_exist=death.must_exist)


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
    place = parking_place(envelope, held.queue, policy) if envelope.parked else find(held.queue)
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
    task_id = said[:MAX_TEXT] if isinstance(said, str) else raw_id(held.raw)

    def deliver() -> Answer:
        raw = sealed(letter)
        answer = transport.dead_letter(tag, raw, dead_letter_queue=target, queue=held.queue, event=event, must_exist=True)
        if answer is not Answer.MISSING:
            return answer
        log.error("dead_letter_queue.missing", dead_letter_queue=target, queue=held.queue, task_id=task_id, why=MISSING)
        waiting = sealed(undelivered(letter, target))
        return transport.defer(tag, held.list_name, waiting, task_id=task_id, event=None, delay_ms=UNDELIVERED_WAIT)

    return deliver


def tell_death(event: Event, target: str | None, detail: str) -> None:
    """One line of the log for a message that died."""
    if target is None:
        log.info("message.discarded", task_id=event.task_id, queue=event.queue, reason=event.reason, detail=detail)
    else:
        log.info("message.dead_lettered", task_id=event.task_id, queue=event.queue, dead_letter_queue=target, reason=event.reason)


def bury(runtime: Runtime, held: Held, reason: Reason, failed: Failed, *, told: bool = True) -> None:
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
        tell_failure(runtime.app, message, reason, failed.text)
    policy = runtime.policies.policy_for(held.queue, str(headers.get("task")))
    decided = ending(policy, reason, eligible=eligible_of(headers))
    death = Death.of(decided, policy, Envelope.of(headers), held.queue, cause=reason, detail="", failed=failed)
    said = {"reason": death.reason, "exception": failed.type, "fingerprint": failed.fingerprint}
    event = about(headers, held, death.outcome, worker=runtime.worker, **said)
    carry_out(runtime, held, burial(runtime.transport, held, message, event, death, now_ms=runtime.owner.now_ms()))
    tell_death(event, death.target, decided.detail)


def bury_at_last(runtime: Runtime, held: Held, known: Envelope, task: str) -> None:
    """Send off a dead message of this task that has waited for its dead-letter queue."""
    policy = runtime.policies.policy_for(held.queue, task)
    carry_out(runtime, held, burial_at_last(runtime.transport, held, known, worker=runtime.worker, policy=policy))


def carry_out(runtime: Runtime, held: Held, transition: Any) -> None:
    """Have the outbox move a message that no request of Celery's stands for; done, it is no longer held."""
    runtime.outbox.carry_out(held.tag, transition, lambda _: runtime.owner.drop(held.tag))
