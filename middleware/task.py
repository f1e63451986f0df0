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
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry
from celery.utils.serialization import get_pickleable_exception
from celery.utils.time import maybe_make_aware
from structlog.contextvars import bind_contextvars, reset_contextvars

from redelivery.errors import RedeliveryError
from redelivery.middleware import decision
from redelivery.middleware.envelope import Failed
from redelivery.middleware.logs import log
from redelivery.middleware.tenacious import UNSET, StrategyFailed, decide_with_tenacity

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from redelivery.middleware.decision import Decision
    from redelivery.middleware.install import Redelivery

__all__ = ["CONTEXT", "DECIDED", "Redelivering", "ResultRefused", "failed_of", "guard"]

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

    def __reduce__(self) -> tuple[Any, ...]:
        return _redelivering, (self.message, self.exc, self.when, self.delay_ms, self.failed)


def _redelivering(message: str | None, exc: BaseException | None, when: Any, delay_ms: int, failed: Failed | None) -> Redelivering:
    return Redelivering(message, exc, when, delay_ms=delay_ms, failed=failed)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one task: what it must know to decide."""

    task: Task
    install: Redelivery
    delivery: dict[str, Any]

    def decide(self, exc: BaseException | None, *, requested_delay: float | None = None, result: Any = UNSET) -> Decision | None:
        """What follows; None where a result was handed in and is accepted."""
        task, delivery = self.task, self.delivery
        policy = self.install.policy_for(delivery["queue"], task.name)
        failure = decision.Failure(
            attempt=delivery["attempt"],
            age=self.age(),
            exception=exc,
            requested_delay=requested_delay,
            retries_left=0 if delivery.get("gave_up") else None,
            eligible=delivery["eligible"],
            throws=_classes(task.throws),
        )
        request = task.request
        try:
            return decide_with_tenacity(
                self.install.options_of(task.name),
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

    def conclude(self, decided: Decision, exc: BaseException) -> BaseException:
        """The exception to raise so that egress carries this decision out."""
        failed = failed_of(exc)
        if isinstance(decided, decision.Redeliver):
            reported = get_pickleable_exception(exc)
            return Redelivering(None, reported, decided.delay, delay_ms=round(decided.delay * 1000), failed=failed)
        try:
            setattr(exc, DECIDED, (decided, failed, self.delivery["tag"]))
        except AttributeError:  # an exception with slots: egress decides again
            log.debug("decision.not_attached", exception=type(exc).__name__)
        return exc


def guard(task: Task, install: Redelivery) -> None:
    """Put the wrapper around a task; a second time changes nothing."""
    if getattr(task.run, DECIDED, False) or not install.is_enabled(task.name):
        return
    run = task.run
    options = install.options_of(task.name)
    asks_for_results = options is not None and options.retry is not None

    @functools.wraps(run)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        delivery = task.request.get(CONTEXT)
        if delivery is None or task.request.is_eager:
            return run(*args, **kwargs)
        context = {name: delivery[name] for name in ("attempt", "queue", "generation")}
        bound = bind_contextvars(task_id=task.request.id, **context)
        try:
            if delivery["must_start"]:
                install.start(delivery["tag"])
            return _attempt(Attempt(task, install, delivery), run, args, kwargs, asks_for_results=asks_for_results)
        finally:
            reset_contextvars(**bound)

    setattr(guarded, DECIDED, True)
    task.run = guarded
    task.retry = _retry_of(task, install, task.retry)


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
    """`Task.retry`, carried out as a move of the message; with changed arguments or options it stays Celery's own."""

    @functools.wraps(original)
    def retry(  # noqa: PLR0917 - Celery's signature
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: Any = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        request = task.request
        delivery = request.get(CONTEXT)
        if delivery is None or request.is_eager or request.called_directly or args is not None or kwargs is not None or options:
            return original(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if max_retries is not None:
            task.override_max_retries = max_retries
        limit = task.max_retries if max_retries is None else max_retries
        delivery["gave_up"] = limit is not None and request.retries + 1 > limit
        cause = exc if exc is not None else sys.exc_info()[1]
        if cause is None:
            cause = MaxRetriesExceededError(f"Can't retry {task.name}[{request.id}]: its limit is {limit}")
        attempt = Attempt(task, install, delivery)
        policy_cause = exc if exc is not None else cause
        decided = attempt.decide(policy_cause, requested_delay=_delay(task, eta, countdown))
        assert decided is not None  # noqa: S101 - only a result can be accepted
        if exc is None and not isinstance(decided, decision.Redeliver):
            cause = MaxRetriesExceededError(f"Can't retry {task.name}[{request.id}]: {getattr(decided, 'detail', '') or limit}")
        concluded = attempt.conclude(decided, cause)
        if throw or concluded is cause:
            raise concluded
        return concluded

    return retry


def _delay(task: Task, eta: Any, countdown: float | None) -> float:
    if eta is not None:
        return float(max(maybe_make_aware(eta).timestamp() - time.time(), 0.0))
    return float(task.default_retry_delay if countdown is None else countdown)


def failed_of(exc: BaseException) -> Failed:
    """What an exception says, for the death record: its type, message, traceback and fingerprint."""
    frames = traceback.extract_tb(exc.__traceback__)
    path = "|".join(f"{PurePath(frame.filename).name}:{frame.name}" for frame in frames[-MOST_FRAMES:])
    kind = f"{type(exc).__module__}.{type(exc).__qualname__}".removeprefix("builtins.")
    digest = hashlib.sha1(f"{kind}|{path}".encode(errors="replace"), usedforsecurity=False).hexdigest()[:12]
    return Failed(type=kind, message=_message(exc), traceback="".join(traceback.format_exception(exc)), fingerprint=digest)


def _message(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - the exception is anybody's
        return f"<{type(exc).__name__} whose str() fails>"


def _classes(throws: Any) -> tuple[type[BaseException], ...]:
    return throws if isinstance(throws, tuple) else (throws,) if isinstance(throws, type) else ()
