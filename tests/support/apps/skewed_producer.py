"""A producer on a machine whose clock is wrong: it publishes one task in each way in which Celery can delay or expire it.

`python -m tests.support.apps.skewed_producer <broker> <queue> <settings>` prints, as JSON, by the name of the way the task's id
(`ids`) and the milliseconds that its publication took (`took_ms`), and the moment that two of them name (`right`). `CLOCK_SKEW`
says how wrong the clock is (`tests/skewed`).
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

#: How long each waits, or lives.
SECONDS = 1.5
WAYS = ("countdown", "option", "group", "chain", "both", "eta", "expires", "expires_later")


def published(broker: str, queue: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Publish them."""
    app = Celery("skewed", broker=broker, backend="cache+memory://")
    app.conf.update(task_default_queue=queue, redelivery=settings)
    Redelivery(app)
    ok = signature("tests.support.apps.clocked.ok", app=app)
    right = datetime.now(UTC) + timedelta(hours=2)  # some moment, as somebody has written it down
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
