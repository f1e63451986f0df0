"""A worker's own metrics: the outcomes of its messages, and the run times of its tasks.

Each event that the worker records is counted by queue, task, outcome and reason; its run time is measured by queue and task.
Prometheus keeps a series for ever, so the number of series is bounded (`Series`): a task that the app does not know is `(unknown)`,
and beyond `MAX_SERIES` a new queue or task is `(other)`. The histogram has the lower bound `MAX_TIMED`, because it has a series for
each bucket.

Limits: events that other processes record are not counted: publications of the pool's children, and actions of operators. An
attempt that was killed has no run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram

from redelivery.middleware.telemetry.series import MAX_SERIES, Series

from .metrics import WORKER_METRICS

if TYPE_CHECKING:
    from collections.abc import Collection

    from redelivery.middleware.messages.events import Event

OUTCOMES, RUN_TIMES = "redelivery_worker_outcomes_total", "redelivery_worker_run_seconds"
#: The maximum number of label sets of the histogram.
MAX_TIMED = 200
#: The buckets, in seconds.
BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)


class WorkerMetrics:
    """The counters of one worker. `tasks` are the tasks of its app."""

    def __init__(self, tasks: Collection[str], most: int = MAX_SERIES) -> None:
        self.registry = CollectorRegistry()
        self._ends, self._runs = Series(tasks, most), Series(tasks, MAX_TIMED)
        self._outcomes = Counter(
            OUTCOMES, WORKER_METRICS[OUTCOMES][1], ["queue", "task", "outcome", "reason"], registry=self.registry
        )
        self._run_times = Histogram(
            RUN_TIMES, WORKER_METRICS[RUN_TIMES][1], ["queue", "task"], buckets=BUCKETS, registry=self.registry
        )

    def count(self, event: Event) -> None:
        """Count an event that the broker has recorded."""
        self._outcomes.labels(*self._ends.of(event.queue, event.task, event.outcome, event.reason)).inc()
        if event.run_ms is not None:
            self._run_times.labels(*self._runs.of(event.queue, event.task)).observe(event.run_ms / 1000)
