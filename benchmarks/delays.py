"""Delayed messages: how late they run, and what a worker pays in memory for those that wait."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.sides import Side, side

__all__ = ["lateness", "memory"]


def lateness(name: str, *, tasks: int, per_second: int) -> dict[str, Any]:
    """Messages due at a steady rate: milliseconds late, as the task's first line sees it; negative is early."""
    with side(name) as here:
        task = here.app.tasks["benchmarks.app.stamp"]
        with here.worker():
            begin = time.time() + 4
            dues = [begin + at / per_second for at in range(tasks)]
            for due in dues:
                task.apply_async((due, str(here.folder / "stamps")), countdown=due - time.time())
            time.sleep(max(dues[-1] - time.time(), 0) + 0.5)
            here.wait_until_empty()
        stamps = [json.loads(line) for line in (here.folder / "stamps").read_text().splitlines()]
    late = sorted((ran - due) * 1000 for due, ran in stamps)
    return {
        "tasks": len(late),
        "earliest_ms": late[0],
        "p50_ms": statistics.median(late),
        "p99_ms": late[int(len(late) * 0.99)],
    }


def memory(name: str, *, tasks: int) -> dict[str, Any]:
    """So many messages wait for an hour: bytes of the worker's main process for each."""
    with side(name) as here, here.worker() as worker:
        noop = here.app.tasks["benchmarks.app.noop"]
        for _ in range(100):
            noop.delay()
        here.wait_until_empty()
        before = _resident(worker.pid)
        for _ in range(tasks):
            noop.apply_async(countdown=3600)
        _wait_until_taken(here)
        return {
            "tasks": tasks,
            "bytes_per_task": (_resident(worker.pid) - before) / tasks,
            "resident_mb": _resident(worker.pid) / 1e6,
        }


def _wait_until_taken(here: Side) -> None:
    while here.server.client.llen("celery"):
        time.sleep(0.05)
    time.sleep(1)


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
