"""For a worker (`-I tests.support.stops.noted_parts`): notes the patches of Celery's pool, and the pipelining of requests."""

from __future__ import annotations

from typing import Any

from celery.signals import worker_ready

from tests.support.notes import note
from tests.support.shop import app


@worker_ready.connect
def ready(sender: Any, **_: Any) -> None:
    """Note the modules of the pool's methods, and whether transitions are pipelined."""
    pool, install = sender.pool, app.redelivery
    inner = pool._pool
    around = [each.__module__ for each in (pool.flush, inner.on_job_process_down, inner._event_process_exit)]
    note("parts", around=around, is_under_way=install.outbox.under_way is not None)
