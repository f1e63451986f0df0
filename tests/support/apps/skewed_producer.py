"""A producer on a machine whose clock is wrong: publishes one task in each way that Celery has to say how long it waits.

`python -m tests.support.apps.skewed_producer <broker> <queue> <settings>` prints, as JSON, the task ids by the name of the way.
`CLOCK_SKEW` says how wrong the clock is (`tests/skewed`).
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery, chain, group, signature

from redelivery import Redelivery

__all__ = ["SECONDS", "WAYS", "published"]

#: How long each waits, or lives.
SECONDS = 1.5
WAYS = ("countdown", "option", "group", "chain", "both", "eta", "expires", "expires_later")


def published(broker: str, queue: str, settings: dict[str, Any]) -> dict[str, str]:
    """Publish them; their ids."""
    app = Celery("skewed", broker=broker, backend="cache+memory://")
    app.conf.update(task_default_queue=queue, redelivery=settings)
    Redelivery(app)
    ok = signature("tests.support.apps.clocked.ok", app=app)
    right = datetime.now(UTC) + timedelta(hours=2)  # some moment, as somebody has written it down
    made = {
        "countdown": app.send_task("tests.support.apps.clocked.ok", countdown=SECONDS),
        "option": ok.clone().set(countdown=SECONDS).delay(),
        "group": group([ok.clone()], app=app).apply_async(countdown=SECONDS)[0],
        "chain": chain(ok.clone(), app=app).apply_async(countdown=SECONDS),
        "both": app.send_task("tests.support.apps.clocked.ok", countdown=SECONDS, expires=600),
        "eta": app.send_task("tests.support.apps.clocked.ok", eta=right),
        "expires": app.send_task("tests.support.apps.clocked.ok", expires=600),
        "expires_later": app.send_task("tests.support.apps.clocked.ok", expires=right),
    }
    return {name: str(result.id) for name, result in made.items()} | {"right": right.isoformat()}


if __name__ == "__main__":
    json.dump(published(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])), sys.stdout)
