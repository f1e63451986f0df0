"""The wrapper around a task, in the pool's child: one attempt, and the decision if it fails.

A success returns. A failure becomes a decision (`decision.decide`). If the message must be delivered again, the attempt raises
`Redelivering`, a `celery.exceptions.Retry`: Celery stores RETRY and sends its signals, and the worker moves the message. If it must
die, the attempt raises the task's own exception: Celery handles FAILURE, error callbacks, chords and chains, and the worker finds
the decision in the report. `Reject`, `Ignore`, eager runs and direct calls are not changed.

Limits: the child calls no broker. The exception is a pool that shares the worker's process: there the wrapper records starts.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from celery.app.task import Task as BaseTask
from celery.exceptions import Ignore, Reject, Retry, WorkerLostError, WorkerShutdown, WorkerTerminate
from structlog.contextvars import bind_contextvars, reset_contextvars

from redelivery.display import safe
from redelivery.errors import RedeliveryError

from ..messages.events import Reason
from .attempt import Attempt, Redelivering
from .retry import retry_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from ..runtime import Runtime


#: This attribute marks a wrapped task.
GUARDED = "__redelivery__"


class ResultRefused(RedeliveryError):
    """`retry=` refused the task's result, and its deliveries are used up: look at the task, or raise the limit."""


def guard(task: Task, runtime: Runtime) -> None:
    """Wrap a task, or its class's own `__call__` if it has one; a second call changes nothing."""
    if getattr(task, GUARDED, False):
        return
    calls = next(cls for cls in type(task).__mro__ if "__call__" in vars(cls)) is not BaseTask
    run = functools.partial(type(task).__call__, task) if calls else task.run
    options = runtime.policies.options_of(task.name)
    asks_for_results = options is not None and options.retry is not None
    attempted = _attempt if runtime.telemetry is None else runtime.telemetry.around(_attempt)

    @functools.wraps(run)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        attempt = Attempt.of(task, request)
        if attempt is None or request.is_eager or attempt.has_begun:
            return run(*args, **kwargs)  # there is no delivery, or the task's own `__call__` calls itself
        attempt.has_begun = True
        facts = attempt.facts
        bound = bind_contextvars(
            task_id=safe(request.id), attempt=facts.attempt, queue=safe(facts.queue), generation=facts.generation
        )
        try:
            if facts.must_start:
                runtime.start(facts.tag)
            return attempted(attempt, run, args, kwargs, asks_for_results=asks_for_results)
        finally:
            reset_contextvars(**bound)

    setattr(task, GUARDED, True)
    if calls:
        _insert(task, __call__=guarded)
    else:
        task.run = guarded
    if type(task).retry is BaseTask.retry:
        task.retry = retry_of(task, task.retry)
    else:  # the class's own `retry` calls Celery's by `super()`
        _insert(task, type("Retrying", (BaseTask,), {"retry": _method(retry_of(task, functools.partial(BaseTask.retry, task)))}))


def _insert(task: Task, *below: type, **members: Callable[..., Any]) -> None:
    """Give this task its own class, with these methods, and with these classes between its class and Celery's `Task`."""
    cls = type(task)
    methods = {name: _method(function) for name, function in members.items()}
    task.__class__ = type(cls.__name__, (cls, *below), {**methods, "__module__": cls.__module__, "__doc__": cls.__doc__})


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *args, **kwargs: function(*args, **kwargs)


def _attempt(
    attempt: Attempt,
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    asks_for_results: bool,
) -> Any:
    try:
        result = run(*args, **kwargs)
    except (Reject, Ignore):
        attempt.dying = None  # the task caught the exception of its last `retry`
        raise
    except Retry as exc:
        _carry_out_retry(exc, attempt.task)
        raise
    except SystemExit as exc:
        # On prefork the child ends, and the pool reports that. In a shared process nothing would report it.
        if not attempt.runtime.shares_process or isinstance(exc, (WorkerShutdown, WorkerTerminate)):
            raise
        lost = WorkerLostError(f"the task asked its process to exit: {exc!r}")
        raise attempt.conclude(attempt.decide(lost, cause=Reason.WORKER_LOST), lost) from exc
    except BaseException as exc:
        if not isinstance(exc, Exception) and (attempt.runtime.shares_process or isinstance(exc, KeyboardInterrupt)):
            raise  # pools of greenlets end their tasks by such exceptions, and report them
        if exc is attempt.raised:
            raise
        concluded = attempt.conclude(attempt.decide(exc), exc)
        if concluded is exc:
            raise
        raise concluded from exc
    decided = attempt.judge(result) if asks_for_results else None
    if decided is None:
        attempt.has_returned, attempt.dying = True, None
        return result
    raise attempt.conclude(decided, ResultRefused(f"{attempt.task.name} returned {result!r:.200}, which its retry= refuses"))


def _carry_out_retry(exc: Retry, task: Task) -> None:
    """Carry out a `Retry` that was raised but not published, by the task or by a task that it called as a function."""
    if exc.sig is None and not isinstance(exc, Redelivering):
        when = {"countdown": exc.when} if isinstance(exc.when, (int, float)) else {"eta": exc.when}
        task.retry(exc=exc.exc, **when)
