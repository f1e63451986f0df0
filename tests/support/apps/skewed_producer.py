"""A producer with a wrong clock (`CLOCK_SKEW`, see `tests/support/skewed`). It publishes a task in each way to delay or expire it.

`python -m tests.support.apps.skewed_producer <broker> <queue> <settings>` prints JSON: for each way the task's id (`ids`) and the
milliseconds of its publication (`took_ms`), and the absolute time that two ways use (`right`).
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery import Celery, chain, group, signature

from redelivery import Redelivery

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SECONDS", "WAYS", "published"]

#: The delay of a task, in seconds.
SECONDS = 1.5
WAYS = ("countdown", "option", "group", "chain", "both", "eta", "expires", "expires_later")


def published(broker: str, queue: str, settings: dict[str, Any]) -> dict[str, Any]:
    app = Celery("skewed", broker=broker, backend="cache+memory://")
    app.conf.update(task_default_queue=queue, redelivery=settings)
    Redelivery(app)
    ok = signature("tests.support.apps.clocked.ok", app=app)
    right = datetime.now(UTC) + timedelta(hours=2)  # an absolute time, by the right clock
    ways: dict[str, Callable[[], Any]] = {
        "countdown": lambda: app.send_task("tests.support.apps.clocked.ok", countdown=SECONDS),
        "option": lambda: ok.clone().set(countdown=SECONDS).delay(),
        "group": lambda: group([ok.clone()], app=app).apply_async(countdown=SECONDS)[0],
        "chain": lambda: chain(ok.clone(), app=app).apply_async(countdown=SECONDS),
        "both": lambda: app.send_task("tests.support.apps.clocked.ok", countdown=SECONDS, expires=600),
        "eta": lambda: app.send_task("tests.support.apps.clocked.ok", eta=right),
        "expires": lambda: app.send_task("tests.support.apps.clocked.ok", expires=600),
        "expires_later": lambda: app.send_task("tests.support.apps.clocked.ok", expires=right),
    }
    ids, took_ms = {}, {}
    for name, publish in ways.items():
        began = time.monotonic()
        ids[name] = str(publish().id)
        took_ms[name] = (time.monotonic() - began) * 1000
    return {"ids": ids, "took_ms": took_ms, "right": right.isoformat()}


if __name__ == "__main__":
    json.dump(published(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])), sys.stdout)
