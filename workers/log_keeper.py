"""The log keeper: one thread in each worker that keeps the outcome log within its bytes, and says when it fills."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from redelivery.middleware.logs import log
from redelivery.workers.outcome_log import bound

if TYPE_CHECKING:
    from redelivery.middleware.transports.redis import RedisTransport

__all__ = ["LogKeeper"]

EVERY = 1.0
#: It acts at this part of the cap, so that what is recorded between two looks does not pass the cap.
ACT_AT = 0.9
#: A full log is said again only after so many looks.
QUIET = 300


class LogKeeper:
    """Looks at the outcome log once a second."""

    def __init__(self, transport: RedisTransport, max_bytes: int) -> None:
        self._transport = transport
        self._max_bytes = max_bytes
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._quiet = 0

    def start(self) -> None:
        """Begin; a second time changes nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="redelivery-log", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End, after the look that is under way."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(EVERY * 3)

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            try:
                self.step()
            except (RedisError, OSError) as exc:
                log.debug("outcome_log.not_seen", error=str(exc))
            except Exception:  # noqa: BLE001 - the duty must go on
                log.exception("outcome_log.failed")

    def step(self) -> None:
        """Look once. Raises whatever the broker does."""
        found = bound(self._transport.client, self._transport.keys, int(self._max_bytes * ACT_AT))
        self._quiet = max(self._quiet - 1, 0)
        if found.removed:
            log.warning("outcome_log.trimmed", entries=found.removed, bytes=found.bytes, cap=self._max_bytes)
        elif found.filling and not self._quiet:
            self._quiet = QUIET
            why = "nobody exports it: `redelivery outcomes export`"
            log.warning("outcome_log.filling", bytes=found.bytes, cap=self._max_bytes, why=why)
