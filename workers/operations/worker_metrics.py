"""A worker's own metrics: what became of the messages that it held, counted where it happens, and served for Prometheus.

Counted is each event that the worker has recorded, by queue, task, outcome and reason. A series stays for ever in a Prometheus, so
their number is bounded: a task that the app does not know is `(unknown)`, and beyond `MAX_SERIES` a new queue or task is `(other)`.
The counters begin at 0 with the worker, as Prometheus expects. Without the setting `metrics_listen` nothing is counted.

Limits: what another process records is not counted here: publications of the pool's children, and what an operator does.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter

from redelivery.display import safe

from .metrics import WORKER_METRICS

if TYPE_CHECKING:
    from collections.abc import Collection

    from redelivery.middleware.messages.events import Event

OUTCOMES = "redelivery_worker_outcomes_total"
#: Label sets of one metric; each is a series in Prometheus.
MAX_SERIES = 2000
#: What stands for a name that gets no series of its own.
UNKNOWN, OTHER = "(unknown)", "(other)"


class WorkerMetrics:
    """The counters of one worker; `tasks` are those of its app."""

    def __init__(self, tasks: Collection[str]) -> None:
        self.registry = CollectorRegistry()
        self._tasks = tasks
        self._lock = threading.Lock()
        self._series: set[tuple[str, str, str, str]] = set()
        self._outcomes = Counter(
            OUTCOMES,
            WORKER_METRICS[OUTCOMES][1],
            ["queue", "task", "outcome", "reason"],
            registry=self.registry,
        )

    def count(self, event: Event) -> None:
        """The broker has recorded this event."""
        labels = self._bounded(safe(event.queue), event.task if event.task in self._tasks else UNKNOWN, event.outcome, event.reason)
        self._outcomes.labels(*labels).inc()

    def _bounded(self, queue: str, task: str, outcome: str, reason: str) -> tuple[str, str, str, str]:
        labels = (queue, task, outcome, reason)
        with self._lock:
            if labels in self._series:
                return labels
            if len(self._series) >= MAX_SERIES:
                return (OTHER, OTHER, outcome, reason)
            self._series.add(labels)
        return labels
