"""Egress: how a message leaves the worker that held it.

One request is one delivery of one message. It leaves by exactly one transition, in the worker's main process:

1. *It succeeded.* Celery acknowledges: acknowledged, and recorded as `succeeded`.
2. *It is to be delivered again.* The child raised `Redelivering`; or a child was lost, or ran out of time, and it is decided here:
   moved to the delay store (or back to its queue), and recorded as `redelivery_scheduled`.
3. *It died.* The exception carries the decision, or it is taken here: moved to the dead-letter queue and recorded as
`dead_lettered`;
   or ended and recorded as `discarded`, where its policy keeps no letters.
4. *It was revoked, expired or ignored*, Celery's own words: recorded as such; an expired one is a death.

Whatever Celery stores for the caller (`AsyncResult`), it stores before the message leaves; a worker that dies in between has the
message delivered again. A transition that the broker does not answer waits in the outbox; one that it refuses, because the message
was given to another worker, is logged and changes nothing.

Limits: the methods that Celery's generated request class overrides (`execute_using_pool`, `on_success`) are never called here, so a
success is recorded in `acknowledge`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery import signals
from celery.app.task import Context
from celery.exceptions import Ignore, InvalidTaskError, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.states import FAILURE
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import Request

from redelivery.middleware import decision
from redelivery.middleware.departure import burial, recorded_id, resting_place, tell_death
from redelivery.middleware.envelope import ANNOUNCED, HEADER, Attempt, Envelope, Failed, eligible_of, opened, redelivered, sealed
from redelivery.middleware.lifetime import PUBLISHED, TIME_TO_LIVE, expiry_ms
from redelivery.middleware.logs import log
from redelivery.middleware.lost_child import success_was_stored, worker_lost_info
from redelivery.middleware.observing import Observing
from redelivery.middleware.outcomes import Event, Outcome, Reason
from redelivery.middleware.task import CONTEXT, DECIDED, Redelivering, failed_of
from redelivery.middleware.transports.base import Answer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from redelivery.middleware.decision import Decision
    from redelivery.middleware.install import Redelivery
    from redelivery.middleware.transports.base import Held

__all__ = ["Egress", "request_class"]

logger = get_logger(__name__)

#: How long a message waits that the pool could not be given, through no fault of its own.
SET_BACK_MS = 1000
#: What Celery does not count among a task's own headers (`celery.app.task.Context`), and what is ours.
NO_CUSTOM_HEADERS = {*vars(Context), "lang", "task", "argsrepr", "kwargsrepr", "compression"} | {
    HEADER,
    ANNOUNCED,
    PUBLISHED,
    "redelivered",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request is to end when Celery next acknowledges or rejects it."""

    outcome: Outcome
    reason: Reason | None = None
    failed: Failed | None = None
    keep: bool = False
    detail: str = ""


class Egress(Observing):
    """Celery's request, whose message leaves by a transition; one that we do not hold, or that is not `enabled`, is observed."""

    _held: Held | None = None
    _eta: datetime | None
    _expires: datetime | None
    _expires_ms: int | None = None
    _ending: Ending | None = None
    _left = False
    _future: Future[Any] | None = None

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        held: Held | None = getattr(message, "held", None)
        install: Redelivery | None = getattr(self._app, "redelivery", None)
        if install is None:
            return
        if held is None or not install.is_enabled(self._type, held.queue):
            self._observe(install, message)
            return
        self._held, self._install, self._tag = held, install, held.tag
        held.request = self
        self._envelope = Envelope.of(message.headers)
        if self._envelope.served_eta is not None and self._request_dict.get("eta") == self._envelope.served_eta:
            # The delay store has waited for this ETA, by the server's clock: Celery must not judge it again by this machine's.
            self._eta = None
        elif self._eta is not None:
            self._eta = self._by_this_clock(self._eta)
        if install.keeps_time or self._expires is not None or TIME_TO_LIVE in message.headers:
            self._begin_lifetime(message)
        self._request_dict[CONTEXT] = self._context_of(install)
        # What Celery calls a task's own headers: without ours, which must not go along with what the task publishes.
        self._request_dict["headers"] = {key: value for key, value in message.headers.items() if key not in NO_CUSTOM_HEADERS}
        if not self._task.acks_late:
            self.on_success: Any = self._recording(self.on_success)

    def _by_this_clock(self, eta: datetime) -> datetime:
        """What this machine's clock says when the server's says `eta`: Celery waits for what is due so soon by this machine's."""
        try:
            return datetime.fromtimestamp(time.time() + eta.timestamp() - self._install.owner.now_ms() / 1000, UTC)
        except (ArithmeticError, ValueError, OSError):
            return eta  # no time that either clock will ever say

    def _context_of(self, install: Redelivery) -> dict[str, Any]:
        held, envelope = self._held, self._envelope
        assert held is not None  # noqa: S101 - set just before
        first_seen = held.seen_ms if envelope.first_seen_ms is None else envelope.first_seen_ms
        return {
            "tag": held.tag,
            "queue": held.queue,
            "attempt": self.attempt,
            "generation": envelope.generation,
            "first_seen_ms": first_seen,
            "age": max(held.seen_ms - first_seen, 0) / 1000,
            "received": time.monotonic(),
            "received_ms": install.owner.now_ms(),
            "expires_ms": self._expires_ms,
            "waited": sum(each.get("delay") or 0 for each in envelope.attempts) / 1000,
            "eligible": eligible_of(self._request_dict),
            "must_start": self.must_start and install.shares_process,
            "has_events": self._has_events(),
        }

    def _has_events(self) -> bool:
        """Whether anybody is told of this task's events: the dispatcher is also there for the worker's heartbeat alone."""
        eventer = self._eventer
        if eventer is None or not eventer.enabled or not self._task.send_events:
            return False
        return not eventer.groups or "task" in eventer.groups

    @property
    def _context(self) -> Context:
        """As Celery's; where the body has another shape, what the headers say, so that its end can be told."""
        try:
            context: Context = super()._context
        except Exception:  # noqa: BLE001 - the body is anybody's
            context = Context(self._request_dict)
        return context

    @property
    def attempt(self) -> int:
        """This delivery's number among those that count, from 1."""
        return self._envelope.attempt + 1

    @property
    def must_start(self) -> bool:
        """Whether the start of this delivery is recorded before it runs: a crash has touched the message, or its policy says so."""
        held = self._held
        if held is None:
            return False
        return self._envelope.suspect or self._install.policy_for(held.queue, self._type).persist_delivery_count == "always"

    def is_running(self) -> bool:
        """Whether the task runs here, or will whatever we do."""
        if self in state.active_requests:
            return True
        return self._future is not None and not self._future.cancel()

    def was_handed_over(self) -> bool:
        """Whether the pool has been given the task, so that nobody can be sure that it has not begun."""
        return self._apply_result is not None and self._future is None

    def keep_future(self, result: Any) -> None:
        """Keep what a pool of threads returns: it alone can take back a task that has not begun; Celery keeps a weak reference."""
        self._future = getattr(result, "f", None)

    @property
    def is_held(self) -> bool:
        """Whether the message is ours to end."""
        return self._held is not None

    @property
    def has_left(self) -> bool:
        """Whether the message has its transition already."""
        return self._left

    def invalidate(self, exc_info: ExceptionInfo) -> None:
        """The pool cannot be given this message: it dies, and its caller is told."""
        exc = _unwrapped(exc_info.exception)
        decided = decision.ending(self._policy, Reason.INVALID, "could not be handed to the pool", eligible=self._eligible)
        self._ending = self._death(decided, failed_of(exc))
        try:
            super().on_failure(exc_info)
        except Exception:  # noqa: BLE001 - a result backend takes no empty id, say: the worker must not end by that
            log.exception("hook.failed", task_id=self.id, hook="mark_as_failure")
        finally:
            if not self._left:
                self._leave(self._ending)

    def set_back(self) -> None:
        """The pool could not be given this message, through no fault of its own: it comes again a little later, uncounted."""
        state.task_ready(self)
        self._left = True
        held = self._held
        assert held is not None  # noqa: S101 - only asked where we hold the message
        transport, tag = self._install.transport, self._tag
        self._carry_out(
            lambda: transport.defer(tag, held.list_name, held.raw, task_id=str(self.id), event=None, delay_ms=SET_BACK_MS)
        )

    # what Celery tells us

    def acknowledge(self) -> None:
        """The task is over, or (`acks_late=False`) about to begin: carry the ending out."""
        if self._held is None:
            super().acknowledge()
        elif not self.acknowledged:
            if self._ending is None and not self._task.acks_late:
                self._acknowledge_early()
            else:
                self._leave(self._ending or Ending(Outcome.SUCCEEDED))

    def reject(self, requeue: bool = False) -> None:
        """As Celery's: without requeueing it is a death; with it, one more delivery, which counts."""
        if self._held is None:
            super().reject(requeue=requeue)
            return
        if self._left or (self.acknowledged and self._task.acks_late):
            return
        if self._ending is not None:
            self._leave(self._ending)
            return
        failed = Failed(type="celery.exceptions.Reject", message=f"rejected, requeue={requeue}", fingerprint="rejected")
        decided = self._decide(Reject("rejected"), Reason.REJECTED)[1] if requeue else None
        if isinstance(decided, decision.Redeliver):
            self._redeliver(0, failed, requeued=True)  # at once, as Celery requeues
        else:
            if decided is not None:  # Celery tells nobody of what it requeues, and this is not delivered again
                self._tell_failure(Reject(f"rejected too often: {decided.detail}"), None)
            self._leave(self._death(decided or decision.ending(self._policy, Reason.REJECTED, "", eligible=self._eligible), failed))
        self.send_event("task-rejected", requeue=requeue)

    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """Deliver the message again, as the child decided; what Celery's own `retry` has published anew is only ended here."""
        exc: Any = _unwrapped(exc_info.exception)
        if self._held is None:
            super().on_retry(exc_info)
            return
        if isinstance(exc, Redelivering):
            state.task_ready(self)
            failed = exc.failed or Failed(type=type(exc).__name__)
            if not self._left:
                self._redeliver(exc.delay_ms, failed, crash=failed.type.endswith("WorkerLostError"))
        elif not self._left and not (self.acknowledged and self._task.acks_late):
            self._left = True
            self._carry_out(lambda: self._install.transport.acknowledge(self._tag, None))
        self.send_event("task-retried", exception=repr(exc.exc), traceback=str(exc_info.traceback))

    def on_failure(self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """The attempt failed: find the decision, or take it, and let Celery do the rest."""
        exc = _unwrapped(exc_info.exception)
        if self._held is None or isinstance(exc, (Retry, Terminated)):
            super().on_failure(exc_info, send_failed_event, return_ok)
            return
        if self._left or (self.acknowledged and self._task.acks_late):
            state.task_ready(self)  # a hard time limit has ended it already
            return
        if isinstance(exc, (SystemExit, KeyboardInterrupt)) and not self._already_cancelled and not self._already_revoked:
            exc_info = worker_lost_info(self, exc)
            exc = _unwrapped(exc_info.exception)
        if isinstance(exc, (WorkerLostError, TimeLimitExceeded, MemoryError)):
            if hasattr(exc, DECIDED):
                self._end_of_report(exc, exc_info)
                return
            if not success_was_stored(self):
                self._on_lost(exc, exc_info)
                return
        if isinstance(exc, Ignore):
            self._ending = Ending(Outcome.IGNORED)
        elif not isinstance(exc, (Reject, WorkerLostError)):
            self._ending = self._death_of(exc, exc_info)
        self._let_celery_fail(exc_info, send_failed_event, return_ok=return_ok)

    def _let_celery_fail(self, exc_info: ExceptionInfo, send_failed_event: bool, *, return_ok: bool) -> None:
        """What Celery does; a result that cannot be stored (under an empty id, say) does not keep the message from leaving."""
        ending, must_leave = self._ending, not self._task.acks_late
        try:
            super().on_failure(exc_info, send_failed_event, return_ok)
        except Exception:
            if ending is None:
                raise
            log.exception("hook.failed", task_id=self.id, hook="mark_as_failure")
            must_leave = True
        if must_leave and ending is not None and not self._left:
            self._leave(ending)

    def _end_of_report(self, exc: BaseException, exc_info: ExceptionInfo) -> None:
        """The attempt reported what Celery takes for a lost child, or ends its worker for (`MemoryError`): all are told already."""
        state.task_ready(self)
        self.send_event("task-failed", exception=repr(exc), traceback=str(exc_info.traceback))
        self._leave(self._death_of(exc, exc_info))

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """A hard time limit ends the attempt, once: the pool reports the lost child as well."""
        if self._held is None or soft or state.should_terminate:
            super().on_timeout(soft, timeout)
            return
        if self._left or (self.acknowledged and self._task.acks_late):
            return
        exc = TimeLimitExceeded(timeout)
        failed, decided = self._decide(exc, Reason.TIME_LIMIT)
        if isinstance(decided, decision.Redeliver):
            logger.error("Hard time limit (%ss) exceeded for %s[%s]", timeout, self.name, self.id)
            self._redeliver_lost(exc, None, failed, decided)
            return
        self._ending = self._death(decided, failed)
        super().on_timeout(soft, timeout)

    def revoked(self) -> bool:
        """As Celery's, asked just before the task runs; a message whose lease has ended meanwhile is another worker's to run."""
        if self._held is not None and not self._install.owner.holds(self._held.tag):
            log.warning("start.refused", tag=self._held.tag, why="the lease under which it was received has ended")
            state.task_ready(self)
            self.acknowledged = True
            self._install.owner.drop(self._held.tag)
            return True
        return bool(super().revoked())

    def maybe_expire(self) -> bool:
        """As Celery's, by the server's clock; the id is not remembered as revoked, so that a redriven task runs."""
        if self._held is None:
            return bool(super().maybe_expire())
        return self._expires_ms is not None and self._now_ms() >= self._expires_ms

    def _now_ms(self) -> int:
        held = self._held
        assert held is not None  # noqa: S101 - only asked where we hold the message
        return max(self._install.owner.now_ms(), held.seen_ms)  # it is later than when the message came

    def _begin_lifetime(self, message: Any) -> None:
        """When the message expires: Celery is told, so that it asks (`revoked`) on arrival, and again just before the task runs."""
        held, expires = self._held, self._expires
        assert held is not None  # noqa: S101 - only asked where we hold the message
        self._expires_ms = expiry_ms(
            message.headers,
            message.properties,
            self._envelope,
            self._policy,
            seen_ms=held.seen_ms,
            expires_ms=None if expires is None else round(expires.timestamp() * 1000),
        )
        self._expires = None if self._expires_ms is None else datetime.fromtimestamp(self._expires_ms / 1000, UTC)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if self._held is not None and self._ending is None:
            failed = Failed(type="celery.exceptions.TaskRevokedError", message=reason, fingerprint=reason)
            expiry = decision.ending(self._policy, Reason.EXPIRED, "", eligible=self._eligible)
            self._ending = self._death(expiry, failed) if expired else Ending(Outcome.REVOKED)
        super()._announce_revoked(reason, terminated, signum, expired)
        if self._held is not None and self._ending is not None and not self._left and not self._task.acks_late:
            self._leave(self._ending)  # acknowledged before it ran

    # decisions that are taken here

    @property
    def _eligible(self) -> bool | None:
        eligible: bool | None = self._request_dict[CONTEXT]["eligible"]
        return eligible

    @property
    def _policy(self) -> Any:
        assert self._held is not None  # noqa: S101 - only asked where we hold the message
        return self._install.policy_for(self._held.queue, self._type)

    def _decide(self, exc: BaseException, cause: Reason | None) -> tuple[Failed, Decision]:
        context = self._request_dict[CONTEXT]
        failure = decision.Failure(
            attempt=self.attempt,
            age=context["age"] + time.monotonic() - context["received"],
            exception=exc,
            cause=cause,
            eligible=self._eligible,
        )
        return failed_of(exc), self._install.decide(context["queue"], self._type, self._policy, failure, idle_for=context["waited"])

    def _death_of(self, exc: BaseException, exc_info: ExceptionInfo) -> Ending:
        """What the child decided; or, where its word was lost with an exception that cannot be pickled, what follows here."""
        decided, failed, tag = getattr(exc, DECIDED, (None, None, None))
        if isinstance(exc, InvalidTaskError) and decided is None:  # Celery could not begin it
            decided = decision.ending(self._policy, Reason.INVALID, str(exc), eligible=self._eligible)
        elif decided is None or tag != self._request_dict[CONTEXT]["tag"]:  # an exception object may be raised by many tasks
            failed, decided = self._decide(exc, None)
        if isinstance(decided, decision.Redeliver):
            # FAILURE is stored and has been acted on: what failed outside the attempt ends here.
            decided = decision.DeadLetter(Reason.NON_RETRYABLE, "failed outside the task's own code")
        failed = replace(failed or failed_of(exc, with_traceback=False), traceback=str(exc_info.traceback))
        return self._death(decided, failed)

    def _death(self, decided: Decision, failed: Failed) -> Ending:
        assert not isinstance(decided, decision.Redeliver)  # noqa: S101 - the callers have looked
        keep = isinstance(decided, decision.DeadLetter) and self._target(decided.reason) is not None
        return Ending(Outcome.DEAD_LETTERED if keep else Outcome.DISCARDED, decided.reason, failed, keep, decided.detail)

    def _target(self, reason: Reason | None) -> str | None:
        """Where what dies of this reason goes; None where it is not kept."""
        assert self._held is not None  # noqa: S101 - only asked where we hold the message
        policy = self._policy
        find = policy.expiry_queue_for if reason is Reason.EXPIRED else policy.dead_letter_queue_for
        name: str | None = find(self._held.queue)
        return name

    def _on_lost(self, exc: BaseException, exc_info: ExceptionInfo) -> None:
        """The child could not report: decide, store and tell here what it would have."""
        state.task_ready(self)
        if state.should_terminate:
            return  # a cold shutdown killed it: the message is given back
        cause = {WorkerLostError: Reason.WORKER_LOST, TimeLimitExceeded: Reason.TIME_LIMIT}.get(type(exc))
        failed, decided = self._decide(exc, cause)
        if cause is Reason.WORKER_LOST and not self._task.acks_late:
            # Acknowledged before it ran: after a crash nobody may run it again.
            decided = decision.ending(self._policy, cause, "acknowledged before it ran", eligible=self._eligible)
        if isinstance(decided, decision.Redeliver):
            self._redeliver_lost(exc, exc_info, failed, decided)
            return
        self._tell_failure(exc, exc_info)
        logger.error("Task handler raised error: %r", exc)
        self._leave(self._death(decided, failed))

    def _tell_failure(self, exc: BaseException, exc_info: ExceptionInfo | None) -> None:
        """Store FAILURE, call the error callbacks and tell the signal: what the child would have done."""
        traceback = None if exc_info is None else exc_info.traceback
        self.task.request_stack.push(self._context)
        try:
            self.task.backend.mark_as_failure(self.id, exc, request=self._context, store_result=self.store_errors)
            if isinstance(exc, TimeLimitExceeded):  # Celery tells the task of this death in its worker, and of no other
                self.task.on_failure(exc, self.id, self.args, self.kwargs, exc_info)
                self.task.after_return(FAILURE, exc, self.id, self.args, self.kwargs, None)
            signals.task_failure.send(
                sender=self.task,
                task_id=self.id,
                exception=exc,
                args=self.args,
                kwargs=self.kwargs,
                traceback=traceback,
                einfo=exc_info,
            )
        except Exception:  # noqa: BLE001 - a result that cannot be stored does not hold the message
            log.exception("hook.failed", task_id=self.id, hook="mark_as_failure")
        finally:
            self.task.request_stack.pop()
        self.send_event("task-failed", exception=repr(exc), traceback=str(traceback or ""))

    def _redeliver_lost(self, exc: BaseException, exc_info: Any, failed: Failed, decided: decision.Redeliver) -> None:
        state.task_ready(self)
        traceback = None if exc_info is None else exc_info.traceback
        reason = Retry(exc=exc, when=decided.delay)
        self.task.request_stack.push(self._context)
        try:
            if self.store_errors:
                self.task.backend.mark_as_retry(self.id, exc, traceback, request=self._context)
            self.task.on_retry(exc, self.id, self.args, self.kwargs, exc_info)
            signals.task_retry.send(sender=self.task, request=self._context, reason=reason, einfo=exc_info)
        except Exception:  # noqa: BLE001 - the task's own code
            log.exception("hook.failed", task_id=self.id, hook="on_retry")
        finally:
            self.task.request_stack.pop()
        self._redeliver(round(decided.delay * 1000), failed, crash=True)
        self.send_event("task-retried", exception=repr(exc), traceback="")

    # transitions

    def _redeliver(self, delay_ms: int, failed: Failed, *, crash: bool = False, requeued: bool = False) -> None:
        self._left = True
        held = self._held
        assert held is not None  # noqa: S101 - the callers have looked
        now = self._install.owner.now_ms()
        attempt = Attempt(
            at_ms=now,
            worker=self._hostname,
            exception=f"{failed.type}: {failed.message}",
            delay_ms=delay_ms,
        )
        message = redelivered(
            opened(held.raw),
            held.queue,
            seen_ms=held.seen_ms,
            attempt=attempt,
            crash=crash,
            requeued=requeued,
            due_ms=now + delay_ms if delay_ms else None,
        )
        if self._expires_ms is not None:
            delay_ms = min(delay_ms, max(self._expires_ms - now, 0))  # where it expires earlier, it is to die then
        event = self._event(Outcome.REDELIVERY_SCHEDULED, _crash_reason(failed) if crash else None, failed, delay_ms)
        raw = sealed(message)
        self._carry_out(
            lambda: self._install.transport.defer(
                self._tag,
                held.list_name,
                raw,
                task_id=self.id,
                event=event,
                delay_ms=delay_ms,
            ),
        )

    def _leave(self, ending: Ending) -> None:
        self._left = True
        held, failed = self._held, ending.failed
        assert held is not None  # noqa: S101 - the callers have looked
        event = self._event(ending.outcome, ending.reason, failed)
        place = resting_place(self._envelope, held.queue, self._target(ending.reason) if ending.keep else None, self._policy)
        target = place.target
        if target is None or ending.reason is None:
            self._carry_out(lambda: self._install.transport.acknowledge(self._tag, event))
            if ending.reason is not None:
                tell_death(event, None, ending.detail)
            return
        now = self._install.owner.now_ms()
        attempt = None
        if ending.reason is not Reason.EXPIRED:
            said = "" if failed is None else f"{failed.type}: {failed.message}"
            attempt = Attempt(at_ms=now, worker=self._hostname, exception=said)
        transition = burial(
            self._install.transport,
            held,
            opened(held.raw),
            event,
            target=target,
            reason=ending.reason,
            now_ms=now,
            attempt=attempt,
            failed=failed,
            detail=ending.detail,
            tag=self._tag,
            must_exist=not self._policy.auto_create_dead_letter_resources,
            parked=place.parked,
        )
        self._carry_out(transition)
        tell_death(event, target, ending.detail)

    def _acknowledge_early(self) -> None:
        """`acks_late=False`: from here on the message is never run again; it is held until its outcome is known, and recorded."""
        tag, install = self._tag, self._install
        if not install.owner.has_minted(tag):
            # kombu's own receive: what stayed in its `unacked` would come back after the visibility timeout.
            self._carry_out(lambda: install.transport.acknowledge(tag, None))
            self._tag = ""
            return
        self.acknowledged = True
        install.outbox.carry_out(tag, lambda: install.transport.accept(tag), lambda _: install.owner.make_room(tag))

    def _recording(self, on_success: Any) -> Any:
        def recording(result: tuple[bool, Any, float], **kwargs: Any) -> None:
            on_success(result, **kwargs)
            if not result[0]:
                self._leave(Ending(Outcome.SUCCEEDED))

        return recording

    def _carry_out(self, transition: Any) -> None:
        self.acknowledged = True
        tag = self._tag
        self._install.outbox.carry_out(tag, transition, lambda answer: self._answered(tag, answer))

    def _answered(self, tag: str, answer: Answer) -> None:
        if answer is Answer.REFUSED:
            log.warning("transition.refused", task_id=self.id, tag=tag, why="the message was given to another worker")
        self._install.owner.drop(tag)

    def _event(
        self,
        outcome: Outcome,
        reason: Reason | None,
        failed: Failed | None = None,
        delay_ms: int | None = None,
    ) -> Event:
        request, envelope, held = self._request_dict, self._envelope, self._held
        assert held is not None  # noqa: S101 - the callers have looked
        return Event(
            task_id=recorded_id(self.id, held.raw),
            outcome=outcome,
            generation=envelope.generation,
            task=self._type,
            queue=envelope.life_queue(held.queue),
            reason="" if reason is None else reason,
            attempt=envelope.attempt + 1,
            delivery=envelope.delivery + 1,
            delay_ms=delay_ms,
            worker=self._hostname,
            exception="" if failed is None else failed.type,
            fingerprint="" if failed is None else failed.fingerprint,
            root_id=request.get("root_id") or "",
            parent_id=request.get("parent_id") or "",
            nesting=request.get("replaced_task_nesting") or 0,
        )


def request_class(base: type[Request]) -> type[Request]:
    """The request class to use for a task whose own one is `base`."""
    if issubclass(base, Egress):
        return base
    if base is Request:
        return Egress
    # The application's own class is in front: what it overrides wraps what is here, as it wraps Celery's.
    return type(f"Egress{base.__name__}", (base, Egress), {"__module__": __name__})


def _crash_reason(failed: Failed) -> Reason:
    return Reason.TIME_LIMIT if failed.type.endswith("TimeLimitExceeded") else Reason.WORKER_LOST


def _unwrapped(exc: BaseException) -> BaseException:
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
