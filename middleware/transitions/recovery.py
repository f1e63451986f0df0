"""Recovery: what becomes of a message that a dead worker held.

Where its start was recorded, the crash counts against it, and its policy decides with reason `worker_lost`. Where it was not,
nothing is counted, for nobody can tell whether it ran: it goes back to where it was taken from, as a suspect, and from now on its
starts are recorded. Either way the books learn that it may have run twice. A message that was acknowledged before it ran
(`acks_late=False`) has died, and is not run again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redelivery.errors import EnvelopeError

from ..messages.envelope import ANNOUNCED, HEADER, Attempt, Envelope, Failed
from ..messages.events import Outcome, Reason
from ..messages.recording import about
from ..messages.steps import opened, redelivered, sealed
from ..policy.decision import Redeliver
from ..ports import ACCEPTED, Answer, Capability
from .death import Death
from .facts import Decider, DeliveryFacts
from .notify import tell_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..messages.events import Event
    from ..policy.decision import DeadLetter, Discard
    from ..ports import Held
    from ..runtime import Runtime

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
    if Envelope.of(message["headers"]).is_letter:
        held = replace(held, list_name=transport.keys.list_name(held.queue))  # letters lie in one list, whatever their priority
    elif ANNOUNCED not in message["headers"] and HEADER not in message["headers"]:
        # The dead worker may not have come to record its arrival, and from here on it does not look like a first one.
        arrived = about(message["headers"], held.queue, held.raw, Outcome.RECEIVED, reason="unannounced", worker=worker)
        _told(runtime, None, arrived, lambda: transport.acknowledge("", arrived))
    case = _Case(runtime, replace(held, seen_ms=now_ms), message, worker)
    if started is None:
        return case.release(is_suspect=is_suspect)
    return case.decide(started)


def handed_over_again(headers: dict[str, Any], held: Held, worker: str = "", *, delay_ms: int = 0) -> Event:
    """The event of a message that a dead worker held, and that goes on."""
    said: dict[str, Any] = {"reason": Reason.WORKER_LOST, "worker": worker, "exception": LOST.type, "fingerprint": LOST.fingerprint}
    return about(headers, held.queue, held.raw, Outcome.REDELIVERY_SCHEDULED, delay_ms=delay_ms, **said)


def _told(runtime: Runtime, held: Held | None, event: Event | None, transition: Callable[[], Answer]) -> Answer:
    """The answer to a transition that records this event. Who listens is told, too, but not of what another one has carried out."""
    told = runtime.telling(held, event)
    answer = transition()
    if told is not None and answer is Answer.DONE:
        told(answer)
    return answer


@dataclass(frozen=True, slots=True)
class _Case:
    """One message of a dead worker, seen now."""

    runtime: Runtime
    held: Held
    message: dict[str, Any]
    worker: str

    def release(self, *, is_suspect: bool) -> Answer:
        """Nobody can tell whether it had begun: it goes back uncounted."""
        again = redelivered(self.message, self.held.queue, seen_ms=self.held.seen_ms, attempt=None, suspect=is_suspect)
        # Without atomic moves the copy must not run, and kill its worker, before the original is acknowledged.
        delay_ms = 0 if Capability.ATOMIC_MOVES in self.runtime.transport.capabilities else MAX_GAP_MS
        return self._defer(again, delay_ms, first=True)

    def decide(self, started: str) -> Answer:
        """It had begun: the crash counts, and its policy decides; what was acknowledged before it ran has died."""
        headers, held = self.message["headers"], self.held
        envelope, decider = Envelope.of(headers), Decider(self.runtime, str(headers.get("task")))
        facts = DeliveryFacts.of(held, envelope, headers)
        if started == ACCEPTED:
            return self._bury(decider.end(facts, Reason.WORKER_LOST, "acknowledged before it ran"))
        decided = decider.decide(facts, None, Reason.WORKER_LOST)
        if not isinstance(decided, Redeliver):
            return self._bury(decided)
        delay_ms = round(decided.delay * 1000)
        due_ms, attempt = held.seen_ms + delay_ms if delay_ms else None, self._attempt(delay_ms)
        again = redelivered(self.message, held.queue, seen_ms=held.seen_ms, attempt=attempt, crash=True, due_ms=due_ms)
        return self._defer(again, delay_ms, pace=self.runtime.policies.pace_of(held.queue))

    def _defer(self, again: dict[str, Any], delay_ms: int, **how: Any) -> Answer:
        headers, held = self.message["headers"], self.held
        event = handed_over_again(headers, held, self.worker, delay_ms=delay_ms)
        recorded = None if Envelope.of(headers).is_letter else event  # its life has ended: what its handler does is no step of it
        how |= {"task_id": event.task_id, "event": recorded, "delay_ms": delay_ms}
        transport, raw = self.runtime.transport, sealed(again)
        return _told(self.runtime, held, recorded, lambda: transport.defer(held.tag, held.list_name, raw, **how))

    def _bury(self, decided: DeadLetter | Discard) -> Answer:
        runtime, held, message = self.runtime, self.held, self.message
        said: dict[str, Any] = {"worker": self.worker, "failed": LOST, "attempt": self._attempt()}
        death = Death.of(runtime, held.queue, held.raw, message, decided, **said)
        answer = _told(runtime, held, death.recorded, death.transition(runtime.transport, held, now_ms=held.seen_ms))
        if answer is Answer.DONE and not Envelope.of(message["headers"]).is_letter:  # another recoverer does not tell it again
            tell_failure(runtime.app, message, Reason.WORKER_LOST, LOST.message)
        return answer

    def _attempt(self, delay_ms: int | None = None) -> Attempt:
        return Attempt(at_ms=self.held.seen_ms, worker=self.worker, exception=LOST.text, delay_ms=delay_ms)
