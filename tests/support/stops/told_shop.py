"""The tests' app. At a stop signal the worker notes whether the signal interrupted the writing of a task to a child."""

from __future__ import annotations

import os
from typing import Any

from celery.signals import worker_ready, worker_shutting_down

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]

#: The pool of this worker.
POOLS: list[Any] = []


@worker_ready.connect
def keep(sender: Any, **_: Any) -> None:
    POOLS.append(sender.pool)


@worker_shutting_down.connect
def told(how: str, **_: Any) -> None:
    """Note the signal. Celery calls this in its handler."""
    writers = [writer for pool in POOLS for writer in getattr(getattr(pool, "_pool", None), "_active_writers", ())]
    note("", event="told", how=how, half_written=any(writer.gi_frame is not None for writer in writers), pid=os.getpid())
