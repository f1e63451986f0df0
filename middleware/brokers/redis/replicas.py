"""Waiting for replicas (`wait_replicas`): a script counts as answered when so many replicas have its writes.

If a master dies, writes that no replica had yet are lost, although its clients were answered. Redis's `WAIT` closes that gap. The
limits are Redis's own: writes are not undone if replicas are missing or late, so after `TIMEOUT` the answer counts all the same,
and a line of the log says so. If there are several replicas and not all are waited for, Sentinel may promote one that did not
confirm. To make a master refuse writes while replicas are missing, set its `min-replicas-to-write`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import ResponseError

from ...logs import log

if TYPE_CHECKING:
    from redis import ConnectionPool

#: How long replicas may take, in milliseconds: less than the time after which a call counts as not answered.
TIMEOUT = 1_000
#: Late replicas are logged at most once in so many seconds.
QUIET = 60.0


class Replicas:
    """How many replicas must have the writes, and the packed command that asks for it."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        parts = [b"WAIT", str(wanted).encode(), str(TIMEOUT).encode()]
        self.question = b"".join([b"*3\r\n", *(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)])
        self._say_at = 0.0

    def heard(self, answer: Any) -> None:
        """Note the server's answer: how many replicas have the writes, or an error, which is no reason to repeat the writes."""
        confirmed, why, now = answer, "the last writes may be lost if the master dies now", time.monotonic()
        if isinstance(answer, ResponseError):
            confirmed, why = 0, f"the server refuses WAIT: {answer}"
        if confirmed < self.wanted and now >= self._say_at:
            self._say_at = now + QUIET
            log.warning("replicas.behind", wanted=self.wanted, confirmed=confirmed, why=why)


class ConfirmedRedis(Redis):
    """A client whose scripts are confirmed by replicas before they count as answered; with 0 it is redis-py's own."""

    def __init__(self, pool: ConnectionPool, wanted: int) -> None:
        super().__init__(connection_pool=pool)
        self.replicas = Replicas(wanted) if wanted else None
