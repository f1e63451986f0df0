"""The app of the tests of deaths: its tasks end in every possible way."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from celery import Task
from celery.exceptions import Reject

from redelivery import DeadLetter
from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]


@app.task(bind=True)
def ok(self: Any, value: Any = None) -> Any:
    note(self.request.id, attempt=self.request.retries + 1)
    return value


@app.task(bind=True)
def fails(self: Any, times: int = 10**6) -> None:
    note(self.request.id, attempt=self.request.retries + 1)
    if self.request.retries < times:
        message = "no"
        raise RuntimeError(message)


@app.task(bind=True)
def waits(self: Any, path: str) -> None:
    note(self.request.id)
    while not Path(path).exists():  # the test creates it
        time.sleep(0.02)


@app.task(bind=True)
def ends_when_told(self: Any, how: str, folder: str) -> None:
    """Waits for a file in the folder, named after its worker or `all`. Then ends as `how` says."""
    worker = str(self.request.hostname)
    note(self.request.id, worker=worker)
    while not any((Path(folder) / name).exists() for name in (worker, "all")):  # the test creates it
        time.sleep(0.02)
    if how != "succeeds":
        end(how)


@app.task(bind=True)
def dies(self: Any, how: str) -> None:
    note(self.request.id, attempt=self.request.retries + 1)
    end(how)


class Raising(Task):
    """A task class whose hook raises."""

    def on_failure(self, *_: Any) -> None:
        message = "the hook's own"
        raise OSError(message)


@app.task(bind=True, base=Raising)
def dies_twice(self: Any, how: str) -> None:
    """Ends as `how` says. Then its hook raises."""
    note(self.request.id, attempt=self.request.retries + 1)
    end(how)


def end(how: str) -> None:
    """End the task in the named way. Never returns."""
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(3)
    if how == "hangs":
        time.sleep(3600)  # until its hard time limit
    raise {
        "fails": RuntimeError("no"),
        "listed": LookupError("not there"),
        "gives up": DeadLetter("card stolen"),
        "rejects": Reject("no", requeue=False),
        "memory": MemoryError("too much"),
    }[how]
