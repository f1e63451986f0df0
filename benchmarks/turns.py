"""The moments at which the sides of a comparison publish: they are random, and sides that run beside each other take turns.

They take turns message by message, so that other work of the machine slows all of them alike. `BENCH_TURNS` in the environment has
the sides of this run, and a folder in which each reports that it is ready. The sides exchange nothing else: all draw the same
moments from the same seed, counted from when the last of them was ready.
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
#: Seconds from when the last side is ready to the first moment, and how long it may take until it is ready.
AHEAD, MAX_MS = 1.0, 600.0


def turns(folder: Path, sides: tuple[str, ...]) -> dict[str, str]:
    """The environment of the processes of these sides."""
    return {VARIABLE: json.dumps([str(folder), sides])}


def moments(name: str, count: int, per_second: float) -> Iterator[float]:
    """The `count` moments at which this side publishes (seconds since the epoch): random, all sides together so many a second.

    Waits until every side is ready. Raises `TimeoutError` if one does not become ready.
    """
    folder, sides = json.loads(os.environ[VARIABLE])
    drawn = random.Random(7)  # noqa: S311 - the same moments for each side, and no secret
    due = _all_at_hand(Path(folder), name, sides) + AHEAD
    for _ in range(count):
        for side in drawn.sample(sides, len(sides)):
            due += drawn.expovariate(per_second)
            if side == name:
                yield due


def _all_at_hand(folder: Path, name: str, sides: list[str]) -> float:
    """Report that this side is ready, and wait for the others; returns when the last of them was (seconds since the epoch)."""
    (folder / f"{name}.at-hand").touch()
    marks = [folder / f"{side}.at-hand" for side in sides]
    deadline = time.monotonic() + MAX_MS
    while not all(mark.exists() for mark in marks):
        if time.monotonic() > deadline:
            msg = f"{name}: not all of {', '.join(sides)} are at hand after {MAX_MS:g} s"
            raise TimeoutError(msg)
        time.sleep(0.01)
    return max(mark.stat().st_mtime for mark in marks)
