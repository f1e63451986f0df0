"""The log keeper: keeps the outcome log within its byte cap, and warns when it fills.

Every worker has this duty, but in a fleet only the watchers of the leases do it: otherwise each further worker would cost an idle
broker one more look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.middleware.logs import log

from ...brokers.redis.outcome_log import bound
from ..duty import Duty

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.brokers.redis.transport import RedisTransport

#: The least and the most seconds between two looks; the most if the log has room for the events of that time.
EVERY, AT_MOST = 1.0, 5.0
#: The fastest growth of a log (bytes a second): some 50,000 events.
GROWTH = 20 * 1024 * 1024
#: It trims at this part of the cap, so that the events between two looks do not exceed the cap.
ACT_AT = 0.9
#: Looks until the warning is repeated.
QUIET = 300


class LogKeeper(Duty):
    """Looks at the outcome log every five seconds while it has room, and once a second when it may soon be full."""

    title = "log"
    line_if_unanswered = "debug", "outcome_log.not_seen"
    line_if_failed = "error", "outcome_log.failed"

    def __init__(self, transport: RedisTransport, max_bytes: int, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """`is_wanted` says before each look whether this worker takes it."""
        super().__init__(EVERY)
        self._is_wanted = is_wanted
        self._transport = transport
        self._max_bytes = max_bytes
        self._quiet = 0

    def leads(self) -> bool:
        """Whether this worker looks; this needs no call of the broker."""
        self._every = EVERY  # until a look says that the log has room
        return self._is_wanted()

    def step(self) -> None:
        """Look once. Raises the broker's errors."""
        found = bound(self._transport.client, self._transport.keys, int(self._max_bytes * ACT_AT))
        self._every = min(max((found.cap - found.bytes) / GROWTH, EVERY), AT_MOST)
        self._quiet = max(self._quiet - 1, 0)
        if found.removed:
            log.warning("outcome_log.trimmed", entries=found.removed, bytes=found.bytes, cap=self._max_bytes)
        elif found.filling and not self._quiet:
            self._quiet = QUIET
            why = "nobody exports it: `redelivery outcomes export`"
            log.warning("outcome_log.filling", bytes=found.bytes, cap=self._max_bytes, why=why)
