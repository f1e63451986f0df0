"""The depths of queues for OpenTelemetry, reported by one worker of the fleet.

This is the worker that watches the dead letters (`letter_watch`): if every worker reported the same queues, the sum of the depths
would be wrong. One look at the broker serves one collection of the SDK. If the broker does not answer, a line is logged, and there
are no depths.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.logs import log

from ...operations.metrics.metrics import measured

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redelivery.middleware.runtime import Runtime

    from .letter_watch import LetterWatch

#: Names of gauges: Prometheus → OpenTelemetry.
GAUGES: Final = {
    "redelivery_queue_messages": "redelivery.queue.messages",
    "redelivery_delayed_messages": "redelivery.delayed.messages",
    "redelivery_dead_letters": "redelivery.dead_letters",
    "redelivery_held_messages": "redelivery.held.messages",
    "redelivery_overdue_seconds": "redelivery.overdue",
}
#: Seconds for which the figures of a look are used.
MAX_AGE = 5.0

Depth = tuple[str, float, "Mapping[str, str]"]


class Depths:
    """The depths of the queues, while this worker watches."""

    def __init__(self, runtime: Runtime, watch: LetterWatch) -> None:
        self._runtime, self._watch = runtime, watch
        self._lock = threading.Lock()
        self._found: list[Depth] = []
        self._until = 0.0

    def look(self) -> list[Depth]:
        """Each depth: its name, value and attributes."""
        if not self._watch.is_watching:
            return []
        with self._lock:
            if time.monotonic() >= self._until:
                self._found = self._measure()
                self._until = time.monotonic() + MAX_AGE
            return self._found

    def _measure(self) -> list[Depth]:
        try:
            families = measured(self._runtime)
        except BROKER_ERRORS as exc:
            log.warning("depths.not_seen", error=str(exc))
            return []
        samples = [(GAUGES[family.name], sample) for family in families if family.name in GAUGES for sample in family.samples]
        return [(name, sample.value, _attributes(sample.labels)) for name, sample in samples]


def _attributes(labels: Mapping[str, str]) -> dict[str, str]:
    """DLQ and origin queue for dead letters; the queue for other messages."""
    place, queue = labels.get("dead_letter_queue"), labels.get("queue")
    if place is not None:
        return {"messaging.destination.name": place, "redelivery.queue": queue or ""}
    return {} if queue is None else {"messaging.destination.name": queue}
