"""Task and request classes of the trials, whose hooks note that they were called."""

from __future__ import annotations

import sys
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject
from celery.worker.request import Request

from tests.support.trials.celery_notes import note

__all__ = ["Asking", "Calling", "Hooked", "Noting", "Raising"]


class Hooked(Task):
    """A base class that overrides every hook."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        note(task_id, "before_start", args=args, kwargs=kwargs, retries=self.request.retries)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        note(task_id, "on_success", retval=retval, args=args, kwargs=kwargs, retries=self.request.retries)

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(task_id, "on_retry", exc=exc, args=args, kwargs=kwargs, einfo=type(einfo).__name__, retries=self.request.retries)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(task_id, "on_failure", exc=exc, args=args, kwargs=kwargs, einfo=type(einfo).__name__, retries=self.request.retries)

    def after_return(  # noqa: PLR0917 - Celery's signature
        self,
        status: str,
        retval: Any,
        task_id: str,
        args: Any,
        kwargs: Any,
        einfo: Any,
    ) -> None:
        facts = {"status": status, "retval": retval, "einfo": type(einfo).__name__}
        note(task_id, "after_return", **facts, args=args, kwargs=kwargs, retries=self.request.retries)


class Raising(Hooked):
    """The hook that the message's `key` names raises."""

    abstract = True

    def _raise(self, hook: str, kwargs: Any) -> None:
        if kwargs.get("key") == f"{hook} exits":
            sys.exit(3)
        if kwargs.get("key") == f"{hook} ignores":
            raise Ignore
        if kwargs.get("key") == f"{hook} rejects":
            raise Reject(requeue=True)
        if kwargs.get("key") == hook:
            message = f"{hook} raises"
            raise RuntimeError(message)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        super().before_start(task_id, args, kwargs)
        self._raise("before_start", kwargs)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        super().on_success(retval, task_id, args, kwargs)
        self._raise("on_success", kwargs)

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        super().on_retry(exc, task_id, args, kwargs, einfo)
        self._raise("on_retry", kwargs)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        super().on_failure(exc, task_id, args, kwargs, einfo)
        self._raise("on_failure", kwargs)

    def after_return(  # noqa: PLR0917 - Celery's signature
        self,
        status: str,
        retval: Any,
        task_id: str,
        args: Any,
        kwargs: Any,
        einfo: Any,
    ) -> None:
        super().after_return(status, retval, task_id, args, kwargs, einfo)
        self._raise("after_return", kwargs)


class Calling(Hooked):
    """Wraps the run of its task, as Flask's extensions do."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note(self.request.id, "called", retries=self.request.retries)
        try:
            return self.run(*args, **kwargs)
        finally:
            note(self.request.id, "left", retries=self.request.retries)


class Asking(Hooked):
    """Overrides the countdown of retries."""

    abstract = True

    def retry(self, *args: Any, **options: Any) -> Any:
        note(self.request.id, "retry", retries=self.request.retries)
        return super().retry(*args, **{**options, "countdown": 0.2})


class Noting(Request):
    """A request class of an application."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        note(self.id, "request.on_accepted")
        super().on_accepted(pid, time_accepted)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        note(self.id, "request.on_timeout", soft=soft, timeout=timeout)
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        note(self.id, "request.on_failure", return_ok=return_ok)
        super().on_failure(exc_info, send_failed_event, return_ok)

    def on_retry(self, exc_info: Any) -> None:
        note(self.id, "request.on_retry")
        super().on_retry(exc_info)

    def acknowledge(self) -> None:
        note(self.id, "request.acknowledge")
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        note(self.id, "request.reject", requeue=requeue)
        super().reject(requeue)
