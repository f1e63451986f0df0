"""When a message expires, and when it is due, by the broker's clock.

Celery asks twice whether a message has expired: when it arrives, and just before the task runs. The answer uses the broker's clock,
as this worker estimates it, because the clock of the worker's machine may be an hour wrong.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from ..messages.ttl import expiry_ms

if TYPE_CHECKING:
    from redelivery.settings import RedeliveryPolicy

    from ..messages.envelope import Envelope
    from ..ports import Held


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a message expires (milliseconds since the epoch); None if it never does."""

    at_ms: int | None

    @classmethod
    def of(cls, message: Any, held: Held, envelope: Envelope, policy: RedeliveryPolicy, expires: datetime | None) -> Self:
        """The deadline of a held message; `expires` is Celery's header."""
        expires_ms = None if expires is None else round(expires.timestamp() * 1000)
        return cls(expiry_ms(message.headers, message.properties, envelope, policy, seen_ms=held.seen_ms, expires_ms=expires_ms))

    @property
    def time(self) -> datetime | None:
        """The deadline as Celery stores it."""
        return None if self.at_ms is None else datetime.fromtimestamp(self.at_ms / 1000, UTC)

    def is_over(self, now_ms: int) -> bool:
        """Whether the message has expired."""
        return self.at_ms is not None and now_ms >= self.at_ms

    def bounded(self, delay_ms: int, now_ms: int) -> int:
        """The delay, cut to end when the message expires, so that it dies then."""
        return delay_ms if self.at_ms is None else min(delay_ms, max(self.at_ms - now_ms, 0))


NEVER = Deadline(None)


def by_this_clock(eta: datetime, now_ms: int) -> tuple[datetime, float]:
    """The broker's time `eta` by this machine's clock, which Celery uses, and by the monotonic clock."""
    try:
        seconds = eta.timestamp() - now_ms / 1000
        return datetime.fromtimestamp(time.time() + seconds, UTC), time.monotonic() + seconds
    except (ArithmeticError, ValueError, OSError):
        return eta, 0.0  # a time that no clock can represent
