"""Ingress: what arrives, looked at before Celery does.

A consumer bootstep. It arms the receiving of the worker's task channel, wraps every task and its request class, and puts itself in
front of Celery's message handler:

- a message that is not due for a while (its ETA, its queue's delivery delay) moves to the delay store, so that no worker keeps it
  in memory; until it expires, where that is earlier;
- one that has been delivered too often is a death before it runs;
- a dead letter, on a dead-letter queue that this worker consumes, goes to its handler, or lives once more;
- one that is no task, or cannot be read, or names a task that nobody has, is a death with its bytes kept: Celery would drop it.

Whatever else goes wrong with one message is its own death, not its neighbours' and not the worker's.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from celery import bootsteps, signals
from celery.utils.imports import symbol_by_name
from celery.worker import state
from celery.worker.request import Request
from kombu.exceptions import ContentDisallowed
from redis.exceptions import RedisError

from redelivery.errors import BrokerError, EnvelopeError, RedeliveryError
from redelivery.middleware import decision
from redelivery.middleware.attempt import failed_of
from redelivery.middleware.bodies import without_chord
from redelivery.middleware.contradictions import contradictions
from redelivery.middleware.departure import about, burial, burial_at_last, milliseconds, raw_id, resting_place, tell_death, wrapped
from redelivery.middleware.egress import Egress, request_class
from redelivery.middleware.envelope import ANNOUNCED, HEADER, Envelope, Failed, deferred, eligible_of, iso, opened, redriven, sealed
from redelivery.middleware.explicit import settle
from redelivery.middleware.failure import tell_failure
from redelivery.middleware.handover import hand_over
from redelivery.middleware.lifetime import DELIVERY_DELAY, due_ms, expiry_ms
from redelivery.middleware.logs import log
from redelivery.middleware.observing import queue_of, record
from redelivery.middleware.outcomes import Outcome, Reason
from redelivery.middleware.recovery import recover
from redelivery.middleware.report import lighten
from redelivery.middleware.startup import announce, check_dead_letter_queues, check_policies
from redelivery.middleware.suspects import PAUSE, SET_BACK_MS, Suspects, must_be_alone
from redelivery.middleware.task import guard
from redelivery.middleware.transports.base import Held
from redelivery.middleware.transports.fallback import is_known, taken_by_kombu
from redelivery.middleware.transports.receiver import Receiver
from redelivery.middleware.transports.receiving import Receiving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.worker.consumer import Consumer

    from redelivery.middleware.install import Redelivery
    from redelivery.settings import RedeliveryPolicy

__all__ = ["Ingress"]


class Ingress(bootsteps.StartStopStep):
    """The bootstep."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    label = "redelivery"

    def __init__(self, consumer: Consumer, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.install: Redelivery = consumer.app.redelivery
        self._hostname = consumer.hostname
        with _refusing():
            check_policies(self.install)
        _refuse(contradictions(self.install))
        self._consumer = consumer
        self._suspects = Suspects()
        self._letter_handlers: dict[str, str] = {}
        if self.install.letter_handlers:
            from redelivery.middleware.handling import handlers_of  # noqa: PLC0415 - few apps have one

            with _refusing():
                self._letter_handlers = handlers_of(self.install)
        self.install.shares_process = "prefork" not in type(consumer.pool).__module__
        self.install.is_ending = False
        for task in consumer.app.tasks.values():
            if self.install.enforces:
                settle(task)
                guard(task, self.install)
            task.Request = request_class(symbol_by_name(task.Request) if task.Request is not None else Request)
        consumer.update_strategies = self._lightening(consumer)
        signals.worker_process_init.connect(self._lighten, weak=False, dispatch_uid=f"redelivery:{id(consumer.app)}")
        consumer.create_task_handler = self._in_front_of(consumer.create_task_handler)
        consumer.on_task_request = self._starting(consumer.on_task_request)
        consumer.on_decode_error = self._dying(consumer.on_decode_error, Reason.UNDECODABLE, at=0)
        consumer.on_unknown_message = self._dying(consumer.on_unknown_message, Reason.INVALID, at=1)
        consumer.on_unknown_task = self._dying(consumer.on_unknown_task, Reason.UNKNOWN_TASK, at=1)
        consumer.on_invalid_task = self._dying(consumer.on_invalid_task, Reason.INVALID, at=1)

    def _lightening(self, consumer: Consumer) -> Callable[[], None]:
        """Celery's building of the strategies and tracers, and ours after it."""
        update = consumer.update_strategies

        def update_strategies() -> None:
            update()
            lighten(consumer.app, self.install, consumer.hostname)

        return update_strategies

    def _lighten(self, **_: Any) -> None:
        """A child of the pool has built its tracers."""
        lighten(self.install.app, self.install, str(self._hostname))

    def start(self, consumer: Consumer) -> None:
        """The consumer has connected, for the first time or again."""
        is_first = not self.install.worker
        self.install.begin(consumer.hostname)
        if not self.install.has_leases and self.install.enforces:
            self._attach(consumer)
        channel = consumer.task_consumer.channel
        is_ours = self.install.enforces and isinstance(channel, Receiving) and self.install.settings.fast_receive and is_known()
        if is_first:
            with _refusing():
                check_dead_letter_queues(self.install)
            announce(self.install, consumer, is_ours=is_ours)
        if is_ours:
            pool = consumer.pool
            channel.arm(Receiver(self.install.owner, self._limit(consumer), lambda: 2 * int(pool.num_processes), self._on_garbage))

    def _attach(self, consumer: Consumer) -> None:
        """Where the broker itself gives back what a dead worker held: from here on, this channel's deliveries are ours."""
        transport: Any = self.install.transport
        try:
            transport.attach(consumer)
        except BrokerError as exc:  # as Celery's consumer knows it: it connects again
            raise ConnectionError(str(exc)) from exc

    def stop(self, consumer: Consumer) -> None:
        """The consumer has stopped, or lost its connection: nothing is given back yet, tasks are running."""

    def shutdown(self, consumer: Consumer) -> None:  # noqa: ARG002 - Celery's signature
        """The pool has stopped: give back what has not run."""
        self.install.end()

    # in front of Celery's handler

    def _in_front_of(self, create: Callable[[], Any]) -> Callable[[], Any]:
        def create_task_handler(*args: Any, **kwargs: Any) -> Any:
            handle = create(*args, **kwargs)

            def on_task_received(message: Any) -> Any:
                held = self._held(message)
                if held is None or not self._is_enabled(message, held):
                    self._leave_alone(held)
                    self._observe_arrival(message)
                    return handle(message)
                try:
                    if (held.handed_over_before and self._recover(message, held)) or self._must_stop(message, held):
                        return None
                    return self._pause(held, partial(handle, message)) if held.pauses else handle(message)
                except (RedisError, ConnectionError):  # not kombu's connection errors: they include KeyError
                    raise
                except Exception as exc:  # noqa: BLE001 - the message is anybody's
                    if state.should_terminate:  # what the handler of a signal raises comes out of what it has interrupted
                        log.exception("message.interrupted", tag=held.tag, queue=held.queue)
                        return None
                    log.exception("message.invalid", tag=held.tag, queue=held.queue)
                    if held.request is None or not (held.request.is_running() or held.request.was_handed_over()):
                        self._die(held, Reason.INVALID, failed_of(exc), told=False)
                    return None

            return on_task_received

        return create_task_handler

    def _held(self, message: Any) -> Held | None:
        """The message as we hold it, whoever received it; None where it is Celery's alone."""
        held: Held | None = getattr(message, "held", None)
        if held is not None or not self.install.enforces:
            return held
        owner: Any = self.install.owner
        taken: Held | None = taken_by_kombu(message, owner) if self.install.has_leases else owner.take(message)
        return taken

    def _leave_alone(self, held: Held | None) -> None:
        """Celery alone ends this message, on its own channel."""
        if held is not None and not self.install.has_leases:
            self.install.owner.drop(held.tag)

    def _recover(self, message: Any, held: Held) -> bool:
        """The broker hands over again what a worker held that is gone: what `workers.recoverer` does where messages are leased.

        Nobody can tell whether it had begun, so the first times do not count; from then on each does, for no start can be recorded
        here, and a worker holds one such message at a time (`suspects`).
        """
        headers = message.headers if isinstance(message.headers, dict) else {}
        policy = self.install.policy_for(held.queue, str(headers.get("task")))
        counts = must_be_alone(Envelope.of(headers)) or policy.persist_delivery_count == "always"
        log.info("message.handed_over_again", tag=held.tag, queue=held.queue, times=held.handed_over_before, counts=counts)
        recover(self.install, held, started="" if counts else None, worker="", now_ms=held.seen_ms)
        self.install.owner.drop(held.tag)
        return True

    def _observe_arrival(self, message: Any) -> None:
        headers = message.headers
        if isinstance(headers, dict) and isinstance(headers.get("id"), str) and HEADER not in headers:
            queue = queue_of(message)
            self._note_arrival(headers, message.properties, Held("", queue, queue, headers["id"].encode(), 0))

    def _must_stop(self, message: Any, held: Held) -> bool:
        """Whether the message has left already: to the delay store, or to its dead-letter queue."""
        headers = message.headers
        if not isinstance(headers, dict):
            return False
        known = Envelope.of(headers) if HEADER in headers else None
        if known is not None and known.is_letter:
            return self._meet_letter(message, held, known)
        if headers.get(HEADER) is None:
            self._note_arrival(headers, message.properties, held)
        if not _is_sound(headers):
            failed = Failed(type="redelivery.InvalidHeaders", message="timelimit or retries is no number", fingerprint="headers")
            self._die(held, Reason.INVALID, failed, told=False)
            return True
        eta, envelope = headers.get("eta"), headers.get(HEADER)
        if eta is None and envelope is None and not self.install.keeps_time and DELIVERY_DELAY not in headers:
            return False
        known = Envelope.of(headers) if known is None else known
        if known.undelivered is not None:
            self._bury_at_last(held, known)
            return True
        return self._must_wait_or_die(message, held, known)

    def _must_wait_or_die(self, message: Any, held: Held, known: Envelope) -> bool:
        headers = message.headers
        policy = self.install.policy_for(held.queue, str(headers.get("task")))
        if headers.get("id") not in state.revoked and self._defer(held, message, known, policy):
            return True
        if 0 <= policy.max_delivery_attempts <= known.attempt and known.attempt:
            failed = Failed(type="redelivery.Exhausted", message=f"{known.attempt} deliveries", fingerprint="exhausted")
            self._die(held, Reason.EXHAUSTED, failed, told=False)
            return True
        return known.suspect and not self.install.has_leases and must_be_alone(known) and self._set_back(held, known)

    def _set_back(self, held: Held, known: Envelope) -> bool:
        """Whether this suspect waits for another one that is held here: it comes again a little later, uncounted (`suspects`)."""
        if not self._suspects.must_wait(held, self.install.owner):
            held.pauses = True
            return False
        transport, task_id = self.install.transport, about({}, held, Outcome.DEFERRED).task_id
        log.debug("suspect.set_back", tag=held.tag, queue=held.queue, deliveries=known.delivery)
        back = partial(transport.defer, held.tag, held.list_name, held.raw, task_id=task_id, event=None, delay_ms=SET_BACK_MS)
        self._carry_out(held, back)
        return True

    def _pause(self, held: Held, handle: Callable[[], Any]) -> None:
        """Let this suspect run when whatever has come beside it has left, so that a crash finds nothing half moved."""
        install, transport = self.install, cast("Any", self.install.transport)

        def begin() -> None:
            if held.tag not in install.owner.held:
                return  # its channel is gone: the broker delivers it again
            transport.drain(PAUSE)
            try:
                handle()
            except Exception as exc:  # noqa: BLE001 - the message is anybody's
                log.exception("message.invalid", tag=held.tag, queue=held.queue)
                if held.request is None:
                    self._die(held, Reason.INVALID, failed_of(exc), told=False)

        self._consumer.timer.call_after(PAUSE, begin)

    def _meet_letter(self, message: Any, held: Held, letter: Envelope) -> bool:
        """A dead-letter queue is consumed: its handler decides, or, where it has none, the task runs in a new generation."""
        name = self._letter_handlers.get(held.queue)
        if name is None:
            self._revive(held)
            return True
        limit = self.install.policy_for(held.queue, name).max_delivery_attempts
        if 0 <= limit <= letter.handled:
            failed = Failed(type="redelivery.Exhausted", message=f"{letter.handled} deliveries to {name}", fingerprint="exhausted")
            self._die(held, Reason.EXHAUSTED, failed)
            return True
        from redelivery.middleware.handling import call_for  # noqa: PLC0415 - few apps have one

        call_for(message, held.raw, name, self.install.app)
        return False

    def _revive(self, held: Held) -> None:
        """Put a letter back to where it was taken from as a message that lives: its next generation, recorded as redriven."""
        message = opened(held.raw)
        try:
            again = redriven(without_chord(message)[0], held.queue, on_purpose=False)
        except EnvelopeError as exc:
            self._die(held, Reason.INVALID, failed_of(exc))
            return
        event = about(again["headers"], held, Outcome.REDRIVEN, worker=self.install.worker)
        event, raw, transport = replace(event, attempt=0, delivery=0), sealed(again), self.install.transport
        self._carry_out(
            held,
            lambda: transport.defer(held.tag, held.list_name, raw, task_id=event.task_id, event=event, delay_ms=0, first=True),
        )

    def _note_arrival(self, headers: dict[str, Any], properties: Any, held: Held) -> None:
        """Record what the books could not know otherwise: nobody recorded the publication, or some other client put it back."""
        delivery_info = properties.get("delivery_info") if isinstance(properties, dict) else None
        was_restored = isinstance(delivery_info, dict) and delivery_info.get("redelivered") is True
        is_announced = ANNOUNCED in headers
        reasons = [name for name, holds in (("unannounced", not is_announced), ("redelivered", was_restored)) if holds]
        for reason in reasons:
            event = about(headers, held, Outcome.RECEIVED, reason=reason, worker=self.install.worker)
            self.install.outbox.carry_out("", partial(self.install.transport.acknowledge, "", event), _nothing)

    def _defer(self, held: Held, message: Any, known: Envelope, policy: RedeliveryPolicy) -> bool:
        """Whether the message has gone to the delay store: until it is due, or until it expires, where that is earlier."""
        headers, app = message.headers, self.install.app
        eta = headers.get("eta")
        eta_ms = milliseconds(eta, app) if eta is not None and eta != known.served_eta else None
        threshold_ms = self.install.settings.eta_threshold * 1000
        wanted_ms = due_ms(headers, known, policy, seen_ms=held.seen_ms, eta_ms=eta_ms, eta_threshold_ms=threshold_ms)
        if wanted_ms is None:
            return False
        expires_ms = milliseconds(headers.get("expires"), app)
        ends_ms = expiry_ms(headers, message.properties, known, policy, seen_ms=held.seen_ms, expires_ms=expires_ms)
        if ends_ms is not None and ends_ms <= held.seen_ms:
            return False  # expired: Celery asks the request, and egress ends it
        until_ms = wanted_ms if ends_ms is None else min(wanted_ms, ends_ms)
        raw = opened(held.raw)
        waiting = sealed(deferred(raw, held.queue, seen_ms=held.seen_ms, eta=None if wanted_ms == eta_ms else iso(wanted_ms)))
        event = about(raw["headers"], held, Outcome.DEFERRED, worker=self.install.worker)
        self._carry_out(
            held,
            lambda: self.install.transport.defer(
                held.tag,
                held.list_name,
                waiting,
                task_id=event.task_id,
                event=event,
                due_ms=until_ms,
            ),
        )
        return True

    def _starting(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Stand by when a request is handed to the pool (`handover`)."""

        def on_task_request(request: Any) -> Any:
            if not isinstance(request, Egress):
                return handle(request)
            if request.is_held:
                hand_over(request, self.install)
            return handle(request)

        return on_task_request

    def _limit(self, consumer: Consumer) -> Callable[[], int]:
        """How many messages `worker_disable_prefetch` allows."""
        if not consumer.app.conf.worker_disable_prefetch:
            return lambda: 64

        def limit() -> int:
            processes = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
            return max(int(processes) - self._occupied(), 0)

        return limit

    def _occupied(self) -> int:
        """How many messages have a place of their own: all that are held, but for those that leave or wait for an ETA."""
        leaving = self.install.outbox.tags() if len(self.install.outbox) else set()
        requests = [held.request for tag, held in list(self.install.owner.held.items()) if tag not in leaving]
        apart = [state.reserved_requests, getattr(state, "scheduled_requests", ())]  # Celery 5.6 does not tell what is scheduled
        return len(state.reserved_requests) + sum(1 for each in requests if each is None or not any(each in kind for kind in apart))

    # deaths

    def _dying(self, original: Callable[..., Any], reason: Reason, *, at: int) -> Callable[..., Any]:
        """Celery's own handler still logs, stores and signals; the message then goes to its dead-letter queue, not away."""

        def dying(*args: Any) -> Any:
            message = args[at]
            held = self._held(message)
            if held is None or not self._is_enabled(message, held):
                self._leave_alone(held)
                answer = original(*args)
                self._note_end(message, reason)
                return answer
            cause = next((arg for arg in args if isinstance(arg, BaseException)), None)
            failed = failed_of(cause) if cause is not None else Failed(type="redelivery.UnknownMessage", fingerprint=reason)
            why = Reason.UNDECODABLE if isinstance(cause, ContentDisallowed) else reason
            message.ack = message.reject = message.ack_log_error = message.reject_log_error = _nothing
            try:
                return original(*args)
            except Exception:  # noqa: BLE001 - the message is anybody's
                log.exception("message.invalid", tag=held.tag, queue=held.queue)
                return None
            finally:
                self._die(held, why, failed, told=reason is Reason.UNKNOWN_TASK)

        return dying

    def _is_enabled(self, message: Any, held: Held) -> bool:
        headers = message.headers
        return self.install.is_enabled(str(headers.get("task")) if isinstance(headers, dict) else "", held.queue)

    def _note_end(self, message: Any, reason: Reason) -> None:
        """Celery alone has dropped the message."""
        headers = message.headers
        if isinstance(headers, dict) and isinstance(headers.get("id"), str):
            record(self.install, headers, queue_of(message), Outcome.DISCARDED, reason=reason)

    def _on_garbage(self, held: Held, exc: Exception) -> None:
        log.error("message.undecodable", tag=held.tag, queue=held.queue, error=str(exc))
        try:
            message = opened(held.raw)
        except EnvelopeError:
            message = {"headers": {}, "properties": {}}
        if message["headers"].get(HEADER) is None:
            self._note_arrival(message["headers"], message["properties"], held)  # under the id that its death has
        self._die(held, Reason.UNDECODABLE, failed_of(exc))

    def _die(self, held: Held, reason: Reason, failed: Failed, *, told: bool = True) -> None:
        """Move the message to its dead-letter queue: with a death record where it has an envelope, else in one of ours.

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
            tell_failure(self.install.app, message, reason, failed.text)
        policy = self.install.policy_for(held.queue, str(headers.get("task")))
        ending = decision.ending(policy, reason, eligible=eligible_of(headers))
        wanted = policy.dead_letter_queue_for(held.queue) if isinstance(ending, decision.DeadLetter) else None
        place = resting_place(Envelope.of(headers), held.queue, wanted, policy)
        target = place.target
        event = about(
            headers,
            held,
            Outcome.DISCARDED if target is None else Outcome.DEAD_LETTERED,
            reason=ending.reason,
            worker=self.install.worker,
            exception=failed.type,
            fingerprint=failed.fingerprint,
        )
        transition = burial(
            self.install.transport,
            held,
            message,
            event,
            target=target,
            reason=reason,
            now_ms=self.install.owner.now_ms(),
            attempt=None,
            failed=failed,
            must_exist=not policy.auto_create_dead_letter_resources,
            parked=place.parked,
        )
        self._carry_out(held, transition)
        tell_death(event, target, ending.detail)

    def _bury_at_last(self, held: Held, known: Envelope) -> None:
        """Send off a dead message that has waited for its dead-letter queue."""
        policy = self.install.policy_for(held.queue)
        self._carry_out(held, burial_at_last(self.install.transport, held, known, worker=self.install.worker, policy=policy))

    def _carry_out(self, held: Held, transition: Any) -> None:
        self.install.outbox.carry_out(held.tag, transition, lambda _: self.install.owner.drop(held.tag))


def _is_sound(headers: dict[str, Any]) -> bool:
    """Whether what Celery hands to its pool and its timers unseen is what they can take."""
    limits, retries = headers.get("timelimit"), headers.get("retries")
    if limits is not None:
        if not isinstance(limits, (list, tuple)) or len(limits) != 2:  # noqa: PLR2004 - hard and soft
            return False
        if not all(each is None or isinstance(each, (int, float)) for each in limits):
            return False
    return retries is None or isinstance(retries, int)


def _refuse(lines: list[str]) -> None:
    """What contradicts ends the worker, with a line for each."""
    if lines:
        sys.stderr.writelines(f"redelivery: error: {line}\n" for line in lines)
        raise SystemExit(1)


@contextmanager
def _refusing() -> Iterator[None]:
    """What is refused ends the worker with one line, not with a traceback."""
    try:
        yield
    except RedeliveryError as exc:
        sys.stderr.write(f"redelivery: error: {exc}\n")
        raise SystemExit(1) from None


def _nothing(*_: Any, **__: Any) -> None:
    pass
