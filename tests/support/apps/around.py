"""The tests' app with a hook that fails before a task. `refusing.py` has a result backend that fails after it."""

from __future__ import annotations

from typing import Any

from celery import Task

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]


class Prepared(Task):
    """Its `before_start` fails."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        del args
        note(task_id, event="before_start")
        if self.request.retries < kwargs.get("unprepared", 0):
            message = "not prepared"
            raise ConnectionError(message)


@app.task(base=Prepared, bind=True, track_started=True)
def runs(self: Any, **_: Any) -> str:
    note(self.request.id, event="run", attempt=self.request.retries + 1)
    return "done"
