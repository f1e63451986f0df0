"""The tests' app with hooks and signal receivers that read the task's result before its message is acknowledged."""

from __future__ import annotations

from typing import Any

from celery import Task, signals
from celery.backends.redis import RedisBackend

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]


def tell(task: Any, where: str) -> None:
    """Note the state that a caller would see now."""
    note(task.request.id, where=where, state=app.AsyncResult(task.request.id).state)


class Asking(Task):
    """Reads its result in `on_success`."""

    abstract = True

    def on_success(self, *_: Any) -> None:
        tell(self, "on_success")


class AskingAtLast(Task):
    """Reads its result in `after_return`."""

    abstract = True

    def after_return(self, *_: Any) -> None:
        tell(self, "after_return")


@app.task(base=Asking)
def asks() -> int:
    return 1


@app.task(base=AskingAtLast)
def asks_at_last() -> int:
    return 1


@app.task
def large(size: int) -> str:
    return "x" * size


@app.task(track_started=True)
def tracked() -> int:
    """Has a result when it starts."""
    return 1


@app.task(backend=RedisBackend(app=app, url=app.conf.result_backend.removeprefix("redis+")))
def apart() -> int:
    return 1


@app.task
def unserializable() -> object:
    """Returns a value that JSON cannot encode."""
    return object()


@app.task
def heard() -> int:
    """A signal receiver reads its result."""
    return 1


@signals.task_success.connect(sender=heard)
def _hear(sender: Any, **_: Any) -> None:
    tell(sender, "task_success")
