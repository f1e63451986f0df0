"""The app of the tests of poison messages: tasks that kill their worker in each possible way, and innocent tasks."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]

MEGABYTE = 1024 * 1024


@app.task(bind=True)
def ends(self: Any, how: str) -> None:
    """Ends its process as `how` says."""
    note(self.request.id, how=how)
    if how == "exit":
        os._exit(1)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "memory":
        _die_of_memory(900 * MEGABYTE)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def ends_worker(self: Any) -> None:
    """Kills all processes of the worker, as a crash of the host does."""
    note(self.request.id, how="worker")
    os.killpg(os.getpgid(0), signal.SIGKILL)


@app.task(bind=True)
def innocent(self: Any, path: str = "") -> None:
    """Waits for a file, if `path` names one."""
    note(self.request.id, how="innocent")
    while path and not Path(path).exists():  # the test creates it
        time.sleep(0.02)


def _die_of_memory(limit: int) -> None:
    """Take memory up to the limit. Then send SIGKILL, as the kernel would."""
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    taken = []
    try:
        while True:
            taken.append(bytearray(64 * MEGABYTE))
    except MemoryError:
        taken.clear()
        os.kill(os.getpid(), signal.SIGKILL)
