"""The Celery app of the tests of remote control, shutdown, limits and routing. A test controls when its tasks begin and end.

The task `holds` notes its begin, and waits until its gate, a file in the shop's folder, is opened.
"""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import Reject
from celery.signals import worker_ready
from celery.worker import request as celery_request

from redelivery import Redelivery
from tests.support.control.control_queues import QUEUES, ROUTES
from tests.support.notes import note, ready

app = Celery("control", broker=os.environ["SHOP_BROKER"], backend=os.environ.get("SHOP_BACKEND"))
app.conf.update(json.loads(os.environ.get("SHOP_CONF", "{}")))
app.conf.broker_connection_retry_on_startup = True
app.conf.redelivery = json.loads(os.environ.get("SHOP_SETTINGS", "{}"))

if os.environ.get("CONTROL_ROUTES"):
    app.conf.task_queues = QUEUES
    app.conf.task_routes = ROUTES

if not os.environ.get("SHOP_PLAIN"):
    Redelivery(app)

FOLDER = Path(os.environ["SHOP_RUNS"]).parent


class Fast(datetime):
    """A clock that is an hour fast, for Celery's requests."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + timedelta(hours=1)


if os.environ.get("CONTROL_FAST_CLOCK"):
    celery_request.datetime = Fast


worker_ready.connect(ready)


@signals.task_revoked.connect
def on_revoked(request: Any, terminated: bool, expired: bool, **_: Any) -> None:
    note(request.id, event="task_revoked", terminated=terminated, expired=expired)


@app.task(bind=True)
def ok(self: Any, value: Any = None) -> Any:
    note(self.request.id, event="run", queue=self.request.delivery_info["routing_key"], value=value)
    return value


@app.task(bind=True)
def bills(self: Any) -> None:
    """Succeeds. The app's routes send it to the queue `billing`."""
    note(self.request.id, event="run", queue=self.request.delivery_info["routing_key"])


@app.task(bind=True)
def holds(self: Any, gate: str = "", value: Any = None, seconds: float = 0) -> Any:
    """Waits for its gate, and then for `seconds`."""
    note(self.request.id, event="run", redelivered=self.request.delivery_info["redelivered"], value=value)
    while not (FOLDER / f"gate-{gate or self.request.id}").exists():
        time.sleep(0.02)
    time.sleep(seconds)
    note(self.request.id, event="end")
    return value


@app.task(bind=True, acks_late=False)
def early(self: Any, gate: str) -> None:
    """Is acknowledged early, and waits for its gate."""
    note(self.request.id, event="run")
    while not (FOLDER / f"gate-{gate}").exists():
        time.sleep(0.02)
    note(self.request.id, event="end")


@app.task(bind=True)
def fails(self: Any, times: int = 10**6, message: str = "no") -> str:
    note(self.request.id, event="run")
    if self.request.retries < times:
        raise RuntimeError(message)
    return "at last"


@app.task(bind=True)
def rejects(self: Any) -> None:
    note(self.request.id, event="run")
    reason = "no"
    raise Reject(reason, requeue=False)


@app.task(bind=True, rate_limit="4/s")
def limited(self: Any) -> None:
    note(self.request.id, event="run")


@app.task(bind=True, rate_limit="1/h")
def hourly(self: Any) -> None:
    note(self.request.id, event="run")


@app.task(bind=True)
def grows(self: Any, megabytes: int) -> None:
    """Increases the memory of its process permanently."""
    note(self.request.id, event="run")
    KEPT.append(bytearray(os.urandom(1) * (megabytes << 20)))


KEPT: list[bytearray] = []


@app.task(bind=True)
def gathers(self: Any, results: Any) -> Any:
    note(self.request.id, event="run")
    return results


@app.task
def regrets(request: Any, exc: Any, _traceback: Any) -> None:
    note(request.id, event="errback", exception=type(exc).__name__)
