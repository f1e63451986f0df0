"""The receiver's own log: one line of JSON for each request. The demo compares the books with it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Journal", "Line", "read"]


@dataclass(frozen=True, slots=True)
class Line:
    """One request.

    `number` counts the requests of this id from 1. `status` is that of the answer, 0 without an answer. `processed`: the webhook
    took effect now. `repeated`: it had taken effect before, and was not done again.
    """

    id: str
    number: int
    at_ms: int
    scenario: str
    status: int
    processed: bool
    repeated: bool


class Journal:
    """The log of one run, open for appending; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._processed: set[str] = set()

    def arrive(self, webhook_id: str) -> int:
        """Count a request; returns its number, from 1."""
        with self._lock:
            self._requests[webhook_id] += 1
            return self._requests[webhook_id]

    def write(self, webhook_id: str, number: int, *, scenario: str, status: int, accept: bool) -> Line:
        """Record a request. With `accept` the webhook takes effect, unless it already had."""
        with self._lock:
            repeated = accept and webhook_id in self._processed
            line = Line(webhook_id, number, time.time_ns() // 1_000_000, scenario, status, accept and not repeated, repeated)
            if accept:
                self._processed.add(webhook_id)
            self._file.write(json.dumps(asdict(line)) + "\n")
            self._file.flush()
            return line

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def read(path: Path) -> list[Line]:
    """All lines of a log, in order. Raises `TypeError` or `ValueError` on a foreign line."""
    with path.open(encoding="utf-8") as file:
        return [Line(**json.loads(line)) for line in file]
