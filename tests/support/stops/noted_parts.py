"""For a worker (`-I tests.support.stops.noted_parts`): notes what stands around Celery's pool, and how the broker is asked."""

from __future__ import annotations

from typing import Any

from celery.signals import worker_ready

from tests.support.notes import note
from tests.support.shop import app


@worker_ready.connect
def ready(sender: Any, **_: Any) -> None:
    """The modules of what is called of the pool, and whether transitions are asked for without waiting."""
    pool, install = sender.pool, app.redelivery
    inner = pool._pool
    around = [each.__module__ for each in (pool.flush, inner.on_job_process_down, inner._event_process_exit)]
    note("parts", around=around, is_under_way=install.outbox.under_way is not None)
