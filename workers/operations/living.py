"""The living: which leases are being renewed, as somebody sees it who looks now and then.

Enters: the counters of all leases, at each look. Leaves: how many belong to living workers. A worker renews its counter once a
second; where all workers are gone nobody is left to end the leases of the dead, so that the number of leases says little. A counter
that has stood still for a whole lease, between two looks, is a dead worker's. Limits: at the first look every lease counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Living:
    """Counts living workers, look by look. `lease` is how long (seconds) a counter may stand still."""

    def __init__(self, lease: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease, self._clock = lease, clock
        self._seen: dict[bytes, tuple[bytes, float]] = {}

    def count(self, counters: Mapping[bytes, bytes]) -> int:
        """How many of these counters are renewed, as far as the looks so far can tell."""
        now = self._clock()
        before, self._seen = self._seen, {}
        for token, counter in counters.items():
            known = before.get(token)
            self._seen[token] = known if known is not None and known[0] == counter else (counter, now)
        return sum(now - since < self._lease for _, since in self._seen.values())
