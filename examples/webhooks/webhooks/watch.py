"""The progress of a run, read from the outcome log while it grows.

Enters: a client of the broker. Leaves: how many tasks have ended, wait or died, and whether anything is left to wait for. It only
reads; the log is exported, and trimmed, when the run has ended.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, cast

from redelivery.middleware.keys import Keys
from redelivery.middleware.outcomes import TERMINAL, Outcome, entries

if TYPE_CHECKING:
    import redis

__all__ = ["Watch"]

#: How many entries are read at once.
BATCH = 1000


class Watch:
    """What the outcome log has said so far."""

    def __init__(self, client: redis.Redis, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._keys = Keys()
        self._cursor = "-"
        self._changed = time.monotonic()
        self._last: dict[str, tuple[int, str]] = {}
        self.outcomes: Counter[str] = Counter()

    def look(self) -> None:
        """Read what is new."""
        while True:
            found = cast(
                "list[tuple[bytes, dict[bytes, bytes]]]", self._client.xrange(self._keys.outcomes, self._cursor, count=BATCH)
            )
            if not found:
                return
            self._changed = time.monotonic()
            self._cursor = f"({found[-1][0].decode()}"
            for event in entries(found):
                self.outcomes[event.outcome] += 1
                known, outcome = self._last.get(event.task_id, (-1, ""))
                if event.generation > known or (event.generation == known and outcome not in TERMINAL):
                    self._last[event.task_id] = (event.generation, event.outcome)

    @property
    def ended(self) -> int:
        """How many tasks have come to an end; one that was redriven lives again."""
        return sum(outcome in TERMINAL for _, outcome in self._last.values())

    @property
    def waiting(self) -> int:
        """How many wait for their redelivery."""
        return sum(outcome == Outcome.REDELIVERY_SCHEDULED for _, outcome in self._last.values())

    @property
    def dead(self) -> int:
        """How many lie in a dead-letter queue."""
        return sum(outcome == Outcome.DEAD_LETTERED for _, outcome in self._last.values())

    def is_idle(self, quiet: float) -> bool:
        """Whether the broker holds nothing that could still be delivered, and nothing was recorded for `quiet` seconds."""
        return time.monotonic() - self._changed > quiet and self._held() == 0

    def _held(self) -> int:
        keys, client = self._keys, self._client
        queued = sum(int(client.llen(keys.list(name))) for name in keys.list_names(self._queue))
        delayed = sum(int(client.zcard(keys.due(name))) for name in keys.list_names(self._queue))
        return queued + delayed + int(client.hlen(keys.unacked))
