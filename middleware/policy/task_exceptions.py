"""Exceptions by which a task itself decides what happens next; they take precedence over every setting.

They do not inherit from Celery's exceptions: `autoretry_for`, `throws` and error handling treat them like any other exception.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from redelivery.settings.values import duration

if TYPE_CHECKING:
    from datetime import timedelta


class RedeliverAfter(Exception):
    """Deliver this message again after `delay` (seconds, or a `timedelta`), instead of after the policy's own delay.

    The policy's limits still apply: when they are reached, the message dies. `detail` is the reason, for the record. Raises
    `ConfigurationError` for a delay that is not a duration.
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
    """End this message at once: its reason is `non_retryable`, and `detail` is the explanation, for the record."""

    __module__ = "redelivery"  # result backends store it

    def __init__(self, detail: str = "") -> None:
        self.detail = detail
        super().__init__(detail)


def _redeliver_after(cls: type[RedeliverAfter], delay: float, detail: str) -> RedeliverAfter:
    """The function that results pickled by earlier versions refer to."""
    return cls(delay, detail=detail)
