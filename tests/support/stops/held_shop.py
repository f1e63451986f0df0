"""The tests' app with a hook that blocks the main thread for an hour when the worker is told to stop."""

from __future__ import annotations

import time
from typing import Any

from celery.signals import worker_shutting_down

from redelivery.middleware.worker.pool_patches import last_resort
from tests.support.shop import app

__all__ = ["app"]

last_resort.LAST = app.conf.last


@worker_shutting_down.connect
def hold(**_: Any) -> None:
    time.sleep(3600)
