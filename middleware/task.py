"""What runs around a task, in the pool's child: one attempt, and the decision that follows where it fails.

A success returns. A failure becomes a decision (`decision.decide`): to be delivered again, the attempt raises `Redelivering`, a
`celery.exceptions.Retry`, so that Celery stores RETRY and tells whoever listens, and egress moves the message; to die, it raises
what the task raised, so that FAILURE, error callbacks, chords and chains are Celery's, and egress finds the decision on the
exception. `Reject`, `Ignore`, eager runs and direct calls pass through untouched.

Limits: runs in the pool's child and touches no broker there, but for the recorded start of a message that a crash has touched, on
pools that share the worker's process.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from celery.app.task import Task as BaseTask
from celery.exceptions import Ignore, Reject, Retry, WorkerLostError, WorkerShutdown, WorkerTerminate
from celery.utils.saferepr import saferepr as safe_repr
from celery.utils.serialization import get_pickleable_exception
from celery.utils.time import maybe_make_aware
from structlog.contextvars import bind_contextvars, reset_contextvars

from redelivery.errors import RedeliveryError
from redelivery.middleware import decision, envelope
from redelivery.middleware.envelope import Failed
from redelivery.middleware.lifetime import PUBLISHED
from redelivery.middleware.logs import log
from redelivery.middleware.outcomes import Reason
from redelivery.middleware.report import is_heard
from redelivery.middleware.tenacious import UNSET, StrategyFailed, decide_with_tenacity

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from redelivery.middleware.decision import Decision
    from redelivery.middleware.install import Redelivery

__all__ = ["CONTEXT", "DECIDED", "Redelivering", "ResultRefused", "classes_of", "failed_of", "guard"]

#: Where a request carries what its attempt must know (`Delivery.to_context`).
CONTEXT = "redelivery_delivery"
#: The attribute of an exception that carries the decision it led to.
DECIDED = "__redelivery__"
MOST_FRAMES = 12


class ResultRefused(RedeliveryError):
    """The task's result was refused by `retry=`, and its deliveries are used up: look at the task, or raise the limit."""


class Redelivering(Retry):
    """Says that this attempt failed, and that its message is to be delivered again after `delay_ms`."""

    def __init__(self, message: str | None = None, exc: BaseException | None = None, when: Any = None, **facts: Any) -> None:
        super().__init__(message, exc, when)
        self.delay_ms: int = facts.get("delay_ms", 0)
        self.failed: Failed | None = facts.get("failed")
        #: Whether it is reported without its traceback (`redelivery.middleware.report`).
        self.is_unheard: bool = facts.get("is_unheard", False)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_unheard:
            failed = self.failed
            return _unheard, (self.delay_ms, None if failed is None else (failed.type, failed.message, failed.fingerprint))
        return _redelivering, (self.message, self.exc, self.when, self.delay_ms, self.failed)


def _redelivering(message: str | None, exc: BaseException | None, when: Any, delay_ms: int, failed: Failed | None) -> Redelivering:
    return Redelivering(message, exc, when, delay_ms=delay_ms, failed=failed)


def _unheard(delay_ms: int, said: tuple[str, str, str] | None) -> Redelivering:
    failed = None if said is None else Failed(type=said[0], message=said[1], fingerprint=said[2])
    return Redelivering(None, None, None, delay_ms=delay_ms, failed=failed, is_unheard=True)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one task: what it must know to decide."""

    task: Task
    install: Redelivery
    delivery: dict[str, Any]

    def decide(
        self,
        exc: BaseException | None,
        *,
        requested_delay: float | None = None,
        result: Any = UNSET,
        cause: Reason | None = None,
    ) -> Decision | None:
        """What follows; None where a result was handed in and is accepted."""
        task, delivery = self.task, self.delivery
        policy = self.install.policy_for(delivery["queue"], task.name)
        if cause is Reason.WORKER_LOST and not task.acks_late:
            return decision.ending(policy, cause, "acknowledged before it ran", eligible=delivery["eligible"])
        failure = decision.Failure(
            attempt=delivery["attempt"],
            age=self.age(),
            exception=exc,
            cause=cause,
            requested_delay=requested_delay,
            retries_left=0 if delivery.get("gave_up") else None,
            eligible=delivery["eligible"],
            throws=classes_of(task.throws),
        )
        request = task.request
        try:
            return decide_with_tenacity(
                self.install.strategies_of(delivery["queue"], task.name),
                policy,
                failure,
                task_args=tuple(request.args or ()),
                task_kwargs=dict(request.kwargs or {}),
                fn=task.run,
                idle_for=delivery["waited"],
                result=result,
                random=random,
            )
        except StrategyFailed as failed:
            log.exception("decision.failed", task=task.name)
            return failed.decision

    def age(self) -> float:
        """Seconds since the message was first seen."""
        return float(self.delivery["age"] + time.monotonic() - self.delivery["received"])

    def conclude(self, decided: Decision, exc: BaseException, *, reported: Any = UNSET) -> BaseException:
        """The exception to raise so that egress carries this decision out. `reported` is what Celery shows, where that differs."""
        failed = failed_of(exc, with_traceback=False)  # a death's is in the pool's report
        if isinstance(decided, decision.Redeliver):
            is_unheard = not is_heard(self.task, self.task.request, has_events=self.delivery["has_events"])
            reported = exc if reported is UNSET else reported
            if reported is not None:
                reported = safe_repr(reported) if is_unheard else get_pickleable_exception(reported)
            facts: dict[str, Any] = {"delay_ms": round(decided.delay * 1000), "failed": failed, "is_unheard": is_unheard}
            return Redelivering(None, reported, decided.delay, **facts)
        try:
            setattr(exc, DECIDED, (decided, failed, self.delivery["tag"]))
        except AttributeError:  # an exception with slots: egress decides again
            log.debug("decision.not_attached", exception=type(exc).__name__)
        return exc


def guard(task: Task, install: Redelivery) -> None:
    """Put the wrapper around a task, and around its class's own `__call__` where it has one; a second time changes nothing."""
    if getattr(task, DECIDED, False):
        return
    calls = next(cls for cls in type(task).__mro__ if "__call__" in vars(cls)) is not BaseTask
    run = functools.partial(type(task).__call__, task) if calls else task.run
    options = install.options_of(task.name)
    asks_for_results = options is not None and options.retry is not None

    @functools.wraps(run)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        delivery = task.request.get(CONTEXT)
        if delivery is None or task.request.is_eager or delivery.get("has_begun"):
            return run(*args, **kwargs)  # no delivery; or a task with a `__call__` that calls itself
        delivery["has_begun"] = True
        context = {name: delivery[name] for name in ("attempt", "queue", "generation")}
        bound = bind_contextvars(task_id=task.request.id, **context)
        try:
            if delivery["must_start"]:
                install.start(delivery["tag"])
            return _attempt(Attempt(task, install, delivery), run, args, kwargs, asks_for_results=asks_for_results)
        finally:
            reset_contextvars(**bound)

    setattr(task, DECIDED, True)
    if calls:
        _call(task, guarded)
    else:
        task.run = guarded
    task.retry = _retry_of(task, install, task.retry)


def _call(task: Task, guarded: Callable[..., Any]) -> None:
    """Give this one task a class whose `__call__` is `guarded`: Python looks for it there, and other tasks may share the class."""

    def __call__(_: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it is one
        return guarded(*args, **kwargs)

    cls = type(task)
    members = {"__call__": __call__, "__module__": cls.__module__, "__doc__": cls.__doc__}
    task.__class__ = type(cls.__name__, (cls,), members)


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
    except (Reject, Ignore, Retry):
        raise
    except SystemExit as exc:
        # On prefork its child ends, and the pool says so. Where tasks share the worker's process nobody would, or the worker ends.
        if not attempt.install.shares_process or isinstance(exc, (WorkerShutdown, WorkerTerminate)):
            raise
        lost = WorkerLostError(f"the task asked its process to exit: {exc!r}")
        decided = attempt.decide(lost, cause=Reason.WORKER_LOST)
        assert decided is not None  # noqa: S101 - only a result can be accepted
        raise attempt.conclude(decided, lost) from exc
    except Exception as exc:
        if getattr(exc, DECIDED, (None, None, None))[2] == attempt.delivery["tag"]:
            raise
        decided = attempt.decide(exc, requested_delay=None)
        assert decided is not None  # noqa: S101 - only a result can be accepted
        concluded = attempt.conclude(decided, exc)
        if concluded is exc:
            raise
        raise concluded from exc
    decided = attempt.decide(None, result=result) if asks_for_results else None
    if decided is None:
        return result
    raise attempt.conclude(decided, ResultRefused(f"{attempt.task.name} returned {result!r:.200}, which its retry= refuses"))


def _retry_of(task: Task, install: Redelivery, original: Callable[..., Any]) -> Callable[..., Any]:
    """`Task.retry`, carried out as a move of the message; with changed arguments or options it is published anew, as by Celery.

    The lower of two limits stops it: its own, which counts Celery's `retries`, and the policy's, which counts attempts.
    """

    @functools.wraps(original)
    def retry(  # noqa: PLR0917 - Celery's signature
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,
        eta: Any = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        request = task.request
        delivery = request.get(CONTEXT)
        if delivery is None or request.is_eager or request.called_directly:
            return original(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if isinstance(exc, Reject):
            raise exc  # `autoretry_for=(Exception,)` has caught what was meant for the worker
        if max_retries is not None:
            task.override_max_retries = max_retries
        exc = exc() if isinstance(exc, type) else exc
        attempt = Attempt(task, install, delivery)
        limit = task.max_retries if max_retries is None else max_retries
        delivery["gave_up"] = limit is not None and request.retries + 1 > limit
        cause = next((each for each in (exc, sys.exc_info()[1]) if each is not None), Retry("asked for by the task"))
        decided = attempt.decide(cause, requested_delay=_delay(task, eta, countdown))
        assert decided is not None  # noqa: S101 - only a result can be accepted
        if not isinstance(decided, decision.Redeliver):
            raise attempt.conclude(decided, _given_up(task, decided, args, kwargs) if exc is None else exc)
        if throw and args is None and kwargs is None and not options:
            raise attempt.conclude(decided, cause, reported=exc)
        options["headers"] = {**(options.get("headers", request.headers) or {}), **_history(attempt, cause, decided)}
        now_ms = delivery["received_ms"] + (time.monotonic() - delivery["received"]) * 1000  # by the server's clock
        delay = _delay(task, eta, countdown)
        if delay:  # Celery would add it to what this machine's clock says
            eta, countdown = datetime.fromtimestamp(now_ms / 1000 + delay, UTC), None
        if delivery["expires_ms"] is not None:
            options.setdefault("expires", max(delivery["expires_ms"] - now_ms, 0) / 1000)
        try:
            return original(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        except Reject as rejected:  # Celery's word for a publication that failed: here the message stays, and runs again
            reason = rejected.reason
            failed = reason if isinstance(reason, Exception) else rejected
            delivery["gave_up"] = False
            decided = attempt.decide(failed)
            assert decided is not None  # noqa: S101 - only a result can be accepted
            raise attempt.conclude(decided, failed) from failed

    return retry


def _given_up(task: Task, decided: Any, args: Any, kwargs: Any) -> Exception:
    """What Celery raises where the retries are used up; it names the limit where that was not the task's own."""
    request = task.request
    args, kwargs = tuple(request.args if args is None else args), request.kwargs if kwargs is None else kwargs
    text = f"Can't retry {task.name}[{request.id}] args:{args} kwargs:{kwargs}"
    if "max_retries" not in decided.detail:
        text = f"{text}: {decided.detail}"
    given_up: Exception = task.MaxRetriesExceededError(text, task_args=args, task_kwargs=kwargs)
    return given_up


def _history(attempt: Attempt, cause: BaseException, decided: decision.Redeliver) -> dict[str, Any]:
    """The header that makes what is published anew the next attempt of the same life."""
    request, delivery = attempt.task.request, attempt.delivery
    failed = failed_of(cause, with_traceback=False)
    seen_ms = delivery["first_seen_ms"]
    ended = envelope.Attempt(
        at_ms=seen_ms + round(attempt.age() * 1000),
        worker=request.hostname or "",
        exception=f"{failed.type}: {failed.message}",
        delay_ms=round(decided.delay * 1000),
    )
    known, published = request.get(envelope.HEADER), request.get(PUBLISHED)
    header = envelope.republished(known, request.delivery_info, delivery["queue"], seen_ms=seen_ms, attempt=ended)
    return {envelope.HEADER: header} if published is None else {envelope.HEADER: header, PUBLISHED: published}


def _delay(task: Task, eta: Any, countdown: float | None) -> float:
    """Seconds to wait; Celery takes the countdown where both are given, and reads an ETA without a zone by its own time zone."""
    if eta and not countdown:
        return float(max(maybe_make_aware(eta, task.app.timezone).timestamp() - time.time(), 0.0))
    return float(task.default_retry_delay if countdown is None else countdown)


def failed_of(exc: BaseException, *, with_traceback: bool = True) -> Failed:
    """What an exception says, for the death record: its type, message, traceback and fingerprint."""
    path, at = [], exc.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        path.append(f"{PurePath(code.co_filename).name}:{code.co_name}")
        at = at.tb_next
    kind = f"{type(exc).__module__}.{type(exc).__qualname__}".removeprefix("builtins.")
    text = f"{kind}|{'|'.join(path[-MOST_FRAMES:])}"
    digest = hashlib.sha1(text.encode(errors="replace"), usedforsecurity=False).hexdigest()[:12]
    written = "".join(traceback.format_exception(exc)) if with_traceback else ""
    return Failed(type=kind, message=_message(exc), traceback=written, fingerprint=digest)


def _message(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - the exception is anybody's
        return f"<{type(exc).__name__} whose str() fails>"


def classes_of(throws: Any) -> tuple[type[BaseException], ...]:
    """The classes that a task's `throws` names, in either notation."""
    return throws if isinstance(throws, tuple) else (throws,) if isinstance(throws, type) else ()
