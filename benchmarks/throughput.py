"""The ordinary path: how many tasks a second one worker runs, plain `acks_late` Celery and with redelivery, turn about."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.sides import side

__all__ = ["measure"]


def measure(name: str, *, tasks: int, pool: str, argument: str = "") -> dict[str, Any]:
    """Publish so many no-ops, then let one worker run them. Tasks a second, and producer's microseconds a task."""
    with side(name) as here:
        noop = here.app.tasks["benchmarks.app.noop"]
        noop.delay(argument)
        began = time.perf_counter()
        for _ in range(tasks):
            noop.delay(argument)
        published = time.perf_counter() - began
        with here.worker(pool=pool):
            began_running = time.monotonic()
            seconds = here.wait_until_empty() - began_running
        return {"tasks_per_second": tasks / seconds, "publish_us": published / tasks * 1e6}


if __name__ == "__main__":
    import json
    import statistics
    import sys

    count, pool_name, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    ratios, costs = [], []
    for _ in range(rounds):
        plain, ours = (measure(each, tasks=count, pool=pool_name) for each in ("plain", "redelivery"))
        ratios.append(ours["tasks_per_second"] / plain["tasks_per_second"])
        costs.append(ours["publish_us"] / plain["publish_us"])
        print(json.dumps({"plain": plain, "ours": ours}))
    print(json.dumps({"throughput": statistics.median(ratios), "publish": statistics.median(costs)}))
