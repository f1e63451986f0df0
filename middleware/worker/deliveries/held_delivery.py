"""The delivery of a message that this worker holds: Celery reports how its task ended, and the message leaves by one transition.

1. *Success*: Celery acknowledges. The message is acknowledged and recorded as `succeeded`, or as `unobserved` if the task's own
   `Strategy` ran it (`own_strategy`), because its end is then not known.
2. *Redelivery*: the child raised `Redelivering`; or a child was lost or ran out of time, and this class decides. The message moves
   to the delay store (or back to its queue), and is recorded as `redelivery_scheduled`.
3. *Death*: the report carries the decision, or this class decides. The message moves to the dead-letter queue and is recorded as
   `dead_lettered`, or as `discarded` if its policy keeps no dead letters.
4. *Revoked, expired or ignored* (Celery's own words): this is recorded; an expired message dies.

Celery stores the result for the caller (`AsyncResult`) before the message leaves; if the worker dies in between, the message is
delivered again. A result that the child has sent with its report (`child.result`) is stored when the message leaves, in one step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.exceptions import (
    Ignore,
    InvalidTaskError,
    Reject,
    Retry,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
    WorkerTerminate,
)
from celery.platforms import EX_FAILURE
from celery.worker import state
from celery.worker.request import Request, logger

from ...child.attempt import Dying, Redelivering
from ...logs import log
from ...messages.envelope import Attempt, Failed
from ...messages.events import Outcome, Reason
from ...messages.recording import about
from ...messages.steps import opened, redelivered, sealed
from ...messages.ttl import TIME_TO_LIVE
from ...policy.decision import DeadLetter, Discard, Redeliver
from ...transitions.death import Death
from ...transitions.facts import Decider, DeliveryFacts
from ...transitions.notify import Caller, log_loss
from ..deadline import NEVER, Deadline, by_this_clock
from .run_time import times_of
from .settlement import Settlement

if TYPE_CHECKING:
    from redelivery.settings import RedeliveryPolicy

    from ...messages.envelope import Envelope
    from ...messages.events import Event
    from ...ports import Held
    from ...runtime import Runtime

#: The exceptions that report a lost child, and the recorded reasons.
LOST: dict[type[BaseException], Reason] = {WorkerLostError: Reason.WORKER_LOST, TimeLimitExceeded: Reason.TIME_LIMIT}
#: How a message ends when Celery next acknowledges or rejects it.
Ending = Outcome | Dying


class HeldDelivery:
    """One delivery. Each method gets Celery's request."""

    __slots__ = ("deadline", "decider", "due", "ending", "envelope", "facts", "held", "must_start", "runtime", "settlement")

    def __init__(self, request: Any, message: Any, runtime: Runtime, held: Held, envelope: Envelope) -> None:
        self.held, self.runtime, self.envelope = held, runtime, envelope
        self.settlement = Settlement(runtime, held)
        self.decider = Decider(runtime, request.type)
        self.ending: Ending | None = None
        self.due, self.deadline = 0.0, NEVER
        policy = runtime.policies.policy_for(held.queue, request.type)
        #: Whether the start is recorded before the task runs: a crash has touched the message, or its policy says so.
        self.must_start = self.envelope.suspect or policy.persist_delivery_count == "always"
        self._take_times(request, message, policy)
        has_events = request.has_events
        carries = runtime.stores_results and request.task.acks_late and not (has_events or envelope.is_letter)
        more = runtime.owner.now_ms(), self.deadline.at_ms, self.must_start and runtime.shares_process, has_events, carries
        self.facts = DeliveryFacts.of(held, envelope, request.request_dict, *more)

    def _take_times(self, request: Any, message: Any, policy: RedeliveryPolicy) -> None:
        served, eta = self.envelope.served_eta, request.eta
        if served is not None and request.request_dict.get("eta") == served:
            # The delay store has waited for this ETA by the broker's clock. Celery must not check it by this machine's.
            request._eta = None  # noqa: SLF001 - Celery reads it
        elif eta is not None:
            request._eta, self.due = by_this_clock(eta, self.runtime.owner.now_ms())  # noqa: SLF001 - as above
        if self.runtime.policies.keeps_time or request.expires is not None or TIME_TO_LIVE in message.headers:
            self.deadline = Deadline.of(message, self.held, self.envelope, policy, request.expires)
            request.expires = self.deadline.time  # Celery asks on arrival, and again just before the task runs

    @property
    def has_left(self) -> bool:
        """Whether the message's transition has begun."""
        return self.settlement.is_done

    def _is_over(self, request: Any) -> bool:
        return self.settlement.is_done or (request.acknowledged and request.task.acks_late)

    # Celery's calls of a request

    def acknowledge(self, request: Any) -> None:
        """The task is over, or (`acks_late=False`) about to begin."""
        if request.acknowledged:
            return
        has_end = request.is_handed_over or request.time_start is not None
        if self.ending is None and has_end and not request.task.acks_late:
            self.settlement.accept_early(request)
            return
        default = Outcome.SUCCEEDED if has_end else Outcome.UNOBSERVED
        self.settle(request, default if self.ending is None else self.ending)

    def succeeded(self, request: Any) -> None:
        """A task that was acknowledged before it ran has succeeded."""
        self.settle(request, Outcome.SUCCEEDED)

    def reject(self, request: Any, requeue: bool) -> None:
        """As Celery's: a death, or with `requeue` one more delivery, which counts."""
        if self._is_over(request):
            return
        if self.ending is not None:
            self.settle(request, self.ending)
            return
        failed = Failed(type="celery.exceptions.Reject", message=f"rejected, requeue={requeue}", fingerprint="rejected")
        decided = self.decider.decide(self.facts, Reject("rejected"), Reason.REJECTED) if requeue else None
        if isinstance(decided, Redeliver):
            self.redeliver(request, 0, failed, requeued=True)  # at once, as Celery requeues
        elif decided is not None:  # not delivered again after all: report the failure, which Celery does not
            self._report_failure(request, Reject(f"rejected too often: {decided.detail}"))
            self.settle(request, Dying(decided, failed))
        else:
            self.settle(request, Dying(self.decider.end(self.facts, Reason.REJECTED), failed))
        request.send_event("task-rejected", requeue=requeue)

    def cancel(self, request: Any, pool: Any, signal: Any, emit_retry: bool) -> None:
        """End the task in a cold shutdown; if its pool cannot do that (threads, solo), end the worker.

        Celery calls this inside a signal's handler: an exception raised here comes out of the interrupted code, and Celery handles
        only `WorkerTerminate` there.
        """
        if not emit_retry:  # a cold shutdown, not a lost connection
            self.runtime.is_ending = True
        try:
            Request.cancel(request, pool, signal, emit_retry)
        except NotImplementedError:
            log.warning("worker.terminated", task_id=request.id, why="a cold shutdown, and this pool cannot end a task")
            raise WorkerTerminate(EX_FAILURE) from None
        except Exception:  # noqa: BLE001 - any pool may be in use, and the shutdown must go on
            log.exception("task.not_ended", task_id=request.id, why="a cold shutdown, and the pool could not end the task")

    def on_retry(self, request: Any, exc_info: ExceptionInfo) -> None:
        """Deliver the message again, as the child decided; only end it if Celery's `retry` has published the task again."""
        exc: Any = unwrapped(exc_info.exception)
        if isinstance(exc, Redelivering):
            state.task_ready(request)
            if self.ending is Outcome.REVOKED:  # the signal that ends the task raised an exception in it
                Caller.of(request).stays_revoked()
                return
            failed = exc.failed or Failed(type=type(exc).__name__)
            if not self.has_left:
                self.redeliver(request, exc.delay_ms, failed, crash=failed.type.endswith("WorkerLostError"))
        elif not self._is_over(request):
            self.settlement.acknowledge(request, None)  # Celery has published the task again, and that is recorded
        request.send_event("task-retried", exception=repr(exc.exc), traceback=str(exc_info.traceback))

    def on_failure(self, request: Any, exc_info: ExceptionInfo, send_failed_event: bool, return_ok: bool) -> None:
        """Find the child's decision about a failed attempt, or decide here, and let Celery do the rest."""
        exc = unwrapped(exc_info.exception)
        if isinstance(exc, (Retry, Terminated)):
            Request.on_failure(request, exc_info, send_failed_event, return_ok)
            return
        if self._is_over(request):
            state.task_ready(request)  # a hard time limit has ended it already
            return
        if isinstance(exc, (SystemExit, KeyboardInterrupt)) and not request.was_ended:
            exc_info = _worker_lost_info(request, exc)
            exc = unwrapped(exc_info.exception)
        is_decided = hasattr(exc_info, "dying")
        if isinstance(exc, (WorkerLostError, TimeLimitExceeded, MemoryError)):
            if is_decided:
                self._end_of_report(request, exc, exc_info)
                return
            if not _success_was_stored(request):
                self._on_lost(request, exc, exc_info)
                return
        if isinstance(exc, Ignore) and not is_decided:  # after a decision only a hook can raise `Ignore` or `Reject`
            self.ending = Outcome.IGNORED
        elif is_decided or not isinstance(exc, (Reject, WorkerLostError)):
            self.ending = self._death_of(exc, exc_info)
        self._let_celery_fail(request, exc_info, send_failed_event, return_ok)

    def _let_celery_fail(
        self, request: Any, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False
    ) -> None:
        """Let Celery do its part. The message leaves even if a result cannot be stored (for example, its id is empty)."""
        ending, must_leave = self.ending, not request.task.acks_late
        try:
            Request.on_failure(request, exc_info, send_failed_event, return_ok)
        except Exception:
            if ending is None:
                raise
            log.exception("hook.failed", task_id=request.id, hook="mark_as_failure")
            must_leave = True
        if must_leave and ending is not None and not self.has_left:
            self.settle(request, ending)

    def on_timeout(self, request: Any, soft: bool, timeout: float) -> None:
        """End the attempt at a hard time limit, once: the pool also reports the lost child."""
        if soft or state.should_terminate:
            Request.on_timeout(request, soft, timeout)
            return
        if self._is_over(request):
            return
        exc = TimeLimitExceeded(timeout)
        decided = self.decider.decide(self.facts, exc, Reason.TIME_LIMIT)
        if isinstance(decided, Redeliver):
            logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, request.name, request.id)
            self._redeliver_lost(request, exc, None, decided)
            return
        self.ending = Dying(decided, self.runtime.failed_of(exc))
        Request.on_timeout(request, soft, timeout)

    def revoked(self, request: Any) -> bool:
        """As Celery's, which asks just before the task runs. True also if the lease has ended: then another worker runs it."""
        if self.runtime.owner.holds(self.held.tag):
            return bool(Request.revoked(request))
        log.warning("start.refused", tag=self.held.tag, why="the lease under which it was received has ended")
        self.settlement.give_up(request)
        return True

    def expired(self, request: Any) -> bool:  # noqa: ARG002 - as other deliveries
        """As Celery's, by the broker's clock; the id does not count as revoked, so that a redriven task runs."""
        # This worker's estimate of the broker's time may be before the message came.
        return self.deadline.is_over(max(self.runtime.owner.now_ms(), self.held.seen_ms))

    def announce_revoked(self, request: Any, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """As Celery's; the message ends as revoked or expired."""
        if self.ending is None:
            failed = Failed(type="celery.exceptions.TaskRevokedError", message=reason, fingerprint=reason)
            self.ending = Dying(self.decider.end(self.facts, Reason.EXPIRED), failed) if expired else Outcome.REVOKED
        Request._announce_revoked(request, reason, terminated, signum, expired)  # noqa: SLF001 - Celery's own
        if not self.has_left and not request.task.acks_late:
            self.settle(request, self.ending)  # acknowledged before it ran

    def invalidate(self, request: Any, exc_info: ExceptionInfo) -> None:
        """Let a message die that the pool cannot take; its caller gets a failure."""
        failed = self.runtime.failed_of(unwrapped(exc_info.exception))
        self.ending = Dying(self.decider.end(self.facts, Reason.INVALID, "could not be handed to the pool"), failed)
        self._let_celery_fail(request, exc_info)

    # in place of a lost child

    def _on_lost(self, request: Any, exc: BaseException, exc_info: ExceptionInfo) -> None:
        """Decide, store and report in place of a child that could not report."""
        state.task_ready(request)
        if state.should_terminate:
            return  # a cold shutdown killed it: the message is given back
        cause = LOST.get(type(exc))
        if cause is Reason.WORKER_LOST and not request.task.acks_late:
            decided: DeadLetter | Discard | Redeliver = self.decider.end(self.facts, cause, "acknowledged before it ran")
        else:
            decided = self.decider.decide(self.facts, exc, cause)
        if isinstance(decided, Redeliver):
            self._redeliver_lost(request, exc, exc_info, decided)
            return
        log_loss(exc)
        try:
            self._report_failure(request, exc, exc_info)
        finally:  # a receiver of Celery's signals may end the process (`SystemExit`)
            self.settle(request, Dying(decided, self.runtime.failed_of(exc)))

    def _end_of_report(self, request: Any, exc: BaseException, exc_info: ExceptionInfo) -> None:
        """Settle an attempt that itself reported an exception that Celery takes for a lost child, or ends its worker for.

        The child has stored and reported the failure already.
        """
        state.task_ready(request)
        request.send_event("task-failed", exception=repr(exc), traceback=str(exc_info.traceback))
        self.settle(request, self._death_of(exc, exc_info))

    def _redeliver_lost(self, request: Any, exc: BaseException, exc_info: ExceptionInfo | None, decided: Redeliver) -> None:
        state.task_ready(request)
        try:
            Caller.of(request).retried(exc, decided.delay, exc_info)
        finally:
            self.redeliver(request, round(decided.delay * 1000), self.runtime.failed_of(exc), crash=True)
        request.send_event("task-retried", exception=repr(exc), traceback="")

    def _report_failure(self, request: Any, exc: BaseException, exc_info: ExceptionInfo | None = None) -> None:
        Caller.of(request).failed(exc, exc_info)
        traceback = "" if exc_info is None else str(exc_info.traceback or "")
        request.send_event("task-failed", exception=repr(exc), traceback=traceback)

    def _death_of(self, exc: BaseException, exc_info: ExceptionInfo) -> Dying:
        """The child's decision; without one, the decision that is taken here."""
        runtime, known = self.runtime, getattr(exc_info, "dying", None)
        if known is not None:
            decided, failed = known
        elif isinstance(exc, InvalidTaskError):  # Celery could not begin it
            failed = runtime.failed_of(exc)
            decided = self.decider.end(self.facts, Reason.INVALID, failed.message)
        else:
            failed, decided = runtime.failed_of(exc), self.decider.decide(self.facts, exc)
            if isinstance(decided, Redeliver):  # not possible: FAILURE is stored, and callers may have acted on it
                decided = DeadLetter(Reason.NON_RETRYABLE, "failed outside the task's own code")
        return Dying(decided, runtime.stored(replace(failed, traceback=str(exc_info.traceback))))

    # how the message leaves

    def settle(self, request: Any, ending: Ending) -> None:
        """End the message."""
        if isinstance(ending, Dying):
            self._bury(request, *ending)
        else:
            result = request.result if self.ending is None else None  # none for a task that was revoked meanwhile
            self.settlement.acknowledge(request, self._event(request, ending), result)

    def _bury(self, request: Any, decided: DeadLetter | Discard, failed: Failed | None) -> None:
        runtime, held, worker, now, attempt = self.runtime, self.held, request.hostname, self.runtime.owner.now_ms(), None
        if decided.reason is not Reason.EXPIRED:
            attempt = Attempt(at_ms=now, worker=worker, exception="" if failed is None else failed.text, trace=held.trace or "")
        message, policy = opened(held.raw), self.decider.policy_of(self.facts)
        facts: dict[str, Any] = {"headers": self.headers(request), "envelope": self.envelope, **self._times(request)}
        facts |= {"policy": policy, "worker": worker, "failed": failed, "attempt": attempt}
        death = Death.of(runtime, held.queue, held.raw, message, decided, **facts)
        transition = death.transition(runtime.transport, held, now_ms=now, tag=self.settlement.tag)
        self.settlement.carry_out(request, transition, death.recorded)
        death.log()

    def redeliver(self, request: Any, delay_ms: int, failed: Failed, *, crash: bool = False, requeued: bool = False) -> None:
        """Have the message delivered again."""
        held, runtime, now = self.held, self.runtime, self.runtime.owner.now_ms()
        worker, trace = str(request.hostname), held.trace or ""
        attempt = Attempt(at_ms=now, delay_ms=delay_ms, worker=worker, exception=failed.text, trace=trace)
        how: dict[str, Any] = {"due_ms": now + delay_ms if delay_ms else None, "crash": crash, "requeued": requeued}
        again = redelivered(opened(held.raw), held.queue, seen_ms=held.seen_ms, attempt=attempt, **how)
        delay_ms = self.deadline.bounded(delay_ms, now)
        lost = Reason.TIME_LIMIT if failed.type.endswith("TimeLimitExceeded") else Reason.WORKER_LOST
        facts = {"exception": failed.type, "fingerprint": failed.fingerprint, "delay_ms": delay_ms}
        event = self._event(request, Outcome.REDELIVERY_SCHEDULED, reason=lost if crash else "", **facts)
        pace = runtime.policies.pace_of(held.queue, self.deadline.at_ms)
        recorded = None if self.envelope.is_letter else event
        self.settlement.defer(request, held.list_name, sealed(again), event.task_id, recorded, delay_ms=delay_ms, pace=pace)

    def headers(self, request: Any) -> dict[str, Any]:
        """The headers of the task that is recorded."""
        headers: dict[str, Any] = request.request_dict
        return headers

    def _event(self, request: Any, outcome: Outcome, **facts: Any) -> Event:
        held, headers = self.held, self.headers(request)
        facts |= self._times(request)
        return about(headers, held.queue, held, outcome, self.envelope, worker=request.hostname, **facts)

    def _times(self, request: Any) -> dict[str, Any]:
        return times_of(self.runtime, request, request.request_dict, self.envelope)


def unwrapped(exc: Any) -> Any:
    """The exception itself, without billiard's wrapper if the pool has added one."""
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc


def _success_was_stored(request: Any) -> bool:
    """Whether the child was lost after its success was stored. Celery 5.6 cannot tell: there the attempt counts as lost."""
    ask = getattr(request, "_success_was_stored", None)
    return ask is not None and bool(ask())


def _worker_lost_info(request: Any, exc: BaseException) -> ExceptionInfo:
    """The report of a lost child for a `SystemExit` or `KeyboardInterrupt`, which ended the child."""
    make = getattr(request, "_worker_lost_info", None)
    if make is not None:
        return make(exc)
    try:
        msg = f"Worker exited prematurely: {exc!r}."
        raise WorkerLostError(msg)  # noqa: TRY301 - the report reads the exception that is being handled
    except WorkerLostError:
        return ExceptionInfo()
