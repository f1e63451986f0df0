"""Delayed messages: how late they run, and the memory that they take in a worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.figures import less, more, percentile
from benchmarks.processor import resident_bytes
from benchmarks.sides import side
from benchmarks.stamps import late_ms

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.figures import Figure

__all__ = ["lateness", "memory", "whole_seconds"]

#: Seconds from the first publication to the first due time, in which all are published: fixed, and for each task.
AHEAD, AHEAD_EACH = 3.0, 0.0015
WARM_UP = 100
#: Delays in whole seconds, as RabbitMQ's levels have them. The last one passes through four levels.
SECONDS = (1, 2, 5, 61)
#: Seconds after the last due time in which all must have run.
TIMEOUT = 240.0


def lateness(name: str, *, tasks: int, per_second: int) -> dict[str, Figure]:
    """Messages due at a steady rate: the lateness of the task's first line in ms. A negative `earliest`: one ran early."""
    with side(name) as here, here.worker():
        path = here.folder / "stamps"
        begin = time.time() + AHEAD + tasks * AHEAD_EACH
        dues = [begin + at / per_second for at in range(tasks)]
        for due in dues:
            here.send_later("stamp", due - time.time(), due, str(path))
        time.sleep(max(dues[-1] - time.time(), 0))
        here.wait_until_empty()
        late = late_ms(path, expected=tasks)
    return {
        "late_p50": less(percentile(late, 0.5), "ms"),
        "late_p99": less(percentile(late, 0.99), "ms"),
        "earliest": more(min(late), "ms"),
    }


def whole_seconds(name: str, *, tasks: int, per_second: int, broker: str) -> dict[str, Figure]:
    """`tasks` messages of each delay, published at a steady rate: their lateness in ms. A negative `earliest`: one ran early."""
    figures: dict[str, Figure] = {}
    with side(name, broker=broker) as here, here.worker():
        paths = {seconds: here.folder / f"stamps-{seconds}" for seconds in SECONDS}
        begin = time.time() + 1
        for at in range(tasks):
            time.sleep(max(begin + at / per_second - time.time(), 0))
            for seconds, path in paths.items():
                here.send_later("stamp", seconds, time.time() + seconds, str(path))
        deadline = time.monotonic() + max(SECONDS) + TIMEOUT
        while any(_lines(path) < tasks for path in paths.values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        late = {seconds: late_ms(path, expected=tasks) for seconds, path in paths.items()}
    for seconds, its in late.items():
        figures[f"late_p50_{seconds}s"] = less(percentile(its, 0.5), "ms")
        figures[f"late_p99_{seconds}s"] = less(percentile(its, 0.99), "ms")
    figures["earliest"] = more(min(min(its) for its in late.values()), "ms")
    return figures


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def memory(name: str, *, tasks: int) -> dict[str, Figure]:
    """The bytes in the worker's main process for each of `tasks` messages that wait for an hour."""
    with side(name) as here, here.worker() as worker:
        send = here.sender("noop")
        for _ in range(WARM_UP):
            send()
        here.wait_until_empty()
        before = resident_bytes(worker.pid)
        for _ in range(tasks):
            here.send_later("noop", 3600)
        while here.client.llen("celery"):
            time.sleep(0.05)
        time.sleep(1)
        after = resident_bytes(worker.pid)
    return {"worker_memory": less((after - before) / tasks, "bytes/task"), "worker_resident": less(after / 1e6, "MB")}
