"""The report of a redelivery, which a pool's child sends to its worker.

Celery reports every failed attempt with a copy of each frame and the traceback as text, and pickles both into the pipe. This is
most of the cost of a failed attempt. If nothing reads them (no result backend, hook, receiver of `task_retry` or event consumer), a
redelivery reports only the decision. Otherwise the report is Celery's own.

Celery's `build_tracer` takes the class (`Info`) that handles an attempt's end. After Celery has built its own tracers,
`replace_tracers` builds those of an app's tasks again, with the class here: in the worker, and in each child that a pool starts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.app.task import Context
from celery.app.trace import LOG_RETRY, TraceInfo, build_tracer, get_task_name, info, logger
from celery.exceptions import Retry
from celery.states import FAILURE, RETRY
from celery.utils.serialization import get_pickleable_etype, get_pickleable_exception

from redelivery.display import harmless

from ..logs import log
from ..messages.events import Reason
from ..policy.task_exceptions import DeadLetter
from ..transitions.facts import DeliveryFacts
from .attempt import DELIVERY, Attempt
from .result import Carried, leave_to_worker

if TYPE_CHECKING:
    from celery import Celery

    from ..runtime import Runtime
    from .attempt import Redelivering

#: Has the form of Celery's lines about tasks.
LOG_DEAD_LETTER = "Task %(name)s[%(id)s] gave up its message: %(exc)s"


class Report:
    """Billiard's `ExceptionInfo` for a redelivery, without frames and text."""

    __slots__ = ("exception",)

    type = None
    tb = None
    traceback = ""
    internal = False

    def __init__(self, exception: Redelivering) -> None:
        self.exception = exception

    def __reduce__(self) -> tuple[Any, ...]:
        return Report, (self.exception,)

    @property
    def exc_info(self) -> tuple[Any, ...]:
        """As in billiard's class."""
        return type(self.exception), self.exception, None


class Info(TraceInfo):
    """Celery's handling of an attempt's end; a redelivery whose traceback nothing reads is reported without it."""

    __slots__ = ("reported",)

    def handle_retry(self, task: Any, req: Any, store_errors: bool = True, **kwargs: Any) -> Any:
        """As Celery's; for a redelivery that is `is_unread`, only the log line is written."""
        reason = self.retval
        is_unread = getattr(reason, "is_unread", None)
        if is_unread is None:  # a retry that Celery itself has published
            return super().handle_retry(task, req, store_errors=store_errors, **kwargs)
        if not is_unread:
            try:
                return super().handle_retry(task, req, store_errors=store_errors, **kwargs)
            except Exception as exc:  # noqa: BLE001 - from the task's hook or result backend; the message is still redelivered
                log.exception("hook.failed", task_id=req.id, hook="on_retry", exception=type(exc).__name__)
                return Report(reason)
        info(LOG_RETRY, {"id": req.id, "name": get_task_name(req, task.name), "exc": harmless(str(reason))})
        return Report(reason)

    def _log_error(self, task: Any, req: Any, einfo: ExceptionInfo) -> None:
        """As Celery's; but `DeadLetter` is no error in the code: it gives a warning without a traceback."""
        if not isinstance(self.retval, DeadLetter):
            super()._log_error(task, req, einfo)
            return
        context = {"id": req.id, "name": get_task_name(req, task.name), "exc": harmless(repr(self.retval))}
        logger.warning(LOG_DEAD_LETTER, context, extra={"data": context})

    def handle_failure(self, task: Any, req: Any, **kwargs: Any) -> Any:
        """As Celery's; the copied frames do not go through the pipe, because the worker only reads their text.

        If the failure was outside the attempt, the decision is taken here. A redelivery then becomes a retry.
        """
        this: Any = self
        raised = this.retval
        attempt: Any = Attempt.of(task, req)
        is_outside = attempt is not None and (attempt.has_returned or not attempt.has_begun)
        if is_outside:
            this.retval = concluded(attempt, req, raised)
        if isinstance(this.retval, Retry):
            this.state = RETRY
            self.reported = self.handle_retry(task, req, **kwargs)
            return self.reported
        try:
            self.reported = super().handle_failure(task, req, **kwargs)
        except Exception as exc:
            if not is_outside:
                raise  # as Celery does, which reports this exception; the message dies of the task's own
            # The result backend cannot store this failure either: the decision from above stays.
            _log_hook(req.id, exc)
            self.reported = _einfo_of(raised)
        self.reported.tb = None
        return self.reported


def _log_hook(task_id: Any, exc: Exception) -> None:
    log.exception("hook.failed", task_id=str(task_id), hook="on_failure", exception=type(exc).__name__)


def _einfo_of(raised: BaseException) -> ExceptionInfo:
    exc = get_pickleable_exception(raised)
    return ExceptionInfo((get_pickleable_etype(type(raised)), exc, raised.__traceback__))


def concluded(attempt: Attempt, req: Any, raised: Any) -> Any:
    """The exception to report for `raised`, which came before the task's own code began or after it returned."""
    attempt.task.request_stack.push(req)  # a tracer that failed has removed it
    try:
        if attempt.has_returned:
            then = f"{raised!r:.200}" if attempt.runtime.settings.store_failure_texts else type(raised).__name__
            return attempt.conclude(attempt.end(Reason.RESULT_NOT_STORED, f"the task has run; then {then}"), raised)
        return attempt.conclude(attempt.decide(raised), raised)
    finally:
        attempt.task.request_stack.pop()


def replace_tracers(app: Celery, runtime: Runtime, hostname: str | None) -> None:
    """Build the tracers of this app's tasks again, with `Info`."""
    if not runtime.enforces:
        return
    for name, task in app.tasks.items():
        if runtime.policies.is_enabled(name):
            task.__trace__ = _corrected(task, build_tracer(name, task, app.loader, hostname, app=app, Info=Info))


def _corrected(task: Any, trace: Any) -> Any:
    """Correct Celery's tracer, which reports a task that it could not begin (for example, its kwargs are a list) as a success."""

    def trace_task(uuid: Any, args: Any, kwargs: Any, request: Any = None) -> Any:
        attempt = None
        if request and DELIVERY in request:  # Celery makes two contexts from this request: they share the attempt
            attempt = Attempt(task, task.app.redelivery, DeliveryFacts._make(request[DELIVERY]))
            request = {**request, DELIVERY: attempt}
            if attempt.facts.carries_result:
                leave_to_worker(task)
        began = time.monotonic()
        report, failure, took, text = _traced(attempt, trace, uuid, args, kwargs, request)
        if took is None:  # Celery reports the run time of a success only
            took = time.monotonic() - began
        if isinstance(report, ExceptionInfo):
            if failure is None:
                failure = _not_begun(task, uuid, request, report)
            else:
                report = getattr(failure, "reported", report)  # if Celery's own code raised, it returns another report
            if attempt is not None and attempt.dying is not None:
                report.dying = attempt.dying
        elif failure is None and attempt is not None and attempt.result is not None:
            text = Carried.of(text, attempt.result)
        return report, failure, took, text

    return trace_task


def _traced(attempt: Attempt | None, trace: Any, uuid: Any, *call: Any) -> Any:
    try:
        return trace(uuid, *call)
    except Exception as exc:
        if attempt is None or attempt.dying is None:
            raise
        _log_hook(uuid, exc)  # a hook or a result backend raised again when Celery reported its first error
        return _einfo_of(exc), Info(FAILURE, exc), None, None


def _not_begun(task: Any, uuid: Any, request: Any, report: Any) -> Info:
    failure = Info(FAILURE, report.exception)
    try:
        failure.handle_error_state(task, Context(request or {}, args=(), kwargs={}, called_directly=False))
    except Exception as exc:  # noqa: BLE001 - any client's message
        _log_hook(uuid, exc)
    return failure
