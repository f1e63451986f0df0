"""Admission: decides about a message that has arrived, before Celery sees it.

- A message that is not due for a while (its ETA, its queue's delivery delay) moves to the delay store, so that no worker keeps it
  in memory. It stays there until it is due or expires.
- A message that has been delivered too often dies before it runs.
- A dead letter, on a dead-letter queue that this worker consumes, goes to its handler, or its task runs in a new generation.
- A message that the broker delivers again is recovered here, on brokers without leases.
- Celery runs all other messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker import state

from redelivery.errors import EnvelopeError

from ..logs import error_text, log
from ..messages.envelope import ANNOUNCED, HEADER, Envelope, Failed, mapping
from ..messages.events import Outcome, Reason
from ..messages.recording import about
from ..messages.steps import deferred, iso, opened, sealed
from ..messages.ttl import DELIVERY_DELAY, due_ms, expiry_ms, milliseconds
from ..policy.destinations import letter_queues
from ..ports import Capability, Successor
from ..transitions.death import bury, bury_at_last, carry_out
from ..transitions.recovery import handed_over_again, recover
from ..transitions.redrive import redrive
from .deliveries.observer import append, queue_of, record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redelivery.settings import RedeliveryPolicy

    from ..messages.events import Event
    from ..ports import Held, Redeliveries
    from ..runtime import Runtime

#: A held message is checked this long after its expiry (milliseconds): Celery's timers may run a little early.
EXPIRED_MS = 50
#: The most broken connections that do not count against a held message. Further ones count: the task itself may break the
#: connection, or run longer than the broker allows (`consumer_timeout`).
FREE_CUTS = 3
#: The most uncounted deliveries of a message without a recorded start: if workers may not record starts, a task must not kill them
#: for ever. RabbitMQ 4 has the same limit for a quorum queue (`delivery-limit`).
MAX_UNCOUNTED = 20


class Arrivals:
    """The arrivals of one worker; `letter_handlers` maps dead-letter queues to the tasks that handle them."""

    def __init__(self, runtime: Runtime, letter_handlers: dict[str, str]) -> None:
        self.runtime = runtime
        self._letter_handlers = letter_handlers

    def held(self, message: Any) -> Held | None:
        """The held message; None if Celery alone holds it."""
        held: Held | None = getattr(message, "held", None)
        if held is not None or not self.runtime.enforces:
            return held
        return self.runtime.owner.take(message)

    def leave_alone(self, held: Held | None) -> None:
        """Let Celery alone end this message, on its own channel."""
        if held is not None and not self.runtime.has_leases:
            self.runtime.owner.drop(held.tag)

    def is_enabled(self, message: Any, held: Held) -> bool:
        """Whether redelivery ends this message; otherwise Celery alone does."""
        headers = message.headers
        return self.runtime.policies.is_enabled(str(headers.get("task")) if isinstance(headers, dict) else "", held.queue)

    def observe(self, message: Any) -> None:
        """Record the arrival of a message that Celery alone runs, unless the message is recorded already."""
        headers = message.headers
        if isinstance(headers, dict) and isinstance(headers.get("id"), str) and HEADER not in headers:
            self._note_arrival(headers, message.properties, queue_of(message), headers["id"].encode())

    def note_end(self, message: Any, reason: Reason) -> None:
        """Record that Celery has dropped the message."""
        headers = message.headers
        if isinstance(headers, dict) and isinstance(headers.get("id"), str):
            record(self.runtime, headers, queue_of(message), Outcome.DISCARDED, reason=reason)

    def has_left(self, message: Any, held: Held) -> bool:
        """Whether the message went back, to the delay store or to its dead-letter queue, so that Celery must not run it."""
        known = self.runtime.transport.redeliveries if held.handed_over_before else None
        if known is None:
            return self._must_stop(message, held)

        def then(successor: Successor, events: Sequence[Event]) -> None:
            if successor is Successor.UNKNOWN:
                self._recover(message, held, known)
            else:
                self._end_copy(message, held, events, is_recorded=successor is Successor.RECORDED)

        headers = mapping(message.headers)
        policy = self._policy_for(headers, held)
        known.ask_moved(held, letter_queues(Envelope.of(headers), held.queue, policy), then)
        return True

    def _must_stop(self, message: Any, held: Held) -> bool:
        headers = message.headers
        if not isinstance(headers, dict):
            return False
        known = Envelope.of(headers) if HEADER in headers else None
        if known is not None and known.is_letter:
            return self._dispose_of_letter(message, held, known)
        if headers.get(HEADER) is None:
            self._note_arrival(headers, message.properties, held.queue, held)
        if not _is_sound(headers):
            failed = Failed(type="redelivery.InvalidHeaders", message="timelimit or retries is not a number", fingerprint="headers")
            bury(self.runtime, held, Reason.INVALID, failed, is_reported=False)
            return True
        eta, envelope = headers.get("eta"), headers.get(HEADER)
        if eta is None and envelope is None and not self.runtime.policies.keeps_time and DELIVERY_DELAY not in headers:
            return False
        known = Envelope.of(headers) if known is None else known
        if known.undelivered is not None:
            bury_at_last(self.runtime, held, known, str(headers.get("task")))
            return True
        return self._must_wait_or_die(message, held, known)

    def _must_wait_or_die(self, message: Any, held: Held, known: Envelope) -> bool:
        headers = message.headers
        policy = self._policy_for(headers, held)
        if headers.get("id") not in state.revoked and self._defer(held, message, known, policy):
            return True
        if 0 <= policy.most_deliveries <= known.attempt and known.attempt:
            failed = Failed(type="redelivery.Exhausted", message=f"{known.attempt} deliveries", fingerprint="exhausted")
            bury(self.runtime, held, Reason.EXHAUSTED, failed, is_reported=False)
            return True
        return False

    def _policy_for(self, headers: dict[str, Any], held: Held) -> RedeliveryPolicy:
        return self.runtime.policies.policy_for(held.queue, str(headers.get("task")))

    def _end_copy(self, message: Any, held: Held, events: Sequence[Event], *, is_recorded: bool) -> None:
        """End a message that was moved already: its worker died before the acknowledgement, or before the record."""
        log.info("message.moved_already", tag=held.tag, queue=held.queue, times=held.handed_over_before)
        headers = mapping(message.headers)
        if not is_recorded and not events and not Envelope.of(headers).is_letter:
            events = [handed_over_again(headers, held)]
        for event in events[:-1]:
            self.runtime.transport.acknowledge("", event)
        self.runtime.transport.acknowledge(held.tag, events[-1] if events else None)
        self.runtime.owner.drop(held.tag)

    def _recover(self, message: Any, held: Held, redeliveries: Redeliveries) -> None:
        """Recover a message of a dead worker that the broker delivers again, as `workers.duties.recoverer` does with leases.

        The first time it is unknown whether the message had begun; later starts are recorded. If this worker's own connection
        broke, the redelivery does not prove a crash: then the first few times do not count.
        """
        headers = mapping(message.headers)
        policy, known = self._policy_for(headers, held), Envelope.of(headers)
        uncounted = known.delivery - known.attempt
        is_innocent = held.was_cut and uncounted < FREE_CUTS
        is_recorded = known.suspect or policy.persist_delivery_count == "always"
        started = redeliveries.recorded_start(held) if is_recorded else None
        if started is None and uncounted >= MAX_UNCOUNTED:
            started = ""
        counts = started is not None and not is_innocent
        log.info("message.handed_over_again", tag=held.tag, queue=held.queue, times=held.handed_over_before, counts=counts)
        started, is_suspect = started if counts else None, known.suspect or not is_innocent
        recover(self.runtime, held, started=started, worker="", now_ms=held.seen_ms, is_suspect=is_suspect)
        self.runtime.owner.drop(held.tag)

    def _dispose_of_letter(self, message: Any, held: Held, letter: Envelope) -> bool:
        """Hand a dead letter to its queue's handler; without a handler, its task runs in a new generation."""
        name = self._letter_handlers.get(held.queue)
        if name is None:
            self._redrive_in_place(held)
            return True
        limit = self.runtime.policies.policy_for(held.queue, name).most_deliveries
        if 0 <= limit <= letter.handled:
            failed = Failed(type="redelivery.Exhausted", message=f"{letter.handled} deliveries to {name}", fingerprint="exhausted")
            bury(self.runtime, held, Reason.EXHAUSTED, failed)
            return True
        from .deliveries.letter_handler import call_for  # noqa: PLC0415 - few apps have one

        call_for(message, held.raw, name, self.runtime.app)
        return False

    def _redrive_in_place(self, held: Held) -> None:
        """Put a dead letter back to its queue as a task to run, in its next generation, recorded as redriven."""
        try:
            back = redrive(opened(held.raw), held.raw, held.queue, worker=self.runtime.worker)
        except EnvelopeError as exc:
            bury(self.runtime, held, Reason.INVALID, self.runtime.failed_of(exc))
            return
        event, raw, transport = back.event, back.raw, self.runtime.transport
        carry_out(
            self.runtime,
            held,
            lambda: transport.defer(held.tag, held.list_name, raw, task_id=event.task_id, event=event, delay_ms=0, first=True),
            event,
        )

    def _note_arrival(self, headers: dict[str, Any], properties: Any, queue: str, of: bytes | Held) -> None:
        """Record an arrival that no event explains: its publication was not recorded, or another client put it back."""
        delivery_info = properties.get("delivery_info") if isinstance(properties, dict) else None
        was_restored = isinstance(delivery_info, dict) and delivery_info.get("redelivered") is True
        for reason, applies in (("unannounced", ANNOUNCED not in headers), ("redelivered", was_restored)):
            if applies:
                append(self.runtime, about(headers, queue, of, Outcome.RECEIVED, reason=reason, worker=self.runtime.worker))

    def _defer(self, held: Held, message: Any, known: Envelope, policy: RedeliveryPolicy) -> bool:
        """Move a message that is not due to the delay store, until it is due or expires; return whether it was moved."""
        headers, app = message.headers, self.runtime.app
        eta = headers.get("eta")
        eta_ms = milliseconds(eta, app) if eta is not None and eta != known.served_eta else None
        in_worker = Capability.BROKER_DELAYS not in self.runtime.transport.capabilities
        threshold_ms = 0 if in_worker else self.runtime.settings.eta_threshold * 1000
        wanted_ms = due_ms(headers, known, policy, seen_ms=held.seen_ms, eta_ms=eta_ms, eta_threshold_ms=threshold_ms)
        if wanted_ms is None:
            return False
        expires_ms = milliseconds(headers.get("expires"), app)
        ends_ms = expiry_ms(headers, message.properties, known, policy, seen_ms=held.seen_ms, expires_ms=expires_ms)
        if ends_ms is not None and ends_ms <= held.seen_ms:
            return False  # expired: Celery's request asks its delivery, which ends it
        until_ms = wanted_ms if ends_ms is None else min(wanted_ms, ends_ms)
        if in_worker:  # as in Celery, the worker holds the message until it is due or has expired
            if until_ms == ends_ms:
                until_ms += EXPIRED_MS
            if until_ms != eta_ms:
                message.headers = {**headers, "eta": iso(until_ms)}
            return False
        raw = opened(held.raw)
        waiting = sealed(deferred(raw, held.queue, seen_ms=held.seen_ms, eta=None if wanted_ms == eta_ms else iso(wanted_ms)))
        event = about(raw["headers"], held.queue, held.raw, Outcome.DEFERRED, worker=self.runtime.worker)
        carry_out(
            self.runtime,
            held,
            lambda: self.runtime.transport.defer(
                held.tag, held.list_name, waiting, task_id=event.task_id, event=event, due_ms=until_ms
            ),
            event,
        )
        return True

    def on_garbage(self, held: Held, exc: Exception) -> None:
        """Bury a message that kombu could not decode."""
        log.error("message.undecodable", tag=held.tag, queue=held.queue, error=error_text(exc))
        try:
            message = opened(held.raw)
        except EnvelopeError:
            message = {"headers": {}, "properties": {}}
        if message["headers"].get(HEADER) is None:
            self._note_arrival(message["headers"], message["properties"], held.queue, held)  # with the same id as its death
        bury(self.runtime, held, Reason.UNDECODABLE, self.runtime.failed_of(exc))


def _is_sound(headers: dict[str, Any]) -> bool:
    """Whether the pool and the timers can use `timelimit` and `retries`, which Celery does not check."""
    limits, retries = headers.get("timelimit"), headers.get("retries")
    if limits is not None:
        if not isinstance(limits, (list, tuple)) or len(limits) != 2:  # noqa: PLR2004 - hard and soft
            return False
        if not all(each is None or isinstance(each, (int, float)) for each in limits):
            return False
    return retries is None or isinstance(retries, int)
