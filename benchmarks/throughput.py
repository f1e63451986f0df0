"""The ordinary path and the failing path: how many tasks, or attempts, a second one worker runs."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.sides import side

__all__ = ["failing", "ordinary"]

ATTEMPTS = 5
POLICY = {
    "queues": {
        "#": {
            "redelivery_delay": 1,
            "redelivery_delay_multiplier": 1,
            "redelivery_collision_avoidance_factor": 0,
            "max_delivery_attempts": ATTEMPTS,
        },
    },
}


def ordinary(name: str, *, tasks: int, pool: str, argument: str = "") -> dict[str, Any]:
    """Publish so many no-ops, then let one worker run them: tasks a second, and the producer's microseconds for each."""
    with side(name) as here:
        noop = here.app.tasks["benchmarks.app.noop"]
        noop.delay(argument)
        began = time.perf_counter()
        for _ in range(tasks):
            noop.delay(argument)
        published = time.perf_counter() - began
        with here.worker(pool=pool):
            began = time.monotonic()
            seconds = here.wait_until_empty() - began
        return {"tasks_per_second": tasks / seconds, "publish_us": published / tasks * 1e6}


def failing(name: str, *, tasks: int) -> dict[str, Any]:
    """So many tasks that fail five times, a second apart: attempts a second, from the first to the last."""
    with side(name, POLICY) as here:
        task = here.app.tasks[f"benchmarks.app.{'plain_failing' if name == 'plain' else 'failing'}"]
        for _ in range(tasks):
            task.delay()
        with here.worker():
            began = time.monotonic()
            seconds = here.wait_until_empty() - began
        return {"attempts_per_second": tasks * ATTEMPTS / seconds}
