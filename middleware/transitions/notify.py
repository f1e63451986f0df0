"""Report an end that no attempt could report: its worker died, or the message was stopped before it ran.

As for a failed attempt, the result is stored (`AsyncResult.get` returns), the task's chord and chain fail, its error callbacks and
hooks are called and signals are sent. If the body cannot be read, this is done without arguments and callbacks.
"""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from celery import signals
from celery.app import trace  # `get_actual_ignore_result` is in this module in Celery 5.6, too
from celery.app.task import Context
from celery.exceptions import (
    InvalidTaskError,
    MaxRetriesExceededError,
    NotRegistered,
    Retry,
    TaskRevokedError,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.states import FAILURE, REVOKED
from celery.utils.log import get_logger
from kombu.exceptions import DecodeError
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from ..logs import log
from ..messages.body import embedded
from ..messages.events import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery import Celery

#: The logger on which Celery reports a lost child.
logger = get_logger("celery.worker.request")

#: The exception that the caller gets for each reason: classes that every version of Celery has.
EXCEPTIONS: dict[Reason, type[Exception]] = {
    Reason.WORKER_LOST: WorkerLostError,
    Reason.EXHAUSTED: MaxRetriesExceededError,
    Reason.UNDECODABLE: DecodeError,
    Reason.INVALID: InvalidTaskError,
}


def stores_errors(task: Any, request: Any) -> bool:
    """Whether a result backend stores this run's failure. In the first releases of Celery 5.6 the task alone decides."""
    ask = getattr(trace, "get_actual_ignore_result", None)
    ignores = task.ignore_result if ask is None else ask(task, request)
    return bool(task.store_errors_even_if_ignored or not ignores)


def _reply_address(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Where Celery's `rpc://` backend sends the result; other backends do not need it."""
    return {name: properties.get(name) for name in ("reply_to", "correlation_id")}


@dataclass(frozen=True, slots=True)
class Caller:
    """Everything that waits for one task: its result, chord, chain, error callbacks and hooks, and Celery's signals.

    If a result cannot be stored, or a hook fails, this is logged, and the message still leaves.
    """

    task: Any
    task_id: Any
    context: Context
    stores: bool

    @classmethod
    def of(cls, request: Any) -> Self:
        """The caller of a Celery request's task."""
        return cls(request.task, request.id, request._context, request.store_errors)  # noqa: SLF001 - Celery's own

    def failed(self, exc: BaseException, einfo: Any = None) -> None:
        """Store FAILURE, call the error callbacks and send the signal, as after a failed attempt."""
        with self._calling("mark_as_failure"):
            task, args, kwargs = self.task, self.context.args, self.context.kwargs
            task.backend.mark_as_failure(self.task_id, exc, request=self.context, store_result=self.stores)
            if isinstance(exc, TimeLimitExceeded):  # for other deaths Celery's worker calls no hooks either
                task.on_failure(exc, self.task_id, args, kwargs, einfo)
                task.after_return(FAILURE, exc, self.task_id, args, kwargs, None)
            call = {"task_id": self.task_id, "exception": exc, "args": args, "kwargs": kwargs}
            signals.task_failure.send(sender=task, **call, traceback=getattr(einfo, "traceback", None), einfo=einfo)

    def retried(self, exc: BaseException, delay: float, einfo: Any = None) -> None:
        """Store RETRY, call the task's hook and send the signal: the message is delivered again."""
        with self._calling("on_retry"):
            task = self.task
            if self.stores:
                task.backend.mark_as_retry(self.task_id, exc, getattr(einfo, "traceback", None), request=self.context)
            task.on_retry(exc, self.task_id, self.context.args, self.context.kwargs, einfo)
            signals.task_retry.send(sender=task, request=self.context, reason=Retry(exc=exc, when=delay), einfo=einfo)

    def revoked(self) -> None:
        """Store REVOKED, report it to a chord, and send the signal."""
        with self._calling("revoked"):
            self.task.backend.mark_as_revoked(self.task_id, "revoked", request=self.context, store_result=self.stores)
            signals.task_revoked.send(sender=self.task, request=self.context, terminated=False, signum=None, expired=False)

    def stays_revoked(self) -> None:
        """Store REVOKED again: the signal that ended the task made the attempt fail, which stored RETRY."""
        with self._calling("revoked"):
            if self.stores:
                self.task.backend.store_result(self.task_id, TaskRevokedError("terminated"), REVOKED, request=self.context)

    @contextmanager
    def _calling(self, hook: str) -> Iterator[None]:
        """Push the request, so that hooks find it, and log what they raise."""
        self.task.request_stack.push(self.context)
        try:
            with _logging(self.task_id, hook):
                yield
        finally:
            self.task.request_stack.pop()


@contextmanager
def _logging(task_id: Any, hook: str) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - the task's own code, its backend, or any receiver of the signal
        log.exception("hook.failed", task_id=task_id, hook=hook)


def report_failure(app: Celery, message: dict[str, Any], reason: Reason, text: str) -> None:
    """Report the death of this task to everything that waits for it; `text` has details. Does nothing if it names no task."""
    headers = message["headers"]
    task_id, name = headers.get("id"), str(headers.get("task"))
    task = app.tasks.get(name)
    if reason is Reason.UNKNOWN_TASK:  # Celery has stored the result, but does not report to chord, chain and error callbacks
        with _logging(task_id, "mark_as_failure"):
            context = _context(app, message)
            # Store again only for the rest of a chain: with `rpc://` a second result would be a second reply.
            app.backend.mark_as_failure(task_id, NotRegistered(name), request=context, store_result=bool(context.chain))
    elif isinstance(task_id, str) and task is not None and reason in EXCEPTIONS:
        context, exc = _context(app, message), EXCEPTIONS[reason](text)
        Caller(task, task_id, context, stores_errors(task, context)).failed(exc)
        if reason is Reason.WORKER_LOST:
            log_loss(exc)


def log_loss(exc: BaseException) -> None:
    """Log Celery's line for a task whose process died, with the exception, for error trackers."""
    logger.error("Task handler raised error: %r", exc, exc_info=exc)


def store_end(app: Celery, message: dict[str, Any], end: Exception | str) -> None:
    """Store the end of a task that did not run, and report it to its chord. No error callbacks are called.

    `end` is the reason of a revocation (a text), or the exception of a failure.
    """
    headers = message["headers"]
    task_id, keeps = headers["id"], not headers.get("ignore_result")
    known = {name: headers.get(name) for name in ("id", "task", "group", "group_index")}
    known |= {"retries": headers.get("retries") or 0, "delivery_info": {}, **embedded(message)}
    request = Context(known, **_reply_address(message["properties"]))
    try:
        if isinstance(end, str):
            app.backend.mark_as_revoked(task_id, end, request=request, store_result=keeps)
        else:
            app.backend.mark_as_failure(task_id, end, request=request, store_result=keeps, call_errbacks=False)
    except Exception:  # noqa: BLE001 - any backend may be in use; the message has left
        log.exception("result.not_stored", task_id=task_id)


def _context(app: Celery, message: dict[str, Any]) -> Context:
    """The request as the task would see it; without arguments and callbacks if the body cannot be read."""
    headers, properties = message["headers"], message["properties"]
    known = {**_reply_address(properties), "is_eager": False, "called_directly": False}
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
    except Exception:  # noqa: BLE001 - any client's message
        return Context(headers, args=[], kwargs={}, **known)
