"""Stamps: a line for each task, with its due time and the time when it ran, for any side."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["late_ms", "write_stamp"]


def write_stamp(since: float, path: str) -> None:
    """Append a line in one write: `since` (seconds since the epoch) and now."""
    ran = time.time()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (json.dumps([since, ran]) + "\n").encode())
    os.close(descriptor)


def late_ms(path: Path, *, expected: int) -> list[float]:
    """The lateness of each line in ms. Raises `RuntimeError` if a task did not run, or ran twice."""
    lines = path.read_text().splitlines() if path.exists() else []
    if len(lines) != expected:
        msg = f"{expected} tasks were published, and {len(lines)} ran"
        raise RuntimeError(msg)
    return [(ran - since) * 1000 for since, ran in map(json.loads, lines)]
