"""What a task may raise to say itself what follows: the last word, above every setting.

They do not inherit from Celery's exceptions, so `autoretry_for`, `throws` and error handling around a task treat them as any other.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from redelivery.settings.values import duration

if TYPE_CHECKING:
    from datetime import timedelta


class RedeliverAfter(Exception):
    """Deliver this message again after `delay` (seconds, or a `timedelta`), whatever the policy's own delay is.

    The policy's limits still hold: when they are reached, the message dies. `detail` says why, for the record. Raises
    `ConfigurationError` for a delay that is no duration.
    """

    __module__ = "redelivery"  # result backends store it

    def __init__(self, delay: float | timedelta, detail: str = "") -> None:
        self.delay: float = duration("RedeliverAfter's delay", delay)
        self.detail = detail
        super().__init__(self.delay, detail)

    def __str__(self) -> str:
        asked = f"to be delivered again after {self.delay:g} s"
        return f"{asked}: {self.detail}" if self.detail else asked

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), self.delay, detail=self.detail), ()


class DeadLetter(Exception):
    """Give this message up at once: its reason is `non_retryable`, and `detail` says why, for the record."""

    __module__ = "redelivery"  # result backends store it

    def __init__(self, detail: str = "") -> None:
        self.detail = detail
        super().__init__(detail)


def _redeliver_after(cls: type[RedeliverAfter], delay: float, detail: str) -> RedeliverAfter:
    """What results that earlier versions pickled name."""
    return cls(delay, detail=detail)
