"""The app of the tests of poison messages: tasks that kill their worker in each possible way, and innocent tasks beside them."""

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
    """Ends its process, or its whole worker."""
    note(self.request.id, how=how)
    if how == "exit":
        os._exit(1)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "memory":
        _like_the_kernel(900 * MEGABYTE)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def ends_worker(self: Any) -> None:
    """Ends the worker with all of its processes, as a host that goes down does."""
    note(self.request.id, how="worker")
    os.killpg(os.getpgid(0), signal.SIGKILL)


@app.task(bind=True)
def innocent(self: Any, path: str = "") -> None:
    """Does nothing, once a file is there."""
    note(self.request.id, how="innocent")
    while path and not Path(path).exists():  # the test says when
        time.sleep(0.02)


def _like_the_kernel(limit: int) -> None:
    """Take memory until there is no more; the kernel would then send SIGKILL, and so does this."""
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    taken = []
    try:
        while True:
            taken.append(bytearray(64 * MEGABYTE))
    except MemoryError:
        taken.clear()
        os.kill(os.getpid(), signal.SIGKILL)
