"""Waiting for replicas (`wait_replicas`): a script counts as answered when this many replicas have its writes.

If a master dies, it loses answered writes that no replica has yet. Redis's `WAIT` closes that gap, with limits: writes are not
undone if replicas are missing or late, so after `TIMEOUT` the answer counts nevertheless, and a log line reports it. If not all
replicas are waited for, Sentinel may promote one that has not confirmed. To make a master refuse writes while replicas are missing,
set its `min-replicas-to-write`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import ResponseError

from ...logs import log
from .scripts import command

if TYPE_CHECKING:
    from redis import ConnectionPool

#: Milliseconds that replicas may take; less than `SOCKET_TIMEOUT`, after which a call counts as not answered.
TIMEOUT = 1_000
#: Late replicas are logged once in this many seconds.
LOG_INTERVAL = 60.0


class Replicas:
    """The number of replicas that must have the writes, and the packed command that waits for them."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.command = command(b"WAIT", str(wanted).encode(), str(TIMEOUT).encode())
        self._log_at = 0.0

    def check(self, answer: Any) -> None:
        """Log a warning if too few replicas have the writes. `answer` is their number, or an error; the writes are not repeated."""
        confirmed, why, now = answer, "the last writes may be lost if the master dies now", time.monotonic()
        if isinstance(answer, ResponseError):
            confirmed, why = 0, f"the server refuses WAIT: {answer}"
        if confirmed < self.wanted and now >= self._log_at:
            self._log_at = now + LOG_INTERVAL
            log.warning("replicas.behind", wanted=self.wanted, confirmed=confirmed, why=why)


class ConfirmedRedis(Redis):
    """A client whose scripts wait for as many replicas as the settings of `owner`, an app or a connection, say."""

    def __init__(self, pool: ConnectionPool, owner: Any) -> None:
        super().__init__(connection_pool=pool)
        runtime = getattr(owner, "redelivery", None)
        wanted = 0 if runtime is None else runtime.settings.wait_replicas
        self.replicas = Replicas(wanted) if wanted else None
