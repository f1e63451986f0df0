"""Telling of a death that no attempt could report: its worker died, or the message was stopped before it ran.

Whoever waits for the result (`AsyncResult.get`) is told, the chord and the chain that the task belongs to fail, its error callbacks
are called and `task_failure` is sent, as Celery does for an attempt that failed.

Enters: the message, and why it died. Refuses nothing: what cannot be read is told of as far as it can be, and what cannot be stored
is logged; the message's own way is not held up by it.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.app import trace  # where Celery 5.6 has `get_actual_ignore_result`, too
from celery.app.task import Context
from celery.exceptions import InvalidTaskError, MaxRetriesExceededError, WorkerLostError
from kombu.exceptions import DecodeError
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from ..logs import log
from ..messages.events import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

__all__ = ["caller_of", "stores_errors", "tell_failure"]

#: What the caller gets for a death of this reason: classes that every Celery knows.
EXCEPTIONS: dict[Reason, type[Exception]] = {
    Reason.WORKER_LOST: WorkerLostError,
    Reason.EXHAUSTED: MaxRetriesExceededError,
    Reason.UNDECODABLE: DecodeError,
    Reason.INVALID: InvalidTaskError,
}


def stores_errors(task: Any, request: Any) -> bool:
    """Whether this run's failure is stored where there is a result backend. The first of Celery 5.6 ask the task alone."""
    asked = getattr(trace, "get_actual_ignore_result", None)
    ignores = task.ignore_result if asked is None else asked(task, request)
    return bool(task.store_errors_even_if_ignored or not ignores)


def caller_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Who waits for the result of a message of these properties: Celery's `rpc://` sends it there; other backends need nobody."""
    return {name: properties.get(name) for name in ("reply_to", "correlation_id")}


def tell_failure(app: Celery, message: dict[str, Any], reason: Reason, text: str) -> None:
    """Tell all who wait for this task that it has died of this reason; `text` says more. Nothing for what names no task."""
    headers = message["headers"]
    task_id, task = headers.get("id"), app.tasks.get(str(headers.get("task")))
    if not isinstance(task_id, str) or task is None or reason not in EXCEPTIONS:
        return
    exc = EXCEPTIONS[reason](text)
    context = _context(app, message)
    task.request_stack.push(context)
    try:
        task.backend.mark_as_failure(task_id, exc, request=context, store_result=stores_errors(task, context))
        signals.task_failure.send(
            sender=task,
            task_id=task_id,
            exception=exc,
            args=context.args,
            kwargs=context.kwargs,
            traceback=None,
            einfo=None,
        )
    except Exception:  # noqa: BLE001 - a result that cannot be stored does not hold the message
        log.exception("hook.failed", task_id=task_id, hook="mark_as_failure")
    finally:
        task.request_stack.pop()


def _context(app: Celery, message: dict[str, Any]) -> Context:
    """The request as the task would have seen it; without arguments and callbacks where the body cannot be read."""
    headers, properties = message["headers"], message["properties"]
    known = {**caller_of(properties), "is_eager": False, "called_directly": False}
    body = message.get("body")
    try:
        encoded = base64.b64decode(str(body)) if properties.get("body_encoding") == "base64" else body
        args, kwargs, embed = Message(
            body=encoded,
            content_type=message.get("content-type"),
            content_encoding=message.get("content-encoding"),
            headers=headers,
            properties=properties,
            accept=prepare_accept_content(app.conf.accept_content),
        ).decode()
        return Context(headers, args=args, kwargs=kwargs, **known, **(embed or {}))
    except Exception:  # noqa: BLE001 - the message is anybody's
        return Context(headers, args=[], kwargs={}, **known)
