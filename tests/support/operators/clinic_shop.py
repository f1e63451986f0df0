"""The app that the doctor examines: one queue and one task, with options from the environment."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery
from celery.signals import worker_ready
from celery.worker.strategy import default
from kombu import Queue

from redelivery import Redelivery
from tests.support.notes import ready

app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ.get("SHOP_BACKEND"))
app.conf.update(json.loads(os.environ.get("SHOP_CONF", "{}")))
app.conf.broker_connection_retry_on_startup = True
app.conf.task_default_queue = "orders"
app.conf.task_queues = [Queue("orders", **json.loads(os.environ.get("SHOP_QUEUE", "{}")))]
if not os.environ.get("SHOP_PLAIN"):
    Redelivery(app, json.loads(os.environ.get("SHOP_SETTINGS", "{}")))


def gathering(*args: Any, **options: Any) -> Any:
    """A custom strategy of the task."""
    return default(*args, **options)


worker_ready.connect(ready)


@app.task(name="shop.pack", **json.loads(os.environ.get("SHOP_TASK", "{}")))
def pack() -> None:
    """Succeeds."""
