"""The server's clock, as far as a worker knows it without a call.

A worker reads an answer some time after the server has put its time into it. So each answer gives a lower bound for how far the
server's clock is ahead of this machine's monotonic clock. The largest bound of the last minute or two is the best. Older ones are
forgotten, because a server's clock may be set back. This machine's wall clock is never used.
"""

from __future__ import annotations

import math
import time

#: Seconds that an answer is remembered at least; twice as long at most.
MEMORY = 60.0


class ServerClock:
    """The server's time, known after the first answer."""

    def __init__(self) -> None:
        self._latest = self._before = -math.inf
        self._turn_at = -math.inf

    @property
    def is_known(self) -> bool:
        return self._latest > -math.inf

    def observe(self, now_ms: int) -> None:
        """Note the server's time (milliseconds since the epoch), from an answer that was just read."""
        now = time.monotonic()
        ahead = now_ms - now * 1000
        if now >= self._turn_at:
            self._before, self._latest, self._turn_at = self._latest, ahead, now + MEMORY
        else:
            self._latest = max(self._latest, ahead)

    def now_ms(self) -> int:
        """The server's time, milliseconds since the epoch. Call it only if it `is_known`."""
        return int(time.monotonic() * 1000 + max(self._latest, self._before))
