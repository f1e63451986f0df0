"""The server's clock, as far as a worker knows it without a call.

A worker reads an answer with the server's time some time after the server gave it; a busy worker, much later. So each answer gives
a lower bound for how far the server's clock is ahead of this machine's monotonic clock. The largest of the last minute or two is
the best. Older ones are forgotten, because a server's clock may be set back. This machine's wall clock is never used.
"""

from __future__ import annotations

import math
import time

#: How long an answer is remembered: so many seconds at least, twice as many at most.
MEMORY = 60.0


class ServerClock:
    """The server's time, known after the first answer."""

    def __init__(self) -> None:
        self._latest = self._before = -math.inf
        self._turn_at = -math.inf

    @property
    def is_known(self) -> bool:
        """Whether an answer has come yet."""
        return self._latest > -math.inf

    def heard(self, now_ms: int) -> None:
        """Note the server's time (milliseconds since the epoch), from an answer that was read just now."""
        now = time.monotonic()
        ahead = now_ms - now * 1000
        if now >= self._turn_at:
            self._before, self._latest, self._turn_at = self._latest, ahead, now + MEMORY
        else:
            self._latest = max(self._latest, ahead)

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by the server's clock. Called only if it `is_known`."""
        return int(time.monotonic() * 1000 + max(self._latest, self._before))
