"""The report of a redelivery, which a pool's child sends to its worker.

Celery reports every failed attempt with a copy of each frame and the traceback as text, and pickles both into the pipe: most of the
cost of a failed attempt. If nothing uses them (no result backend, hook, receiver of `task_retry` or event consumer), a redelivery
reports the decision alone. Otherwise the report is Celery's own.

Celery allows this: `build_tracer` takes the class (`Info`) that handles an attempt's end. `lighten` gives the tasks of an app
tracers with the class here, after Celery has built its own: in the worker, and in each child that a pool starts.
"""

from __future__ import annotations

import time
from contextlib import suppress
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
from .attempt import DECIDED, DELIVERY, Attempt, Decided
from .result import Carried, leave_to_worker

if TYPE_CHECKING:
    from celery import Celery

    from ..runtime import Runtime
    from .attempt import Redelivering

#: In the form of Celery's lines about tasks.
LOG_DEAD_LETTER = "Task %(name)s[%(id)s] gave up its message: %(exc)s"


class Report:
    """Billiard's `ExceptionInfo` for a redelivery, without frames and without text."""

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
        """As billiard's."""
        return type(self.exception), self.exception, None


class Info(TraceInfo):
    """Celery's handling of an attempt's end; a redelivery that nothing listens for is reported without its traceback."""

    __slots__ = ("reported",)

    def handle_retry(self, task: Any, req: Any, store_errors: bool = True, **kwargs: Any) -> Any:
        """As Celery's; for a redelivery that is `is_unheard`, only the log line is written."""
        reason = self.retval
        is_unheard = getattr(reason, "is_unheard", None)
        if is_unheard is None:  # a retry that Celery itself has published
            return super().handle_retry(task, req, store_errors=store_errors, **kwargs)
        if not is_unheard:
            try:
                return super().handle_retry(task, req, store_errors=store_errors, **kwargs)
            except Exception as exc:  # noqa: BLE001 - the task's own hook, or its result backend: the redelivery stands
                log.exception("hook.failed", task_id=req.id, hook="on_retry", exception=type(exc).__name__)
                return Report(reason)
        info(LOG_RETRY, {"id": req.id, "name": get_task_name(req, task.name), "exc": harmless(str(reason))})
        return Report(reason)

    def _log_error(self, task: Any, req: Any, einfo: ExceptionInfo) -> None:
        """As Celery's; if the task itself raised `DeadLetter`, a warning without a traceback: it shows no error in the code."""
        if not isinstance(self.retval, DeadLetter):
            super()._log_error(task, req, einfo)
            return
        context = {"id": req.id, "name": get_task_name(req, task.name), "exc": harmless(repr(self.retval))}
        logger.warning(LOG_DEAD_LETTER, context, extra={"data": context})

    def handle_failure(self, task: Any, req: Any, **kwargs: Any) -> Any:
        """As Celery's; the copied frames do not go through the pipe, because the worker only reads their text.

        If the failure was outside the attempt, the decision is taken here. A redelivery then becomes a retry.
        """
        told: Any = self
        raised = told.retval
        was_decided = hasattr(raised, DECIDED)
        told.retval = concluded(task, req, raised)
        if isinstance(told.retval, Retry):
            told.state = RETRY
            self.reported = self.handle_retry(task, req, **kwargs)
            return self.reported
        try:
            self.reported = super().handle_failure(task, req, **kwargs)
        except Exception as exc:
            if was_decided or not hasattr(raised, DECIDED):
                with suppress(Exception):  # an exception without the decision, or one that cannot carry it: the worker decides
                    setattr(exc, DECIDED, getattr(raised, DECIDED))
                raise  # as Celery, which reports this exception instead; the message dies of the task's own
            # The result backend cannot store this failure either: the decision that was taken here stays.
            log.exception("hook.failed", task_id=req.id, hook="on_failure", exception=type(exc).__name__)
            self.reported = _einfo_of(raised)
        self.reported.tb = None
        attempt = Attempt.of(task, req)
        if attempt is not None and attempt.decided is not None:
            attempt.decided.attach(self.reported)
        return self.reported


def _einfo_of(raised: BaseException) -> ExceptionInfo:
    exc = get_pickleable_exception(raised)
    return ExceptionInfo((get_pickleable_etype(type(raised)), exc, raised.__traceback__))


def concluded(task: Any, req: Any, raised: Any) -> Any:
    """The exception to report for `raised`. If the attempt itself has not decided about it, the decision is taken here."""
    attempt = Attempt.of(task, req)
    if attempt is None or Decided.of(raised, attempt.facts.tag) is not None:
        return raised
    task.request_stack.push(req)  # the tracer has removed it, if the tracer itself failed
    try:
        if attempt.has_returned:
            then = f"{raised!r:.200}" if attempt.runtime.settings.store_failure_texts else type(raised).__name__
            return attempt.conclude(attempt.end(Reason.RESULT_NOT_STORED, f"the task has run; then {then}"), raised)
        if attempt.has_begun:
            return raised  # the attempt has decided, but this exception could not carry the decision
        return attempt.conclude(attempt.decide(raised), raised)
    finally:
        task.request_stack.pop()


def lighten(app: Celery, runtime: Runtime, hostname: str | None) -> None:
    """Build the tracers of this app's tasks again, as Celery builds them, with our `Info`."""
    if not runtime.enforces:
        return
    for name, task in app.tasks.items():
        if runtime.policies.is_enabled(name):
            task.__trace__ = _honest(task, build_tracer(name, task, app.loader, hostname, app=app, Info=Info))


def _honest(task: Any, trace: Any) -> Any:
    """Correct Celery's tracer: it reports a task that it could not begin (its kwargs are a list, for example) as a success."""

    def honest(uuid: Any, args: Any, kwargs: Any, request: Any = None) -> Any:
        attempt = None
        if request and DELIVERY in request:  # one attempt for both contexts that Celery makes of this request
            attempt = Attempt(task, task.app.redelivery, DeliveryFacts._make(request[DELIVERY]))
            request = {**request, DELIVERY: attempt}
            if attempt.facts.carries_result:
                leave_to_worker(task)
        began = time.monotonic()
        traced = trace(uuid, args, kwargs, request)
        if traced[2] is None:  # Celery reports the run time of a success only
            traced = (*traced[:2], time.monotonic() - began, *traced[3:])
        if isinstance(traced[0], ExceptionInfo) and hasattr(traced[1], "reported"):
            return traced[1].reported, *traced[1:]  # if Celery's own code raised, Celery returns another report
        if traced[1] is None and attempt is not None and attempt.result is not None:
            return *traced[:3], Carried.of(traced[3], attempt.result)
        if traced[1] is not None or not isinstance(traced[0], ExceptionInfo):
            return traced
        failure = Info(FAILURE, traced[0].exception)
        try:
            failure.handle_error_state(task, Context(request or {}, args=(), kwargs={}, called_directly=False))
        except Exception as exc:  # noqa: BLE001 - any client's message
            log.exception("hook.failed", task_id=str(uuid), hook="on_failure", exception=type(exc).__name__)
        return traced[0], failure, *traced[2:]

    return honest
