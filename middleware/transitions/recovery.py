"""Recovery of a message that a dead worker held.

If its start was recorded, the crash counts as an attempt, and its policy decides with reason `worker_lost`. Without a record it is
unknown whether the message ran, and nothing is counted: it goes back to its queue as a suspect, and its next starts are recorded.
In both cases an event records that it may have run twice. A message that was acknowledged before it ran (`acks_late=False`) dies,
and does not run again.
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
from .notify import report_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..messages.events import Event
    from ..policy.decision import DeadLetter, Discard
    from ..ports import Held
    from ..runtime import Runtime

#: The longest time between the publication of a copy and the acknowledgement of the original (milliseconds).
MAX_GAP_MS = 1000
#: A recorded start that is a time in milliseconds; some brokers record a name instead.
TIME = re.compile(r"[0-9]{1,15}")
LOST = Failed(type="celery.exceptions.WorkerLostError", message="the worker that held the message died", fingerprint="worker-lost")


def recover(runtime: Runtime, held: Held, *, started: str | None, worker: str, now_ms: int, is_suspect: bool = True) -> Answer:
    """Move one message of a dead worker on; `started` is its recorded start (`Redeliveries.recorded_start`), if there is one.

    `is_suspect`: its next starts are recorded, because the worker may have died of it. A second call is harmless: it answers
    `ALREADY` or `REFUSED`.
    """
    transport = runtime.transport
    try:
        message = opened(held.raw)
    except EnvelopeError:
        return Answer.DONE if transport.release([held]) else Answer.ALREADY
    envelope = Envelope.of(message["headers"])
    if envelope.is_letter:
        held = replace(held, list_name=transport.keys.list_name(held.queue))  # dead letters of all priorities are in one list
    elif ANNOUNCED not in message["headers"] and HEADER not in message["headers"]:
        # The worker may have died before it recorded the arrival; from here on the message looks like a later delivery.
        arrived = about(message["headers"], held.queue, held.raw, Outcome.RECEIVED, envelope, reason="unannounced", worker=worker)
        _move(runtime.answer_callback(None, arrived), lambda: transport.acknowledge("", arrived))
    case = _Case(runtime, replace(held, seen_ms=now_ms), message, envelope, worker)
    return case.release(is_suspect=is_suspect) if started is None else case.decide(started)


def handed_over_again(headers: dict[str, Any], held: Held, worker: str = "", *, delay_ms: int = 0, **facts: Any) -> Event:
    """The event of a message that a dead worker held, and that is delivered again."""
    facts |= {"reason": Reason.WORKER_LOST, "worker": worker, "exception": LOST.type, "fingerprint": LOST.fingerprint}
    return about(headers, held.queue, held.raw, Outcome.REDELIVERY_SCHEDULED, delay_ms=delay_ms, **facts)


def _move(on_done: Callable[[Answer], None] | None, transition: Callable[[], Answer]) -> Answer:
    """Carry a transition out. `on_done` is called only if this call, and not another recoverer, has moved the message."""
    answer = transition()
    if on_done is not None and answer is Answer.DONE:
        on_done(answer)
    return answer


@dataclass(frozen=True, slots=True)
class _Case:
    """One message of a dead worker; its `seen_ms` is now."""

    runtime: Runtime
    held: Held
    message: dict[str, Any]
    envelope: Envelope
    worker: str

    def release(self, *, is_suspect: bool) -> Answer:
        """Give the message back uncounted: it is unknown whether it had begun."""
        # Without atomic moves the copy must not run, and perhaps kill its worker, before the original is acknowledged.
        delay_ms = 0 if Capability.ATOMIC_MOVES in self.runtime.transport.capabilities else MAX_GAP_MS
        event, held = self._redelivery_event(delay_ms), self.held
        on_done = self.runtime.answer_callback(held, event)
        again = redelivered(self.message, held.queue, attempt=None, seen_ms=held.seen_ms, suspect=is_suspect, lost=self._trace)
        return self._defer(again, event, on_done, delay_ms=delay_ms, first=True)

    def decide(self, started: str) -> Answer:
        """Count the crash of a message that had begun, and let its policy decide. If it was acknowledged early, it dies."""
        headers, held = self.message["headers"], self.held
        decider, facts = Decider(self.runtime, str(headers.get("task"))), DeliveryFacts.of(held, self.envelope, headers)
        if started == ACCEPTED:
            return self._bury(decider.end(facts, Reason.WORKER_LOST, "acknowledged before it ran"))
        began = {"started_ms": int(started)} if TIME.fullmatch(started) else {}
        decided = decider.decide(facts, None, Reason.WORKER_LOST)
        if not isinstance(decided, Redeliver):
            return self._bury(decided, **began)
        delay_ms = round(decided.delay * 1000)
        event = self._redelivery_event(delay_ms, **began)
        on_done = self.runtime.answer_callback(held, event)
        due_ms, attempt = held.seen_ms + delay_ms if delay_ms else None, self._attempt(delay_ms)
        again = redelivered(self.message, held.queue, seen_ms=held.seen_ms, attempt=attempt, crash=True, due_ms=due_ms)
        return self._defer(again, event, on_done, delay_ms=delay_ms, pace=self.runtime.policies.pace_of(held.queue))

    def _redelivery_event(self, delay_ms: int, **facts: Any) -> Event | None:
        """None for a dead letter: a run of its handler is not recorded for its task."""
        event = handed_over_again(self.message["headers"], self.held, self.worker, delay_ms=delay_ms, **facts)
        return None if self.envelope.is_letter else event

    def _defer(self, again: dict[str, Any], event: Event | None, on_done: Callable[[Answer], None] | None, **how: Any) -> Answer:
        held, transport, raw = self.held, self.runtime.transport, sealed(again)
        how |= {"task_id": recorded_id(self.message["headers"].get("id"), held.raw), "event": event}
        return _move(on_done, lambda: transport.defer(held.tag, held.list_name, raw, **how))

    def _bury(self, decided: DeadLetter | Discard, **facts: Any) -> Answer:
        runtime, held, message = self.runtime, self.held, self.message
        facts |= {"envelope": self.envelope, "worker": self.worker, "failed": LOST}
        death = Death.of(runtime, held.queue, held.raw, message, decided, **facts)
        on_done = runtime.answer_callback(held, death.recorded)  # it sets `move_trace`, which the attempt needs
        death = replace(death, attempt=self._attempt())
        answer = _move(on_done, death.transition(runtime.transport, held, now_ms=held.seen_ms))
        if answer is Answer.DONE:  # another recoverer reports its own move
            if not self.envelope.is_letter:
                report_failure(runtime.app, message, Reason.WORKER_LOST, LOST.message)
            death.log()
        return answer

    @property
    def _trace(self) -> str:
        """The span that the next delivery links to: this delivery's if this worker held it, otherwise this move's."""
        return self.held.trace or self.held.move_trace

    def _attempt(self, delay_ms: int | None = None) -> Attempt:
        return Attempt(at_ms=self.held.seen_ms, worker=self.worker, exception=LOST.text, delay_ms=delay_ms, trace=self._trace)
