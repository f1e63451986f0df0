"""The time from `delay()` to the task's first line, with an idle worker or under a steady load."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.figures import less, percentile
from benchmarks.sides import side
from benchmarks.stamps import late_ms
from benchmarks.turns import moments

if TYPE_CHECKING:
    from benchmarks.figures import Figure

__all__ = ["start"]

WARM_UP = 50


def start(name: str, *, tasks: int, per_second: float) -> dict[str, Figure]:
    """Publish tasks at random times, `per_second` on all sides together: the milliseconds from the call to the task."""
    with side(name) as here, here.worker():
        noop, stamp, path = here.sender("noop"), here.sender("stamp"), here.folder / "stamps"
        for _ in range(WARM_UP):
            noop()
        here.wait_until_empty()
        for due in moments(name, tasks, per_second):
            time.sleep(max(due - time.time(), 0))
            stamp(time.time(), str(path))
        here.wait_until_empty()
        took = late_ms(path, expected=tasks)
    return {"start_p50": less(percentile(took, 0.5), "ms"), "start_p99": less(percentile(took, 0.99), "ms")}
