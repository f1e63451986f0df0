"""Recovery: what becomes of a message that a dead worker held.

Its start was recorded: the crash counts against it, and its policy decides, as after any failure, with reason `worker_lost`. It was
not: nobody can tell whether it ran, so nothing is counted; it goes back to where it was taken from, as a suspect, and from now on
its starts are recorded. Either way the books learn that it may have run twice. It was acknowledged before it ran
(`acks_late=False`): it has died, and nobody runs it again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redelivery.errors import EnvelopeError

from ..messages.events import Outcome, Reason
from ..messages.recording import about
from ..messages.steps import ANNOUNCED, HEADER, Attempt, Envelope, Failed, eligible_of, opened, redelivered, sealed
from ..policy import decision
from ..ports import ACCEPTED, Answer, Capability
from .death import Death, burial
from .notify import tell_failure

if TYPE_CHECKING:
    from ..messages.events import Event
    from ..policy.decision import Decision
    from ..ports import Held
    from ..runtime import Runtime

__all__ = ["handed_over_again", "recover"]

#: How long publishing a copy and acknowledging the original may be apart (milliseconds).
MAX_GAP_MS = 1000
LOST = Failed(type="celery.exceptions.WorkerLostError", message="the worker that held the message died", fingerprint="worker-lost")


def recover(runtime: Runtime, held: Held, *, started: str | None, worker: str, now_ms: int, is_suspect: bool = True) -> Answer:
    """Give one message of a dead worker a future; `started` says how its start was recorded (`Transport.recorded_start`).

    `is_suspect`: its starts are recorded from now on, for a worker may have died of it.
    A repeat is harmless: what has left already answers `ALREADY` or `REFUSED`.
    """
    transport = runtime.transport
    try:
        message = opened(held.raw)
    except EnvelopeError:
        return Answer.DONE if transport.release([held]) else Answer.ALREADY
    is_letter = Envelope.of(message["headers"]).is_letter  # its life has ended: what its handler does is no step of it
    if is_letter:
        held = replace(held, list_name=transport.keys.list_name(held.queue))  # letters lie in one list, whatever their priority
    if ANNOUNCED not in message["headers"] and HEADER not in message["headers"]:
        # The dead worker may not have come to record its arrival, and from here on it does not look like a first one.
        arrived = about(message["headers"], held, Outcome.RECEIVED, reason="unannounced", worker=worker)
        transport.acknowledge("", arrived)
    if started == ACCEPTED:
        return _lost(runtime, held, message, worker, now_ms)
    if started is not None:
        return _counted(runtime, held, message, worker, now_ms)
    again = redelivered(message, held.queue, seen_ms=now_ms, attempt=None, suspect=is_suspect)
    # Without atomic moves the copy must not run, and kill its worker, before the original is acknowledged.
    delay_ms = 0 if Capability.ATOMIC_MOVES in transport.capabilities else MAX_GAP_MS
    event = handed_over_again(message["headers"], held, worker, delay_ms=delay_ms)
    return transport.defer(
        held.tag,
        held.list_name,
        sealed(again),
        task_id=event.task_id,
        event=None if is_letter else event,
        delay_ms=delay_ms,
        first=True,
    )


def handed_over_again(headers: dict[str, Any], held: Held, worker: str = "", *, delay_ms: int = 0) -> Event:
    """The event of a message that was not counted, and goes on after its worker died."""
    return _event(headers, held, Outcome.REDELIVERY_SCHEDULED, worker, delay_ms=delay_ms)


def _counted(runtime: Runtime, held: Held, message: dict[str, Any], worker: str, now_ms: int) -> Answer:
    transport, headers = runtime.transport, message["headers"]
    envelope = Envelope.of(headers)
    policy = runtime.policies.policy_for(held.queue, str(headers.get("task")))
    first_seen = now_ms if envelope.first_seen_ms is None else envelope.first_seen_ms
    failure = decision.Failure(
        attempt=(envelope.handled if envelope.is_letter else envelope.attempt) + 1,
        age=max(now_ms - first_seen, 0) / 1000,
        cause=Reason.WORKER_LOST,
        eligible=eligible_of(headers),
    )
    waited = sum(each.get("delay") or 0 for each in envelope.attempts) / 1000
    decided = runtime.policies.decide(held.queue, str(headers.get("task")), policy, failure, idle_for=waited)
    if isinstance(decided, decision.Redeliver):
        delay_ms = round(decided.delay * 1000)
        attempt = Attempt(at_ms=now_ms, worker=worker, exception=f"{LOST.type}: {LOST.message}", delay_ms=delay_ms)
        due_ms = now_ms + delay_ms if delay_ms else None
        again = redelivered(message, held.queue, seen_ms=now_ms, attempt=attempt, crash=True, due_ms=due_ms)
        event = _event(headers, held, Outcome.REDELIVERY_SCHEDULED, worker, delay_ms=delay_ms)
        return transport.defer(
            held.tag,
            held.list_name,
            sealed(again),
            task_id=event.task_id,
            event=None if envelope.is_letter else event,
            delay_ms=delay_ms,
            pace=runtime.policies.pace_of(held.queue),
        )
    return _buried(runtime, held, message, decided, worker, now_ms)


def _lost(runtime: Runtime, held: Held, message: dict[str, Any], worker: str, now_ms: int) -> Answer:
    """It was acknowledged before its task ran (`acks_late=False`): nobody may run it again, but its end is recorded."""
    headers = message["headers"]
    policy = runtime.policies.policy_for(held.queue, str(headers.get("task")))
    ending = decision.ending(policy, Reason.WORKER_LOST, "acknowledged before it ran", eligible=eligible_of(headers))
    return _buried(runtime, held, message, ending, worker, now_ms)


def _buried(  # noqa: PLR0917 - the facts of one message
    runtime: Runtime, held: Held, message: dict[str, Any], decided: Decision, worker: str, now_ms: int
) -> Answer:
    assert not isinstance(decided, decision.Redeliver)  # noqa: S101 - the callers have looked
    transport, headers = runtime.transport, message["headers"]
    policy = runtime.policies.policy_for(held.queue, str(headers.get("task")))
    attempt = Attempt(at_ms=now_ms, worker=worker, exception=f"{LOST.type}: {LOST.message}")
    death = Death.of(decided, policy, Envelope.of(headers), held.queue, failed=LOST, attempt=attempt)
    event = _event(headers, held, death.outcome, worker, reason=death.reason)
    answer = burial(transport, held, message, event, death, now_ms=now_ms)()
    if answer is Answer.DONE and not Envelope.of(headers).is_letter:  # whoever else recovers it tells of it no second time
        tell_failure(runtime.app, message, Reason.WORKER_LOST, LOST.message)
    return answer


def _event(headers: dict[str, Any], held: Held, outcome: Outcome, worker: str, **facts: Any) -> Event:
    said = {"reason": Reason.WORKER_LOST, "exception": LOST.type, "fingerprint": LOST.fingerprint, **facts}
    return about(headers, held, outcome, worker=worker, **said)
