"""The tests' app on a Celery that the stop code does not recognise. `conf["unrecognised"]` names the part that differs."""

from __future__ import annotations

from typing import Any

from celery.apps import worker as celerys

from redelivery.middleware.worker.pool_patches import processes as pool_processes
from redelivery.middleware.worker.pool_patches import threads as pool_threads
from tests.support.shop import app

__all__ = ["app"]

ASKED = celerys.on_cold_shutdown


def on_cold_shutdown(worker: Any) -> None:
    """A handler that hides what it calls."""
    ASKED(worker)


if app.conf.unrecognised == "handler":
    celerys.on_cold_shutdown = on_cold_shutdown
elif app.conf.unrecognised == "pool":
    for module in (pool_processes, pool_threads):
        vars(module)["USED"] = (*vars(module)["USED"], "gone_since")
