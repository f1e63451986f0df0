"""The autodiscovered tasks of the app: shared tasks with different base classes and settings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from celery import Task, shared_task

from redelivery import redeliver
from tests.support.adopted.notes import note


class Forgiving(Task):
    """A base whose `__call__` turns a ValueError into a result, and fails at the first attempt of a `broken` task."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("broken", False) and self.request.retries == 0:
            note(self, where="call")
            message = "not connected"
            raise OSError(message)
        try:
            return super().__call__(*args, **kwargs)
        except ValueError:
            return "forgiven"


class Hooked(Task):
    """A base with every hook."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - Celery's signature
        note(self, hook="before_start")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002 - the same
        note(self, hook="on_retry", exc=type(exc).__name__)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - the same
        note(self, hook="on_success")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002 - the same
        note(self, hook="on_failure", exc=type(exc).__name__)


def fail_until(task: Any, attempt: int) -> str:
    """Fail every attempt before this one."""
    if note(task) < attempt:
        message = "not yet"
        raise RuntimeError(message)
    return "at last"


@shared_task(bind=True)
def shared(self: Any, attempt: int = 2) -> str:
    return fail_until(self, attempt)


@shared_task(bind=True, base=Forgiving)
def forgiven(self: Any, *, recurse: bool = False) -> Any:
    """Its base turns its ValueError into a result."""
    note(self)
    if recurse:
        return self()
    raise ValueError


@shared_task(bind=True, base=Forgiving)
def unforgiven(self: Any) -> str:
    """Its base does not catch this exception, or fails before the task runs."""
    return fail_until(self, 2)


@shared_task(bind=True, base=Hooked)
def hooked(self: Any, attempt: int = 2) -> str:
    return fail_until(self, attempt)


def wait_for(path: str) -> None:
    """Wait until the test has made this file."""
    while not Path(path).exists():
        time.sleep(0.02)


@shared_task(bind=True, acks_late=False)
def early_one(self: Any, path: str) -> None:
    note(self)
    wait_for(path)


@shared_task(bind=True)
def waiter(self: Any, path: str) -> None:
    note(self)
    wait_for(path)


@shared_task(bind=True, autoretry_for=(KeyError,), max_retries=1, retry_backoff=0.1, retry_jitter=False)
def own_limit(self: Any) -> None:
    """Has a lower limit than the policy."""
    note(self)
    raise KeyError


@shared_task(bind=True, max_retries=9)
def own_countdown(self: Any) -> None:
    """Asks for a countdown. The policy has the lower limit."""
    note(self)
    raise self.retry(countdown=0.4, exc=RuntimeError("again"))


@shared_task(bind=True, throws=(LookupError,))
def throwing(self: Any) -> None:
    """Raises an expected exception, which is not retried."""
    note(self)
    raise LookupError


@shared_task(bind=True)
def off_by_table(self: Any) -> None:
    fail_until(self, 9)


@shared_task(bind=True)
@redeliver(enabled=False)
def off_by_decorator(self: Any) -> None:
    fail_until(self, 9)
