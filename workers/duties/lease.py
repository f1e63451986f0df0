"""The lease: a living worker renews it, and so a dead worker is found.

Each worker renews its lease once a second, less often in a larger fleet (`pace`). Two workers of a fleet watch all leases: if every
worker did, the load on the broker would grow with the square of the fleet. The two watchers renew once a second in any fleet. A
watcher that does not renew its watch for three seconds is replaced, and its successor restarts the watch.

An owner is fenced if one worker has seen no change of its counter for a whole lease (10 s by default), over one unbroken connection
to one run of the server. Then the recoverer gives its messages back. Any error, and any late answer, restarts the watch: otherwise
an outage of the broker would run the whole fleet's tasks twice.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.errors import REFUSED
from redelivery.middleware.logs import log

from ..brokers.redis.transport import redis_of
from ..operations.fleet.recovery import name_of
from .duty import Duty

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.brokers.redis.leases import Renewal
    from redelivery.middleware.runtime import Runtime

#: Seconds between two renewals; a lease below 8 s is renewed eight times in its life.
EVERY = 1.0
#: With more workers than these, the pause is twice as long, or three times.
MEDIUM, LARGE = 8, 32
#: A watcher is replaced after this many missed renewals.
WATCH = 3
#: Seconds for which marks keep plain workers' sweeps away from held messages, and between two refreshes of the marks.
HELD_FOR, REFRESH_EVERY = 86_400.0, 3_600.0


def pace(workers: int) -> int:
    """The multiple of `EVERY` between two renewals in a fleet of this many workers."""
    return 1 + (workers > MEDIUM) + (workers > LARGE)


class Lease(Duty):
    """Renews this worker's lease, and fences dead owners while this worker is a watcher.

    `on_renewed` is called after each renewal. The `Renewal` says what the fleet lacks: a dispatcher, a runner, a recovery.
    """

    title = "lease"
    is_brief = True
    line_if_failed = "error", "lease.failed"

    def __init__(self, runtime: Runtime, on_renewed: Callable[[Renewal], object] = lambda _: None) -> None:
        self._shortest = min(EVERY, runtime.settings.lease / 8)
        super().__init__(self._shortest)
        self._runtime = runtime
        self._on_renewed = on_renewed
        self._seen: dict[bytes, tuple[bytes, float]] = {}
        self._run_id = ""
        self._looked = time.monotonic()
        self._refreshed = time.monotonic()
        #: Whether this worker is a watcher. True until the first renewal says otherwise.
        self.watches = True

    def unanswered(self, exc: Exception) -> None:
        """Restart the watch over all other owners."""
        if self._seen:
            log.warning("lease.watch_restarted", error=str(exc))
        self._seen.clear()

    def failed(self, exc: Exception) -> None:
        """Restart the watch, and log the error; renewals go on."""
        self._seen.clear()
        super().failed(exc)

    def step(self) -> None:
        """Renew once; a watcher also fences dead owners. Raises the broker's errors."""
        owner = self._runtime.owner
        token = owner.token
        renewed = redis_of(self._runtime).leases.renew(token, self._shortest * WATCH)
        if renewed is None:
            log.warning("owner.fenced", worker=owner.worker, why="its lease was not renewed in time, or the broker lost it")
            if owner.lease is not None:
                owner.lease.begin(token)
            self._seen.clear()
            return
        self.watches = renewed.watches
        self._every = self._shortest * (1 if renewed.watches else pace(renewed.leases))
        if not renewed.watches or renewed.leases == 1:
            self._seen.clear()
        elif self._watch(owner.token.encode()):
            renewed = replace(renewed, recovering=True)
        self._on_renewed(renewed)
        if time.monotonic() - self._refreshed > REFRESH_EVERY:
            self._refresh_marks(list(owner.held))

    def _refresh_marks(self, tags: list[str]) -> None:
        """Refresh the marks that keep plain workers away. They last a day: if the server refuses, try again in an hour."""
        self._refreshed = time.monotonic()
        try:
            redis_of(self._runtime).leases.extend(tags, HELD_FOR)
        except REFUSED as exc:  # does not restart the watch, without which no owner would be fenced
            log.warning("lease.not_extended", error=str(exc), held=len(tags))

    def _watch(self, own: bytes) -> bool:
        """Check all leases; return whether one was fenced."""
        transport, fenced = redis_of(self._runtime), False
        run_id = transport.client.info("server")["run_id"]
        if run_id != self._run_id:
            self._seen.clear()
            self._run_id = run_id
        counters: dict[Any, Any] = transport.client.hgetall(transport.keys.leases)
        now, lease = time.monotonic(), self._runtime.settings.lease
        self._forget_if_stalled(now, lease)
        self._seen = {
            token: self._seen[token] if token in self._seen and self._seen[token][0] == counter else (counter, now)
            for token, counter in counters.items()
            if token != own
        }
        for token, (counter, since) in self._seen.items():
            if now - since >= lease and transport.leases.fence(token.decode(), counter):
                silent_for = round(now - since, 1)
                worker = name_of(transport, token.decode())
                log.warning("owner.presumed_dead", token=token.decode(), worker=worker, silent_for=silent_for)
                fenced = True
        return fenced

    def _forget_if_stalled(self, now: float, lease: float) -> None:
        """Restart the watch if the broker or this worker stalled, so that no renewal could be seen."""
        if now - self._looked > self._every + lease / 2 and self._seen:
            log.warning("lease.watch_restarted", error=f"no answer for {now - self._looked:.1f} s")
            self._seen.clear()
        self._looked = now
