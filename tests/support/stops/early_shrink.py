"""For a worker (`-I tests.support.stops.early_shrink`): its pool shrinks before it has read that tasks have begun."""

from __future__ import annotations

from typing import Any

from celery.signals import task_received, worker_ready

from tests.support.notes import note
from tests.support.shop import follows

pools: list[Any] = []


@worker_ready.connect
def ready(sender: Any, **_: Any) -> None:
    pools.append(sender.pool)


@task_received.connect
def received(request: Any, **_: Any) -> None:
    """Shrink the pool, and note the answer. The shop has just blocked the main process until the other task has begun."""
    if request.name != follows.name:
        return
    try:
        pools[0].shrink(1)
    except ValueError as refused:
        note("shrunk", answer=str(refused))
    else:
        note("shrunk", answer="one child less")
