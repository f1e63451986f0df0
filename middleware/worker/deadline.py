"""The expiry of a request: when its message is no longer worth running, by the server's clock.

Celery asks twice (`revoked`): when the message arrives, and just before the task runs. Each time it is told by the server's clock,
as far as this worker knows it, and never by its own machine's, which may be an hour wrong. What expires, or was revoked, ends here.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from celery.worker import state

from ..logs import log
from ..messages.envelope import Failed
from ..messages.events import Outcome, Reason
from ..messages.ttl import expiry_ms
from ..policy import decision
from .deciding import Ending
from .held_delivery import Transitions

__all__ = ["Expiring"]


class Expiring(Transitions):
    """A request whose message may expire, or be revoked."""

    _due = 0.0
    _eta: datetime | None
    _expires: datetime | None

    def _by_this_clock(self, eta: datetime) -> datetime:
        """What this machine's clock says when the server's says `eta`: Celery waits for what is due so soon by this machine's."""
        try:
            seconds = eta.timestamp() - self._runtime.owner.now_ms() / 1000
            self._due = time.monotonic() + seconds
            return datetime.fromtimestamp(time.time() + seconds, UTC)
        except (ArithmeticError, ValueError, OSError):
            return eta  # no time that either clock will ever say

    @property
    def early(self) -> float:
        """Seconds that are left until its ETA: the timers of some pools go off before it."""
        return self._due - time.monotonic()

    def _begin_lifetime(self, message: Any) -> None:
        """When the message expires: Celery is told, so that it asks (`revoked`) on arrival, and again just before the task runs."""
        held, expires = self._held, self._expires
        assert held is not None  # noqa: S101 - only asked where we hold the message
        self._expires_ms = expiry_ms(
            message.headers,
            message.properties,
            self._envelope,
            self._policy,
            seen_ms=held.seen_ms,
            expires_ms=None if expires is None else round(expires.timestamp() * 1000),
        )
        self._expires = None if self._expires_ms is None else datetime.fromtimestamp(self._expires_ms / 1000, UTC)

    def _now_ms(self) -> int:
        held = self._held
        assert held is not None  # noqa: S101 - only asked where we hold the message
        return max(self._runtime.owner.now_ms(), held.seen_ms)  # it is later than when the message came

    def revoked(self) -> bool:
        """As Celery's, asked just before the task runs; a message whose lease has ended meanwhile is another worker's to run."""
        if self._held is not None and not self._runtime.owner.holds(self._held.tag):
            log.warning("start.refused", tag=self._held.tag, why="the lease under which it was received has ended")
            state.task_ready(self)
            self.acknowledged = True
            self._runtime.owner.drop(self._held.tag)
            return True
        return bool(super().revoked())

    def maybe_expire(self) -> bool:
        """As Celery's, by the server's clock; the id is not remembered as revoked, so that a redriven task runs."""
        if self._held is None:
            return bool(super().maybe_expire())
        return self._expires_ms is not None and self._now_ms() >= self._expires_ms

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if self._held is not None and self._ending is None:
            failed = Failed(type="celery.exceptions.TaskRevokedError", message=reason, fingerprint=reason)
            expiry = decision.ending(self._policy, Reason.EXPIRED, "", eligible=self._eligible)
            self._ending = self._death(expiry, failed) if expired else Ending(Outcome.REVOKED)
        super()._announce_revoked(reason, terminated, signum, expired)
        if self._held is not None and self._ending is not None and not self._left and not self._task.acks_late:
            self._leave(self._ending)  # acknowledged before it ran
