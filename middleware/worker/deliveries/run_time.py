"""When an attempt began, how long it ran, and how long its message waited before, for the event that ends the attempt.

The report of the pool's child has the time when it took the task, by the monotonic clock that all processes of a machine share, and
the run time. The worker knows the difference between that clock and the broker's (`owner.now_ms`), so it does not matter if the
clock of this machine is set. A child that was killed reports no run time.

A message has waited since it was due: since its ETA, the end of the delay before this attempt, or its publication, if its producer
noted the time. Without these, the wait of a first delivery is not known here: it began with the event `published`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_iso8601

from ...messages.envelope import count
from ...messages.ttl import PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...messages.envelope import Envelope
    from ...runtime import Runtime

#: When Sentry's SDK published the message (seconds). Sentry's receive latency counts from it, by the child's clock.
SENTRY_PUBLISHED = "sentry-task-enqueued-time"


def count_from_due(shown: dict[str, Any], headers: Mapping[str, Any], envelope: Envelope, now_ms: Callable[[], int]) -> None:
    """Change the headers that a task sees, so that Sentry counts from when the message was due; `now_ms` is the broker's time.

    If the message was delivered before and has no due time, the latency is unknown: the header is removed.
    """
    if SENTRY_PUBLISHED not in shown:
        return
    due_ms = _due_ms(headers, envelope)
    if due_ms is not None:
        shown[SENTRY_PUBLISHED] = time.time() - (now_ms() - due_ms) / 1000
    elif envelope.generation or envelope.delivery:
        del shown[SENTRY_PUBLISHED]


def times_of(runtime: Runtime, request: Any, headers: Mapping[str, Any], envelope: Envelope) -> dict[str, Any]:
    """The known fields about an attempt, for the event that ends it."""
    known: dict[str, Any] = {"release": runtime.release}
    if request.accepted is None:
        return known
    started_ms = runtime.now_ms() - round((time.monotonic() - request.accepted) * 1000)
    due_ms = _due_ms(headers, envelope)
    known["started_ms"] = started_ms
    if due_ms is not None:
        known["waited_ms"] = max(started_ms - due_ms, 0)
    if isinstance(request.ran, float):
        known["run_ms"] = max(round(request.ran * 1000), 0)
    return known


def _due_ms(headers: Mapping[str, Any], envelope: Envelope) -> int | None:
    """Since when the message waits, by the broker's clock; None if its headers do not say."""
    if envelope.attempt and envelope.attempts:
        last = envelope.attempts[-1]
        at_ms = count(last.get("at"))
        return at_ms + count(last.get("delay")) if at_ms else None
    published, eta = count(headers.get(PUBLISHED)), headers.get("eta")
    if eta is None:
        return published or None
    try:
        due: datetime = maybe_iso8601(eta)
        due = due if due.tzinfo is not None else due.replace(tzinfo=UTC)
        return max(round(due.timestamp() * 1000), published)
    except (ArithmeticError, AttributeError, TypeError, ValueError, OSError):
        return None  # a time that no clock can represent
