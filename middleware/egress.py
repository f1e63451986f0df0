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
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery import signals
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import Request

from redelivery.middleware import decision
from redelivery.middleware.departure import burial
from redelivery.middleware.envelope import Attempt, Envelope, Failed, eligible_of, opened, redelivered, sealed
from redelivery.middleware.logs import log
from redelivery.middleware.outcomes import Event, Outcome, Reason
from redelivery.middleware.task import CONTEXT, DECIDED, Redelivering, failed_of
from redelivery.middleware.transports.base import Answer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from billiard.einfo import ExceptionInfo

    from redelivery.middleware.decision import Decision
    from redelivery.middleware.install import Redelivery
    from redelivery.middleware.transports.base import Held

__all__ = ["Egress", "request_class"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request is to end when Celery next acknowledges or rejects it."""

    outcome: Outcome
    reason: Reason | None = None
    failed: Failed | None = None
    keep: bool = False
    detail: str = ""


class Egress(Request):
    """Celery's request, whose message leaves by a transition."""

    _held: Held | None = None
    _ending: Ending | None = None
    _left = False
    _future: Future[Any] | None = None

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        held: Held | None = getattr(message, "held", None)
        install: Redelivery | None = getattr(self._app, "redelivery", None)
        if held is None or install is None or not install.is_enabled(self._type, held.queue):
            return
        self._held, self._install, self._tag = held, install, held.tag
        held.request = self
        self._envelope = Envelope.of(message.headers)
        if self._envelope.served_eta is not None and self._request_dict.get("eta") == self._envelope.served_eta:
            # The delay store has waited for this ETA, by the server's clock: Celery must not judge it again by this machine's.
            self._eta = None
        self._request_dict[CONTEXT] = self._context_of(install)
        if not self._task.acks_late:
            self.on_success: Any = self._recording(self.on_success)

    def _context_of(self, install: Redelivery) -> dict[str, Any]:
        held, envelope = self._held, self._envelope
        assert held is not None  # noqa: S101 - set just before
        first_seen = held.seen_ms if envelope.first_seen_ms is None else envelope.first_seen_ms
        return {
            "tag": held.tag,
            "queue": held.queue,
            "attempt": self.attempt,
            "generation": envelope.generation,
            "age": max(held.seen_ms - first_seen, 0) / 1000,
            "received": time.monotonic(),
            "waited": sum(each.get("delay") or 0 for each in envelope.attempts) / 1000,
            "eligible": eligible_of(self._request_dict),
            "must_start": self.must_start and install.shares_process,
        }

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

    def keep_future(self) -> None:
        """Keep what a pool of threads returns: it alone can take back a task that has not begun; Celery keeps a weak reference."""
        execute = getattr(self, "execute_using_pool")  # noqa: B009 - the generated class's, which mypy cannot see

        def execute_using_pool(pool: Any, **kwargs: Any) -> Any:
            result = execute(pool, **kwargs)
            self._future = getattr(result, "f", None)
            return result

        self.execute_using_pool = execute_using_pool

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
        if self.acknowledged:
            return
        if self._ending is not None:
            self._leave(self._ending)
            return
        failed = Failed(type="celery.exceptions.Reject", message=f"rejected, requeue={requeue}", fingerprint="rejected")
        decided = self._decide(Reject("rejected"), Reason.REJECTED)[1] if requeue else None
        if isinstance(decided, decision.Redeliver):
            self._redeliver(0, failed)  # at once, as Celery requeues
        else:
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
                self._redeliver(exc.delay_ms, failed)
        elif not self.acknowledged:
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
            exc_info = self._worker_lost_info(exc)
            exc = _unwrapped(exc_info.exception)
        if isinstance(exc, (WorkerLostError, TimeLimitExceeded, MemoryError)) and not self._success_was_stored():
            self._on_lost(exc, exc_info)
            return
        if isinstance(exc, Ignore):
            self._ending = Ending(Outcome.IGNORED)
        elif not isinstance(exc, (Reject, WorkerLostError)):
            self._ending = self._death_of(exc, exc_info)
        super().on_failure(exc_info, send_failed_event, return_ok)
        if not self._task.acks_late and self._ending is not None and not self._left:
            self._leave(self._ending)

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
        return bool(self.expires) and datetime.fromtimestamp(self._install.owner.now_ms() / 1000, UTC) > self.expires

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if self._held is not None and self._ending is None:
            failed = Failed(type="celery.exceptions.TaskRevokedError", message=reason, fingerprint=reason)
            expiry = decision.ending(self._policy, Reason.EXPIRED, "", eligible=self._eligible)
            self._ending = self._death(expiry, failed) if expired else Ending(Outcome.REVOKED)
        super()._announce_revoked(reason, terminated, signum, expired)

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
        return failed_of(exc), self._install.decide(self._type, self._policy, failure, idle_for=context["waited"])

    def _death_of(self, exc: BaseException, exc_info: ExceptionInfo) -> Ending:
        """What the child decided; or, where its word was lost with an exception that cannot be pickled, what follows here."""
        decided, failed, tag = getattr(exc, DECIDED, (None, None, None))
        if decided is None or tag != self._request_dict[CONTEXT]["tag"]:  # an exception object may be raised by many tasks
            failed, decided = self._decide(exc, None)
            failed = Failed(
                type=failed.type,
                message=failed.message,
                traceback=str(exc_info.traceback),
                fingerprint=failed.fingerprint,
            )
        if isinstance(decided, decision.Redeliver):
            # FAILURE is stored and has been acted on: what failed outside the attempt ends here.
            decided = decision.DeadLetter(Reason.NON_RETRYABLE, "failed outside the task's own code")
        return self._death(decided, failed or failed_of(exc))

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
        if isinstance(decided, decision.Redeliver):
            self._redeliver_lost(exc, exc_info, failed, decided)
            return
        self.task.backend.mark_as_failure(self.id, exc, request=self._context, store_result=self.store_errors)
        self.task.request_stack.push(self._context)
        try:
            signals.task_failure.send(
                sender=self.task,
                task_id=self.id,
                exception=exc,
                args=self.args,
                kwargs=self.kwargs,
                traceback=exc_info.traceback,
                einfo=exc_info,
            )
        finally:
            self.task.request_stack.pop()
        self.send_event("task-failed", exception=repr(exc), traceback=str(exc_info.traceback))
        logger.error("Task handler raised error: %r", exc)
        self._leave(self._death(decided, failed))

    def _redeliver_lost(self, exc: BaseException, exc_info: Any, failed: Failed, decided: decision.Redeliver) -> None:
        state.task_ready(self)
        if self.store_errors:
            traceback = None if exc_info is None else exc_info.traceback
            self.task.backend.mark_as_retry(self.id, exc, traceback, request=self._context)
        reason = Retry(exc=exc, when=decided.delay)
        self.task.request_stack.push(self._context)
        try:
            self.task.on_retry(exc, self.id, self.args, self.kwargs, exc_info)
            signals.task_retry.send(sender=self.task, request=self._context, reason=reason, einfo=exc_info)
        except Exception:  # noqa: BLE001 - the task's own code
            log.exception("hook.failed", task_id=self.id, hook="on_retry")
        finally:
            self.task.request_stack.pop()
        self._redeliver(round(decided.delay * 1000), failed, crash=True)
        self.send_event("task-retried", exception=repr(exc), traceback="")

    # transitions

    def _redeliver(self, delay_ms: int, failed: Failed, *, crash: bool = False) -> None:
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
            due_ms=now + delay_ms if delay_ms else None,
        )
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
        target = self._target(ending.reason) if ending.keep else None
        if target is None or ending.reason is None:
            self._carry_out(lambda: self._install.transport.acknowledge(self._tag, event))
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
        )
        self._carry_out(transition)
        log.info("message.dead_lettered", task_id=self.id, queue=held.queue, dead_letter_queue=target, reason=ending.reason)

    def _acknowledge_early(self) -> None:
        """`acks_late=False`: the message is gone before the task runs, as its author asked; its outcome is recorded later."""
        tag = self._tag
        self._carry_out(lambda: self._install.transport.acknowledge(tag, None))
        self._tag = ""

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
            task_id=self.id,
            outcome=outcome,
            generation=envelope.generation,
            task=self._type,
            queue=held.queue,
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
    return type(f"Egress{base.__name__}", (Egress, base), {"__module__": __name__})


def _crash_reason(failed: Failed) -> Reason:
    return Reason.TIME_LIMIT if failed.type.endswith("TimeLimitExceeded") else Reason.WORKER_LOST


def _unwrapped(exc: BaseException) -> BaseException:
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
