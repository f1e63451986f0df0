"""Recovery: what becomes of a message that a dead worker held.

Where its start was recorded, the crash counts against it, and its policy decides with reason `worker_lost`. Where it was not,
nothing is counted, for nobody can tell whether it ran: it goes back to where it was taken from, as a suspect, and from now on its
starts are recorded. Either way the books learn that it may have run twice. A message that was acknowledged before it ran
(`acks_late=False`) has died, and is not run again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redelivery.errors import EnvelopeError

from ..messages.envelope import ANNOUNCED, HEADER, Attempt, Envelope, Failed
from ..messages.events import Outcome, Reason
from ..messages.recording import about, recorded_id
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
#: A time that a start is recorded as, in milliseconds; other brokers record a start by its name.
TIME = re.compile(r"[0-9]{1,15}")
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
        _move(runtime.telling(None, arrived), lambda: transport.acknowledge("", arrived))
    case = _Case(runtime, replace(held, seen_ms=now_ms), message, worker)
    if started is None:
        return case.release(is_suspect=is_suspect)
    return case.decide(started)


def handed_over_again(headers: dict[str, Any], held: Held, worker: str = "", *, delay_ms: int = 0, **facts: Any) -> Event:
    """The event of a message that a dead worker held, and that goes on."""
    said: dict[str, Any] = {"reason": Reason.WORKER_LOST, "worker": worker, "exception": LOST.type, "fingerprint": LOST.fingerprint}
    return about(headers, held.queue, held.raw, Outcome.REDELIVERY_SCHEDULED, delay_ms=delay_ms, **said, **facts)


def _move(told: Callable[[Answer], None] | None, transition: Callable[[], Answer]) -> Answer:
    """The answer to a transition. Who listens is told of it, too, but not of what another one has carried out."""
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
        # Without atomic moves the copy must not run, and kill its worker, before the original is acknowledged.
        delay_ms = 0 if Capability.ATOMIC_MOVES in self.runtime.transport.capabilities else MAX_GAP_MS
        event = self._going_on(delay_ms)
        told = self.runtime.telling(self.held, event)
        said: dict[str, Any] = {"seen_ms": self.held.seen_ms, "suspect": is_suspect, "lost": self._trace}
        again = redelivered(self.message, self.held.queue, attempt=None, **said)
        return self._defer(again, event, told, delay_ms=delay_ms, first=True)

    def decide(self, started: str) -> Answer:
        """It had begun: the crash counts, and its policy decides; what was acknowledged before it ran has died."""
        headers, held = self.message["headers"], self.held
        envelope, decider = Envelope.of(headers), Decider(self.runtime, str(headers.get("task")))
        facts = DeliveryFacts.of(held, envelope, headers)
        if started == ACCEPTED:
            return self._bury(decider.end(facts, Reason.WORKER_LOST, "acknowledged before it ran"))
        began = {"started_ms": int(started)} if TIME.fullmatch(started) else {}
        decided = decider.decide(facts, None, Reason.WORKER_LOST)
        if not isinstance(decided, Redeliver):
            return self._bury(decided, **began)
        delay_ms = round(decided.delay * 1000)
        event = self._going_on(delay_ms, **began)
        told = self.runtime.telling(held, event)
        due_ms, attempt = held.seen_ms + delay_ms if delay_ms else None, self._attempt(delay_ms)
        again = redelivered(self.message, held.queue, seen_ms=held.seen_ms, attempt=attempt, crash=True, due_ms=due_ms)
        return self._defer(again, event, told, delay_ms=delay_ms, pace=self.runtime.policies.pace_of(held.queue))

    def _going_on(self, delay_ms: int, **facts: Any) -> Event | None:
        """The event of what is delivered again; a letter's life has ended, and what its handler does is no step of it."""
        headers = self.message["headers"]
        event = handed_over_again(headers, self.held, self.worker, delay_ms=delay_ms, **facts)
        return None if Envelope.of(headers).is_letter else event

    def _defer(self, again: dict[str, Any], event: Event | None, told: Callable[[Answer], None] | None, **how: Any) -> Answer:
        held, transport, raw = self.held, self.runtime.transport, sealed(again)
        how |= {"task_id": recorded_id(self.message["headers"].get("id"), held.raw), "event": event}
        return _move(told, lambda: transport.defer(held.tag, held.list_name, raw, **how))

    def _bury(self, decided: DeadLetter | Discard, **facts: Any) -> Answer:
        runtime, held, message = self.runtime, self.held, self.message
        said: dict[str, Any] = {"worker": self.worker, "failed": LOST, **facts}
        death = Death.of(runtime, held.queue, held.raw, message, decided, **said)
        told = runtime.telling(held, death.recorded)
        death = replace(death, attempt=self._attempt())
        answer = _move(told, death.transition(runtime.transport, held, now_ms=held.seen_ms))
        if answer is Answer.DONE and not Envelope.of(message["headers"]).is_letter:  # another recoverer does not tell it again
            tell_failure(runtime.app, message, Reason.WORKER_LOST, LOST.message)
        if answer is Answer.DONE:
            death.log()
        return answer

    @property
    def _trace(self) -> str:
        """The span that the next delivery links to: of this one, where this worker held it, or of the move that ends it."""
        return self.held.trace or self.held.move_trace

    def _attempt(self, delay_ms: int | None = None) -> Attempt:
        return Attempt(at_ms=self.held.seen_ms, worker=self.worker, exception=LOST.text, delay_ms=delay_ms, trace=self._trace)
