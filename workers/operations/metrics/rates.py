"""The rates of the last hour, from the outcome log: how many lives succeeded, were retried and died in each minute.

The first call begins an hour back. Each call reads a bounded number of events, and continues where the last one ended. Events that
were exported before they were read are not counted. Only on Redis: RabbitMQ's log is a queue, and reading it takes its messages.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, Any

from redelivery.middleware.messages.events import Outcome
from redelivery.middleware.ports import Capability

from ...brokers.redis.transport import redis_of
from ..letters.reading.causes import MINUTE
from ..letters.redrive.fates import DIED

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

#: Minutes that are kept.
KEPT = 60
#: Entries of one round trip, and the maximum of round trips in one call.
PAGE, PAGES = 1000, 5
#: What is counted, and from which outcomes.
KINDS = {"succeeded": frozenset({Outcome.SUCCEEDED}), "retried": frozenset({Outcome.REDELIVERY_SCHEDULED}), "died": DIED}
_KIND = {str(outcome).encode(): kind for kind, outcomes in KINDS.items() for outcome in outcomes}


class Rates:
    """Counts by minute. For one thread at a time. The events from `since_ms` to `until_ms` were read."""

    @staticmethod
    def can_read(runtime: Runtime) -> bool:
        """Whether this broker's log can be read without taking its events."""
        return Capability.BROWSE_LETTERS_UNMARKED in runtime.transport.capabilities

    def __init__(self, runtime: Runtime) -> None:
        self._client, self._stream = redis_of(runtime).client, redis_of(runtime).keys.outcomes
        self._transport = runtime.transport
        self.since_ms = self.until_ms = self._transport.now_ms() - KEPT * MINUTE
        self._last = f"{self.since_ms}-0"
        self._minutes: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS}
        self.is_behind = True

    def read_on(self) -> None:
        """Read the events since the last call. Raises the errors of the broker's driver."""
        for _ in range(PAGES):
            entries: Any = self._client.xrange(self._stream, f"({self._last}", "+", count=PAGE)
            for entry_id, values in entries:
                kind = _KIND.get(values.get(b"o", b""))
                if kind is not None:
                    self._minutes[kind][int(entry_id.partition(b"-")[0]) // MINUTE] += 1
            if entries:
                self._last = entries[-1][0].decode()
            if len(entries) < PAGE:
                self.until_ms, self.is_behind = self._transport.now_ms(), False
                break
        else:
            self.until_ms, self.is_behind = int(self._last.partition("-")[0]), True
        first = self.until_ms // MINUTE - KEPT + 1
        for counts in self._minutes.values():
            for minute in [each for each in counts if each < first]:
                del counts[minute]

    def copied(self) -> Rates:
        """Return a copy of the counts for other threads."""
        copied = copy.copy(self)
        copied._minutes = {kind: Counter(counts) for kind, counts in self._minutes.items()}  # noqa: SLF001 - of this class
        return copied

    def total(self, kind: str) -> int:
        """How many in the last hour."""
        return sum(self._minutes[kind].values())

    def course(self, kind: str) -> list[int]:
        """How many in each minute, the oldest first."""
        first = self.until_ms // MINUTE - KEPT + 1
        return [self._minutes[kind][first + at] for at in range(KEPT)]
