"""The random times at which the sides of a comparison publish. Sides that run in parallel take turns.

They take turns message by message, so that other load of the machine affects all sides alike. `BENCH_TURNS` in the environment has
the sides of this run, and a folder in which each reports that it is ready. All sides draw the same times from the same seed,
relative to the time when the last side was ready.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["moments", "turns"]

VARIABLE = "BENCH_TURNS"
#: Seconds from the readiness of the last side to the first publication, and the timeout of that readiness.
AHEAD, TIMEOUT = 1.0, 600.0


def turns(folder: Path, sides: tuple[str, ...]) -> dict[str, str]:
    """The environment variables for the processes of these sides."""
    return {VARIABLE: json.dumps([str(folder), sides])}


def moments(name: str, count: int, per_second: float) -> Iterator[float]:
    """The `count` random times at which this side publishes (seconds since the epoch); `per_second` for all sides together.

    Waits until every side is ready. Raises `TimeoutError` if one is not ready in time.
    """
    folder, sides = json.loads(os.environ[VARIABLE])
    drawn = random.Random(7)  # noqa: S311 - the same times for each side
    due = _wait_for_all(Path(folder), name, sides) + AHEAD
    for _ in range(count):
        for side in drawn.sample(sides, len(sides)):
            due += drawn.expovariate(per_second)
            if side == name:
                yield due


def _wait_for_all(folder: Path, name: str, sides: list[str]) -> float:
    """Report that this side is ready, and wait for all. Returns the time of the last report (seconds since the epoch)."""
    (folder / f"{name}.ready").touch()
    marks = [folder / f"{side}.ready" for side in sides]
    deadline = time.monotonic() + TIMEOUT
    while not all(mark.exists() for mark in marks):
        if time.monotonic() > deadline:
            msg = f"{name}: not all of {', '.join(sides)} are ready after {TIMEOUT:g} s"
            raise TimeoutError(msg)
        time.sleep(0.01)
    return max(mark.stat().st_mtime for mark in marks)
