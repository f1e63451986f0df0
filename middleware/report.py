"""The report of a redelivery: what a pool's child tells its worker, where nobody asked for more.

Celery reports every failed attempt with a copy of each frame, formatted as text, and pickles both into the pipe; most of what an
attempt that fails costs is spent there. Where nobody could see it (no result backend stores it, no hook or receiver of `task_retry`
and no event consumer is told) a redelivery reports the decision alone. Where somebody could, the report is Celery's own.

The way in is Celery's: `build_tracer` takes the class (`Info`) that handles an attempt's end. `lighten` gives the tasks of an app
tracers with ours, after Celery has built its own: in the worker, and in each child that a pool starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.task import Context
from celery.app.trace import LOG_RETRY, TraceInfo, build_tracer, get_task_name, info, task_has_custom
from celery.backends.base import DisabledBackend
from celery.states import FAILURE

from redelivery.middleware.failure import stores_errors
from redelivery.middleware.logs import log

if TYPE_CHECKING:
    from celery import Celery

    from redelivery.middleware.attempt import Redelivering
    from redelivery.middleware.install import Redelivery

__all__ = ["Info", "Report", "is_heard", "lighten"]


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
    """Celery's handling of an attempt's end, but for a redelivery of which nobody hears."""

    __slots__ = ()

    def handle_retry(self, task: Any, req: Any, store_errors: bool = True, **kwargs: Any) -> Any:
        """As Celery's; its log line alone, where the redelivery says that this is enough."""
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
        info(LOG_RETRY, {"id": req.id, "name": get_task_name(req, task.name), "exc": str(reason)})
        return Report(reason)

    def handle_failure(self, task: Any, req: Any, **kwargs: Any) -> Any:
        """As Celery's; the copied frames do not go through the pipe, since the worker only reads their text."""
        reported = super().handle_failure(task, req, **kwargs)
        reported.tb = None
        return reported


def is_heard(task: Any, request: Any, *, has_events: bool) -> bool:
    """Whether anybody could see the traceback of a redelivery of this task."""
    if has_events or signals.task_retry.receivers or task_has_custom(task, "on_retry"):
        return True
    return stores_errors(task, request) and not isinstance(task.backend, DisabledBackend)


def lighten(app: Celery, install: Redelivery, hostname: str | None) -> None:
    """Build the tracers of this app's tasks anew, as Celery builds them, with our `Info`."""
    if not install.enforces:
        return
    for name, task in app.tasks.items():
        if install.is_enabled(name):
            task.__trace__ = _honest(task, build_tracer(name, task, app.loader, hostname, app=app, Info=Info))


def _honest(task: Any, trace: Any) -> Any:
    """Celery's tracer, which reports a task that it could not begin (its keywords are a list, say) as one that succeeded."""

    def honest(uuid: Any, args: Any, kwargs: Any, request: Any = None) -> Any:
        traced = trace(uuid, args, kwargs, request)
        if traced[1] is not None or not isinstance(traced[0], ExceptionInfo):
            return traced
        failure = Info(FAILURE, traced[0].exception)
        try:
            failure.handle_error_state(task, Context(request or {}, args=(), kwargs={}, called_directly=False))
        except Exception as exc:  # noqa: BLE001 - the message is anybody's
            log.exception("hook.failed", task_id=str(uuid), hook="on_failure", exception=type(exc).__name__)
        return traced[0], failure, *traced[2:]

    return honest
