"""The server's clock, as far as a worker can tell without asking.

Every answer that names the server's time was read some time after it was given: in a busy worker, much later. So each one says at
least how far the server's clock is ahead of this machine's monotonic one, and the largest of the last minute or two is the truest.
Older ones are forgotten, because a server's clock may be set back. This machine's own clock is never looked at.
"""

from __future__ import annotations

import math
import time

#: How long an answer is remembered: so many seconds at least, twice as many at most.
MEMORY = 60.0


class ServerClock:
    """Knows the server's time once it has been told."""

    def __init__(self) -> None:
        self._latest = self._before = -math.inf
        self._turn_at = -math.inf

    @property
    def is_known(self) -> bool:
        """Whether anything has been heard yet."""
        return self._latest > -math.inf

    def heard(self, now_ms: int) -> None:
        """The server's clock said so (milliseconds since the epoch), in an answer that was read just now."""
        now = time.monotonic()
        ahead = now_ms - now * 1000
        if now >= self._turn_at:
            self._before, self._latest, self._turn_at = self._latest, ahead, now + MEMORY
        else:
            self._latest = max(self._latest, ahead)

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by the server's clock. Only asked once it `is_known`."""
        return int(time.monotonic() * 1000 + max(self._latest, self._before))
