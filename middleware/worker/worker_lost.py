"""A lost pool child: the attempt could not report, so what it would have decided, stored and told is done here.

A child is lost when its process ends under its task (`WorkerLostError`), and when it is ended because its task ran out of time
(`TimeLimitExceeded`). Enters: what the pool says of it; leaves: the decision, carried out, and told to whoever waits for the
result. Celery 5.7's request knows whether a success was stored before; what stands in for that on 5.6 knows less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.exceptions import Retry, TimeLimitExceeded, WorkerLostError
from celery.states import FAILURE
from celery.worker import state
from celery.worker.request import logger

from ..logs import log
from ..messages.events import Reason
from ..policy import decision
from .held_delivery import Transitions

if TYPE_CHECKING:
    from ..messages.envelope import Failed

__all__ = ["LosingChild", "success_was_stored", "worker_lost_info"]


class LosingChild(Transitions):
    """A request whose pool child may be lost."""

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
        logger.error("Task handler raised error: %r", exc, exc_info=exc)  # trackers of errors read it
        self._leave(self._death(decided, failed))

    def _end_of_report(self, exc: BaseException, exc_info: ExceptionInfo) -> None:
        """The attempt reported what Celery takes for a lost child, or ends its worker for (`MemoryError`): all are told already."""
        state.task_ready(self)
        self.send_event("task-failed", exception=repr(exc), traceback=str(exc_info.traceback))
        self._leave(self._death_of(exc, exc_info))

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


def success_was_stored(request: Any) -> bool:
    """Whether the child was lost after its success had been stored. Celery 5.6 does not ask: there the attempt counts as lost."""
    asked = getattr(request, "_success_was_stored", None)
    return asked is not None and bool(asked())


def worker_lost_info(request: Any, exc: BaseException) -> ExceptionInfo:
    """A task's `SystemExit` or `KeyboardInterrupt`, reported by a child that ends of it, as the loss of that child."""
    made = getattr(request, "_worker_lost_info", None)
    if made is not None:
        return made(exc)
    try:
        msg = f"Worker exited prematurely: {exc!r}."
        raise WorkerLostError(msg)  # noqa: TRY301 - the report reads what is being handled
    except WorkerLostError:
        return ExceptionInfo()
