"""Death: how every message that dies leaves, into its dead-letter queue or away.

Nothing is discarded because its dead-letter queue is missing. Where that queue may not be made by us, the dead letter waits in its
origin's delay store, is not run, and is sent again each time it comes back, until the queue is there (`bury_at_last`).

`bury` is for messages that do not run: unreadable, naming no task, delivered too often. A message without an envelope gets one, its
bytes kept.
"""

from __future__ import annotations

from dataclasses import dataclass
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

#: How long a letter whose queue is missing waits before it is tried again (milliseconds).
UNDELIVERED_WAIT = 5_000
MISSING = "auto_create_dead_letter_resources is off: declare the queue; until then its dead letters wait and nothing is discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How one message dies: of what, where it goes, what its dead letter says of it, and the event.

    `cause` is the reason in the dead letter. It differs from the event's reason in one case: a dead letter that is not eligible
    dies once more, and is kept all the same. `must_exist`: the queue must be there already (`auto_create_dead_letter_resources`).
    """

    queue: str
    message: dict[str, Any]
    event: Event
    place: RestingPlace
    must_exist: bool
    cause: Reason
    detail: str
    failed: Failed | None = None
    attempt: Attempt | None = None

    @classmethod
    def of(
        cls,
        runtime: Runtime,
        queue: str,
        raw: bytes,
        message: dict[str, Any],
        decided: DeadLetter | Discard,
        *,
        headers: dict[str, Any] | None = None,
        envelope: Envelope | None = None,
        policy: RedeliveryPolicy | None = None,
        worker: str = "",
        cause: Reason | None = None,
        detail: str | None = None,
        failed: Failed | None = None,
        attempt: Attempt | None = None,
        **facts: Any,
    ) -> Self:
        """The death that follows from a decision about this message of this queue.

        Where they are not given, `headers` are the message's (in Celery's first protocol the task's are others), `envelope` is read
        from them, `policy` is that of its task, and `cause` and `detail` are the decision's. `facts` are the event's.
        """
        said = message["headers"] if headers is None else headers
        policy = runtime.policies.policy_for(queue, str(said.get("task"))) if policy is None else policy
        envelope = Envelope.of(said) if envelope is None else envelope
        find = policy.expiry_queue_for if decided.reason is Reason.EXPIRED else policy.dead_letter_queue_for
        place = resting_place(envelope, queue, find(queue) if isinstance(decided, DeadLetter) else None, policy)
        outcome = Outcome.DISCARDED if place.target is None else Outcome.DEAD_LETTERED
        if failed is not None:
            facts = {"exception": failed.type, "fingerprint": failed.fingerprint, **facts}
        return cls(
            queue=queue,
            message=message,
            event=about(said, queue, raw, outcome, envelope, reason=decided.reason, worker=worker, **facts),
            place=place,
            must_exist=not policy.auto_create_dead_letter_resources,
            cause=decided.reason if cause is None else cause,
            detail=decided.detail if detail is None else detail,
            failed=failed,
            attempt=attempt,
        )

    @property
    def target(self) -> str | None:
        """The dead-letter queue; None where it is not kept."""
        return self.place.target

    @property
    def recorded(self) -> Event | None:
        """The event that its transition records; None where a letter only moves, whose death the books know."""
        return None if self.target is not None and Envelope.of(self.message["headers"]).is_letter else self.event

    def letter(self, *, now_ms: int, seen_ms: int) -> dict[str, Any]:
        """The dead letter. Only for what is kept."""
        return dead(
            self.message,
            self.queue,
            dead_letter_queue=str(self.target),
            reason=self.cause,
            at_ms=now_ms,
            seen_ms=seen_ms,
            attempt=self.attempt,
            failed=self.failed,
            detail=self.detail,
            parked=self.place.parked,
        )

    def transition(self, transport: Transport, held: Held, *, now_ms: int, tag: str | None = None) -> Callable[[], Answer]:
        """The transition that ends the message: into its dead-letter queue, or, where it is not kept, away.

        `tag` is the held one's, or empty where nothing is held any more. A letter that its handler failed on only moves: the books
        know of its death already, and its life has one end.
        """
        under = held.tag if tag is None else tag
        if self.target is None:
            return lambda: transport.acknowledge(under, self.event)
        letter = self.letter(now_ms=now_ms, seen_ms=held.seen_ms or now_ms)
        return _delivery(transport, held, letter, self.recorded, target=self.target, tag=under, must_exist=self.must_exist)

    def log(self, detail: str | None = None) -> None:
        """One line of the log for a message that died."""
        event = self.event
        if self.target is None:
            why = self.detail if detail is None else detail
            log.info("message.discarded", task_id=event.task_id, queue=event.queue, reason=event.reason, detail=why)
        else:
            target, reason = self.target, event.reason
            log.info(
                "message.dead_lettered",
                task=event.task,
                task_id=event.task_id,
                queue=event.queue,
                dead_letter_queue=target,
                reason=reason,
                exception=event.exception,
            )


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
    elif not told and not Envelope.of(headers).is_letter:  # the caller of a letter's task was told when it died
        tell_failure(runtime.app, message, reason, failed.text)
    policy = runtime.policies.policy_for(held.queue, str(headers.get("task")))
    decided = ending(policy, reason, eligible=eligible_of(headers))
    said: dict[str, Any] = {"cause": reason, "detail": "", "failed": failed}
    death = Death.of(runtime, held.queue, held.raw, message, decided, worker=runtime.worker, **said)
    carry_out(runtime, held, death.transition(runtime.transport, held, now_ms=runtime.owner.now_ms()), death.recorded)
    death.log(decided.detail)


def bury_at_last(runtime: Runtime, held: Held, envelope: Envelope, task: str) -> None:
    """Send off a dead message that came back because its queue was missing: its death is recorded once, when it is kept.

    The queue is the one of its policy now, and never one that the message names: anybody may have written that. Where nothing is
    kept any more, it is the one named after its queue.
    """
    policy, letter = runtime.policies.policy_for(held.queue, task), undelivered(opened(held.raw), None)
    death = envelope.deaths[0] if envelope.deaths else {}
    reason, failure = str(death.get("reason") or ""), envelope.failure or {}
    find = policy.expiry_queue_for if reason == "expired" else policy.dead_letter_queue_for
    place = parking_place(envelope, held.queue, policy) if envelope.parked else find(held.queue)
    said: dict[str, Any] = {
        "reason": reason,
        "exception": str(failure.get("type") or ""),
        "fingerprint": str(failure.get("fingerprint") or ""),
    }
    counts: dict[str, Any] = {"attempt": max(envelope.attempt, 1), "delivery": envelope.delivery, "worker": runtime.worker}
    event = about(letter["headers"], held.queue, held.raw, Outcome.DEAD_LETTERED, **said, **counts)
    was_letter = len(envelope.deaths) > 1 and envelope.deaths[1].get("generation") == envelope.generation
    transition = _delivery(
        runtime.transport,
        held,
        letter,
        None if was_letter else event,  # its own death is in the books already
        target=named_after(held.queue, policy) if place is None else place,
        tag=held.tag,
        must_exist=not policy.auto_create_dead_letter_resources,
    )
    carry_out(runtime, held, transition)


def carry_out(runtime: Runtime, held: Held, transition: Any, event: Event | None = None) -> None:
    """Have the outbox move a message that no request of Celery's stands for; done, it is no longer held.

    `event` is the one that the transition records, where it counts.
    """
    told = runtime.telling(held, event)

    def answered(answer: Answer) -> None:
        runtime.owner.drop(held.tag)
        if told is not None:
            told(answer)

    runtime.outbox.carry_out(held.tag, transition, answered)
