"""Waiting for replicas (`wait_replicas`): a script has answered when so many replicas have what it wrote.

A master that dies takes with it what no replica had yet, though its clients were answered. Redis's `WAIT` closes that gap. Its
limits are Redis's own: what was written is not undone where replicas are missing or late, so after `TIMEOUT` the answer counts as
it is, and a line says so; and Sentinel may promote a replica that did not confirm, where there are several and not all are waited
for. To have a master refuse writes while replicas are missing, set its `min-replicas-to-write`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redis import Redis

from ...logs import log

if TYPE_CHECKING:
    from redis import ConnectionPool

#: How long replicas may take, in milliseconds: less than a call may take before it counts as not answered.
TIMEOUT = 1_000
#: That replicas are late is said once in so many seconds.
QUIET = 60.0


class Replicas:
    """How many replicas must have what was written, and the question whether they do."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        parts = [b"WAIT", str(wanted).encode(), str(TIMEOUT).encode()]
        self.question = b"".join([b"*3\r\n", *(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)])
        self._say_at = 0.0

    def heard(self, confirmed: int, why: str = "the last writes may be lost if the master dies now") -> None:
        """The server's answer: how many replicas have it."""
        now = time.monotonic()
        if confirmed < self.wanted and now >= self._say_at:
            self._say_at = now + QUIET
            log.warning("replicas.behind", wanted=self.wanted, confirmed=confirmed, why=why)


class ConfirmedRedis(Redis):
    """A client whose scripts are confirmed by replicas before they count as answered; with 0 it is redis-py's own."""

    def __init__(self, pool: ConnectionPool, wanted: int) -> None:
        super().__init__(connection_pool=pool)
        self.replicas = Replicas(wanted) if wanted else None

    def confirm(self, answers: list[Any]) -> list[Any]:
        """The answers of a pipeline that `wait` ended, without the server's last one, which is looked at."""
        if self.replicas is None:
            return answers
        *before, confirmed = answers
        self.replicas.heard(confirmed if isinstance(confirmed, int) else 0)
        return before
