"""`Task.retry`, and so `autoretry_for`, as a move of the message. If the arguments or options change, Celery publishes it again.

The lower of two limits stops the retries: the task's own, which counts Celery's `retries`, and the policy's, which counts attempts.
A message that Celery publishes again keeps its history. If the publication fails, the old message is delivered again.
"""

from __future__ import annotations

import functools
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject, Retry
from celery.utils.time import maybe_make_aware

from ..messages.envelope import HEADER, mapping
from ..messages.envelope import Attempt as Ended
from ..messages.steps import republished
from ..messages.ttl import PUBLISHED
from ..policy import decision
from ..transitions.homes import address_of
from .attempt import TRACE, Attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task


def retry_of(task: Task, original: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement of this task's `original` retry. Without a delivery (eager, called directly) it calls `original`."""

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
        attempt = Attempt.of(task, request)
        if attempt is None or request.is_eager or request.called_directly:
            return original(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if isinstance(exc, Reject):
            raise exc  # caught by `autoretry_for=(Exception,)`, but meant for the worker
        if max_retries is not None:
            task.override_max_retries = max_retries
        exc = exc() if isinstance(exc, type) else exc
        facts, limit = attempt.facts, task.max_retries if max_retries is None else max_retries
        attempt.gave_up = limit is not None and request.retries + 1 > limit
        cause = next((each for each in (exc, sys.exc_info()[1]) if each is not None), Retry("asked for by the task"))
        decided = attempt.decide(cause, requested_delay=_delay(task, eta, countdown))
        if not isinstance(decided, decision.Redeliver):
            raise attempt.conclude(decided, _retries_exceeded(task, decided, args, kwargs) if exc is None else exc)
        if throw and args is None and kwargs is None and not options:
            raise attempt.conclude(decided, cause, reported=exc)
        options["headers"] = {**(options.get("headers", request.headers) or {}), **_history_headers(attempt, cause, decided)}
        now_ms = facts.received_ms + (time.monotonic() - facts.received) * 1000  # by the server's clock
        delay = _delay(task, eta, countdown)
        if delay:  # Celery would count it by this machine's clock
            eta, countdown = datetime.fromtimestamp(now_ms / 1000 + delay, UTC), None
        if facts.expires_ms is not None:
            options.setdefault("expires", max(facts.expires_ms - now_ms, 0) / 1000)
        request.delivery_info = _declared_info(task, facts.queue)
        try:
            return original(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        except Reject as rejected:  # the publication failed: the message is kept, and runs again
            reason = rejected.reason
            failed = reason if isinstance(reason, Exception) else rejected
            attempt.gave_up = False
            raise attempt.conclude(attempt.decide(failed), failed) from failed

    return retry


def _declared_info(task: Task, queue: str) -> dict[str, Any]:
    """Where Celery publishes the message again: its exchange and key if the app declares them, otherwise its queue."""
    info = mapping(task.request.delivery_info)
    exchange, key = str(info.get("exchange") or ""), str(info.get("routing_key") or "")
    exchange, key = address_of(task.app, queue, exchange, key)
    return {**info, "exchange": exchange, "routing_key": key}


def _retries_exceeded(task: Task, decided: Any, args: Any, kwargs: Any) -> Exception:
    """Celery's exception for retries that are used up; it names the limit if that is not the task's own."""
    request = task.request
    args, kwargs = tuple(request.args if args is None else args), request.kwargs if kwargs is None else kwargs
    text = f"Can't retry {task.name}[{request.id}] args:{args} kwargs:{kwargs}"
    if "max_retries" not in decided.detail:
        text = f"{text}: {decided.detail}"
    exceeded: Exception = task.MaxRetriesExceededError(text, task_args=args, task_kwargs=kwargs)
    return exceeded


def _history_headers(attempt: Attempt, cause: BaseException, decided: decision.Redeliver) -> dict[str, Any]:
    """The headers that make Celery's new message the next attempt of the same life."""
    request, facts = attempt.task.request, attempt.facts
    failed = attempt.runtime.failed_of(cause, with_traceback=False)
    seen_ms = facts.first_seen_ms
    traced = None if attempt.runtime.telemetry is None else request.get(TRACE)  # without tracing, another client wrote it
    ended = Ended(
        at_ms=seen_ms + round(facts.age_now() * 1000),
        worker=request.hostname or "",
        exception=failed.text,
        delay_ms=round(decided.delay * 1000),
        trace=traced[0] if traced else "",
    )
    known, published = request.get(HEADER), request.get(PUBLISHED)
    header = republished(known, request.delivery_info, facts.queue, seen_ms=seen_ms, attempt=ended)
    return {HEADER: header} if published is None else {HEADER: header, PUBLISHED: published}


def _delay(task: Task, eta: Any, countdown: float | None) -> float:
    """Seconds to wait. As in Celery, a countdown wins over an ETA, and an ETA without a time zone is UTC."""
    if eta and not countdown:
        return float(max(maybe_make_aware(eta, task.app.timezone).timestamp() - time.time(), 0.0))
    return float(task.default_retry_delay if countdown is None else countdown)
