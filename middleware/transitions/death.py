"""Death: how every message that dies leaves. It goes to its dead-letter queue, or is discarded.

A message is never discarded because its dead-letter queue is missing. If redelivery may not create that queue, the dead letter
waits in the delay store of its origin queue. It does not run. Each time it comes back, `bury_at_last` sends it to the dead-letter
queue again, until that queue exists.

`bury` is for messages that do not run: they cannot be read, name no task, or were delivered too often. Unreadable bytes are kept
inside a new message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ..logs import log
from ..messages.envelope import Envelope, eligible_of
from ..messages.events import Outcome, Reason
from ..messages.recording import MAX_TEXT, about, opened_or_wrapped, raw_id
from ..messages.steps import dead, opened, sealed, undelivered
from ..policy.decision import DeadLetter, Discard, ending
from ..policy.destinations import named_after, parking_place, resting_place
from ..ports import Answer
from .notify import report_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.settings import RedeliveryPolicy

    from ..messages.envelope import Attempt, Failed
    from ..messages.events import Event
    from ..policy.destinations import RestingPlace
    from ..ports import Held, Transport
    from ..runtime import Runtime

#: Milliseconds until a dead letter whose queue is missing is sent there again.
UNDELIVERED_WAIT = 5_000
MISSING = "auto_create_dead_letter_resources is off: declare the queue; until then its dead letters wait and nothing is discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How one message dies: the reason, the destination, the contents of its dead letter, and the event.

    `cause` is the reason in the dead letter. It differs from the event's reason in one case: a dead letter that is not eligible
    dies again, and is still kept. `must_exist`: redelivery may not create the queue (`auto_create_dead_letter_resources`).
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
        """The death that follows from a decision about a message of this queue.

        By default, `headers` are the message's (Celery's protocol 1 has the task's elsewhere), `envelope` is read from the headers,
        `policy` is the task's, `cause` and `detail` are the decision's. `facts` are further fields of the event.
        """
        headers = message["headers"] if headers is None else headers
        policy = runtime.policies.policy_for(queue, str(headers.get("task"))) if policy is None else policy
        envelope = Envelope.of(headers) if envelope is None else envelope
        find = policy.expiry_queue_for if decided.reason is Reason.EXPIRED else policy.dead_letter_queue_for
        place = resting_place(envelope, queue, find(queue) if isinstance(decided, DeadLetter) else None, policy)
        outcome = Outcome.DISCARDED if place.target is None else Outcome.DEAD_LETTERED
        if failed is not None:
            facts = {"exception": failed.type, "fingerprint": failed.fingerprint, **facts}
        return cls(
            queue=queue,
            message=message,
            event=about(headers, queue, raw, outcome, envelope, reason=decided.reason, worker=worker, **facts),
            place=place,
            must_exist=not policy.auto_create_dead_letter_resources,
            cause=decided.reason if cause is None else cause,
            detail=decided.detail if detail is None else detail,
            failed=failed,
            attempt=attempt,
        )

    @property
    def target(self) -> str | None:
        """The dead-letter queue; None if the message is not kept."""
        return self.place.target

    @property
    def recorded(self) -> Event | None:
        """The event that the transition records; None for a dead letter, whose death is recorded already."""
        return None if self.target is not None and Envelope.of(self.message["headers"]).is_letter else self.event

    def letter(self, *, now_ms: int, seen_ms: int) -> dict[str, Any]:
        """The dead letter of a message that is kept."""
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
        """The transition that ends the message: it moves to its dead-letter queue, or is acknowledged if it is not kept.

        `tag` is the held message's, or empty if it is no longer held.
        """
        tag = held.tag if tag is None else tag
        if self.target is None:
            return lambda: transport.acknowledge(tag, self.event)
        letter = self.letter(now_ms=now_ms, seen_ms=held.seen_ms or now_ms)
        return _delivery(transport, held, letter, self.recorded, target=self.target, tag=tag, must_exist=self.must_exist)

    def log(self, detail: str | None = None) -> None:
        """Log one line for a message that died."""
        event = self.event
        if self.target is None:
            why = self.detail if detail is None else detail
            log.info("message.discarded", task_id=event.task_id, queue=event.queue, reason=event.reason, detail=why)
        else:
            log.info(
                "message.dead_lettered",
                task=event.task,
                task_id=event.task_id,
                queue=event.queue,
                dead_letter_queue=self.target,
                reason=event.reason,
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
    """The transition that moves a dead letter to its queue; if the queue is missing, the letter waits in the delay store."""
    if not must_exist:
        raw = sealed(letter)
        return lambda: transport.dead_letter(tag, raw, dead_letter_queue=target, queue=held.queue, event=event)

    own_id = letter["headers"].get("id")
    task_id = own_id[:MAX_TEXT] if isinstance(own_id, str) else raw_id(held.raw)

    def deliver() -> Answer:
        raw = sealed(letter)
        answer = transport.dead_letter(tag, raw, dead_letter_queue=target, queue=held.queue, event=event, must_exist=True)
        if answer is not Answer.MISSING:
            return answer
        log.error("dead_letter_queue.missing", dead_letter_queue=target, queue=held.queue, task_id=task_id, why=MISSING)
        waiting = sealed(undelivered(letter, target))
        return transport.defer(tag, held.list_name, waiting, task_id=task_id, event=None, delay_ms=UNDELIVERED_WAIT)

    return deliver


def bury(runtime: Runtime, held: Held, reason: Reason, failed: Failed, *, is_reported: bool = True) -> None:
    """Move the message to its dead-letter queue. `is_reported`: Celery has reported the failure; otherwise report it here first."""
    message = opened_or_wrapped(held.raw)
    headers = message["headers"]
    if not isinstance(headers.get("id"), str):
        headers["id"] = raw_id(held.raw)  # as in its event
    elif not is_reported and not Envelope.of(headers).is_letter:  # a dead letter's failure was reported when it died
        report_failure(runtime.app, message, reason, failed.text)
    policy = runtime.policies.policy_for(held.queue, str(headers.get("task")))
    decided = ending(policy, reason, eligible=eligible_of(headers))
    contents: dict[str, Any] = {"cause": reason, "detail": "", "failed": failed}
    death = Death.of(runtime, held.queue, held.raw, message, decided, worker=runtime.worker, **contents)
    carry_out(runtime, held, death.transition(runtime.transport, held, now_ms=runtime.owner.now_ms()), death.recorded)
    death.log(decided.detail)


def bury_at_last(runtime: Runtime, held: Held, envelope: Envelope, task: str) -> None:
    """Send a dead letter that came back because its queue was missing; its death is recorded when the letter is kept.

    The target is the queue that the policy names now, never one that the message names: any client may have written that. If the
    policy now keeps no dead letters, the target is the dead-letter queue named after the message's queue.
    """
    policy, letter = runtime.policies.policy_for(held.queue, task), undelivered(opened(held.raw), None)
    death = envelope.deaths[0] if envelope.deaths else {}
    reason, failure = str(death.get("reason") or ""), envelope.failure or {}
    find = policy.expiry_queue_for if reason == "expired" else policy.dead_letter_queue_for
    place = parking_place(envelope, held.queue, policy) if envelope.parked else find(held.queue)
    event = about(
        letter["headers"],
        held.queue,
        held.raw,
        Outcome.DEAD_LETTERED,
        reason=reason,
        exception=str(failure.get("type") or ""),
        fingerprint=str(failure.get("fingerprint") or ""),
        attempt=max(envelope.attempt, 1),
        delivery=envelope.delivery,
        worker=runtime.worker,
    )
    was_letter = len(envelope.deaths) > 1 and envelope.deaths[1].get("generation") == envelope.generation
    transition = _delivery(
        runtime.transport,
        held,
        letter,
        None if was_letter else event,  # its first death in this generation is recorded already
        target=named_after(held.queue, policy) if place is None else place,
        tag=held.tag,
        must_exist=not policy.auto_create_dead_letter_resources,
    )
    carry_out(runtime, held, transition)


def carry_out(runtime: Runtime, held: Held, transition: Any, event: Event | None = None) -> None:
    """Have the outbox move a message that has no Celery request. `event` is what the transition records, for metrics and traces."""
    on_answer = runtime.answer_callback(held, event)

    def answered(answer: Answer) -> None:
        runtime.owner.drop(held.tag)
        if on_answer is not None:
            on_answer(answer)

    runtime.outbox.carry_out(held.tag, transition, answered)
