"""The tests' app with tasks whose hooks or signals ask for the task's result before its message is acknowledged."""

from __future__ import annotations

from typing import Any

from celery import Task, signals
from celery.backends.redis import RedisBackend

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]


def tell(task: Any, where: str) -> None:
    """Note the result that a caller would get now."""
    note(task.request.id, where=where, state=app.AsyncResult(task.request.id).state)


class Asking(Task):
    """Its hooks look at its result."""

    abstract = True

    def on_success(self, *_: Any) -> None:
        """The first of the two."""
        tell(self, "on_success")


class AskingAtLast(Task):
    """Looks at its result in `after_return` too."""

    abstract = True

    def after_return(self, *_: Any) -> None:
        """The second one."""
        tell(self, "after_return")


@app.task(base=Asking)
def asks() -> int:
    """Succeeds."""
    return 1


@app.task(base=AskingAtLast)
def asks_at_last() -> int:
    """Succeeds."""
    return 1


@app.task
def large(size: int) -> str:
    """Returns much."""
    return "x" * size


@app.task(track_started=True)
def tracked() -> int:
    """Has a result from its start on."""
    return 1


@app.task(backend=RedisBackend(app=app, url=app.conf.result_backend.removeprefix("redis+")))
def apart() -> int:
    """Has a backend of its own."""
    return 1


@app.task
def unserializable() -> object:
    """Returns what is no JSON."""
    return object()


@app.task
def heard() -> int:
    """A receiver looks at its result."""
    return 1


@signals.task_success.connect(sender=heard)
def _hear(sender: Any, **_: Any) -> None:
    tell(sender, "task_success")
