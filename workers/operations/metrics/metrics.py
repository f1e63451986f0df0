"""The metrics of a broker at one moment, for alarms. `docs/metrics.md` promises their names.

Other workers end a dead worker's lease, so if all workers are dead, their leases remain. Therefore a lease that was not renewed
between two measurements, for the whole time of a lease, counts as a dead worker's. Limit: the first measurement counts every lease
as a living worker's.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ...brokers.broker import broker_of
from ...ports import Gauge
from ..letters import dead_letters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from redelivery.middleware.runtime import Runtime


class Living:
    """Finds out which workers live, by comparing their leases with those of earlier calls. For any thread.

    `lease` (seconds) is how long the counter of a living worker's lease may stay the same.
    """

    def __init__(self, lease: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease, self._clock = lease, clock
        self._lock = threading.Lock()
        self._seen: dict[bytes, tuple[bytes, float]] = {}

    def still(self, counters: Mapping[bytes, bytes]) -> dict[bytes, float]:
        """For how many seconds each of these counters was seen unchanged."""
        with self._lock:
            now = self._clock()
            before, self._seen = self._seen, {}
            for token, counter in counters.items():
                known = before.get(token)
                self._seen[token] = known if known is not None and known[0] == counter else (counter, now)
            return {token: now - since for token, (_, since) in self._seen.items()}

    def count(self, counters: Mapping[bytes, bytes]) -> int:
        """How many of these counters belong to living workers."""
        return sum(each < self.lease for each in self.still(counters).values())


Kind = Literal["gauge", "counter", "histogram"]

#: Every metric of the broker: its kind, and its help text.
METRICS: Mapping[str, tuple[Kind, str]] = {
    "redelivery_queue_messages": ("gauge", "Messages that wait in a queue, all priorities together."),
    "redelivery_queue_consumers": ("gauge", "Consumers of a queue (only on RabbitMQ)."),
    "redelivery_delayed_messages": ("gauge", "Messages in the delay store, by the queue they go to; on RabbitMQ all together."),
    "redelivery_overdue_seconds": ("gauge", "How long the first message that is due still waits in the delay store."),
    "redelivery_dead_letters": ("gauge", "Messages in a dead-letter queue."),
    "redelivery_oldest_dead_letter_age_seconds": ("gauge", "How long ago the oldest dead letter of a queue died."),
    "redelivery_held_messages": ("gauge", "Messages that workers hold, running or fetched ahead, plain Celery workers' included."),
    "redelivery_workers": ("gauge", "Workers that renew their lease."),
    "redelivery_dispatchers": ("gauge", "1 if a dispatcher moves the messages that are due, 0 if none does."),
    "redelivery_outcomes_recorded_total": ("counter", "Events that were recorded in the outcome log since it began."),
    "redelivery_outcome_log_events": ("gauge", "Events in the outcome log: those that are not exported yet."),
    "redelivery_outcome_log_messages": ("gauge", "Messages in the outcome log, each of one event or more (only on RabbitMQ)."),
    "redelivery_outcome_log_bytes": ("gauge", "Estimated size of the outcome log in the broker."),
    "redelivery_outcome_log_max_bytes": ("gauge", "Limit of its size: the setting outcome_log_max_bytes."),
    "redelivery_outcome_log_lost_events": ("gauge", "Events that were removed from a full log unexported, since the last export."),
    "redelivery_outcome_log_exported_timestamp_seconds": ("gauge", "When the last export ended."),
}


#: The metrics that each worker measures itself (`metrics_listen`).
WORKER_METRICS: Mapping[str, tuple[Kind, str]] = {
    "redelivery_worker_outcomes_total": ("counter", "Events that this worker has recorded: how deliveries ended, and why."),
    "redelivery_worker_run_seconds": ("histogram", "For how long the attempts ran that this worker has recorded the end of."),
}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples."""

    name: str
    kind: Kind
    help: str
    samples: list[Gauge]

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON."""
        samples = [{"labels": dict(sample.labels), "value": sample.value} for sample in self.samples]
        return {"name": self.name, "type": self.kind, "help": self.help, "samples": samples}


def measured(runtime: Runtime, living: Living | None = None) -> list[Family]:
    """Measure once. Raises the errors of the broker's driver.

    `living` has the leases of earlier calls; without it every worker with a lease counts as living.
    """
    letter_queues = dead_letters.known(runtime)
    queues = sorted(set(runtime.app.amqp.queues) - letter_queues.keys())
    living = Living(runtime.settings.lease) if living is None else living
    gauges = broker_of(runtime.transport).gauges.sample(queues, letter_queues, living.count)
    return families([Gauge.of("outcome_log_max_bytes", runtime.settings.outcome_log_max_bytes), *gauges])


def families(gauges: Iterable[Gauge]) -> list[Family]:
    """Group the gauges by metric, in the order of `METRICS`, without metrics that have no sample."""
    found: dict[str, list[Gauge]] = {}
    for each in gauges:
        found.setdefault(f"redelivery_{each.name}", []).append(each)
    assert found.keys() <= METRICS.keys()  # noqa: S101 - each is named above
    return [Family(name, *METRICS[name], found[name]) for name in METRICS if name in found]
