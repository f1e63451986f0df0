"""Compares a producer's clock with the server's, and notes a wrong clock on the server for operators.

Countdowns do not need the producer's clock (`messages/countdown`), but times that the producer computes (`eta=`, `expires=` as a
time) do. The first publication of a process compares the clocks, and then one publication in each hour. A wrong clock is logged,
and noted under its host's name for one or two days. A correct clock is noted only if there are notes of the day. No publication
fails because of a comparison.
"""

from __future__ import annotations

import json
import math
import socket
import time
from typing import TYPE_CHECKING, Any

from ....logs import log
from ....policy.clock_skew import skew_ms
from ...errors import REDIS_ERRORS

if TYPE_CHECKING:
    from redis import Redis

    from ..keys import Keys

#: Seconds between two comparisons by one process.
EVERY = 3600.0
DAY_MS = 86_400_000
#: The most hosts with a note on one day.
MAX_HOSTS = 1000
WHY = "the times that it computes (eta, expires) are wrong, too: set its clock (NTP), or publish with countdown"


class ProducerClock:
    """The clock of this machine."""

    def __init__(self) -> None:
        self._next = -math.inf

    def look(self, client: Redis, keys: Keys) -> None:
        """Compare the clock with the server's, if the last comparison is `EVERY` seconds old."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY
        try:
            self._compare(client, keys)
        except REDIS_ERRORS as exc:
            log.debug("clock.not_seen", error=str(exc))

    @staticmethod
    def _compare(client: Redis, keys: Keys) -> None:
        asked_ms = _now_ms()
        said: Any = client.time()
        answered_ms = _now_ms()
        server_ms = int(said[0]) * 1000 + int(said[1]) // 1000
        ahead = -skew_ms(asked_ms, server_ms, answered_ms)
        noted, host = keys.clocks(server_ms // DAY_MS), socket.gethostname()
        if ahead:
            log.warning("clock.differs", host=host, seconds=round(ahead / 1000, 3), why=WHY)
        elif not client.exists(noted):
            return
        if int(client.hlen(noted)) < MAX_HOSTS:
            client.hset(noted, host, json.dumps({"ahead_ms": ahead, "at_ms": server_ms}))
            client.pexpire(noted, 2 * DAY_MS)


def _now_ms() -> int:
    return int(time.time() * 1000)
