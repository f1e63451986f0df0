"""The metrics: what an alarm asks of a broker, at one moment.

Enters: the app and its broker. Leaves: families of samples; their names are a promise (`docs/metrics.md`). Nothing is changed. No
message is looked at but, on Redis, the oldest letter of each dead-letter queue.

Cost: some commands for each queue, in three round trips, whatever the queues hold. Limits: the numbers of one look are read one
after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..brokers.broker import broker_of, needed
from .letters import dead_letters
from .living import Living

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redelivery.middleware.runtime import Runtime

Kind = Literal["gauge", "counter"]

#: Every metric: its kind, and what it says.
METRICS: Mapping[str, tuple[Kind, str]] = {
    "redelivery_queue_messages": ("gauge", "Messages that wait in a queue, all priorities together."),
    "redelivery_queue_consumers": ("gauge", "Consumers of a queue (RabbitMQ alone)."),
    "redelivery_delayed_messages": (
        "gauge",
        "Messages in the delay store, by the queue they go to; on RabbitMQ all together.",
    ),
    "redelivery_overdue_seconds": (
        "gauge",
        "How long the first message that is due still waits in the delay store.",
    ),
    "redelivery_dead_letters": ("gauge", "Letters in a dead-letter queue."),
    "redelivery_oldest_dead_letter_age_seconds": ("gauge", "How long ago the oldest letter of a dead-letter queue died."),
    "redelivery_held_messages": ("gauge", "Messages that workers hold, running or fetched ahead, plain Celery workers' included."),
    "redelivery_workers": ("gauge", "Workers that renew their lease."),
    "redelivery_dispatchers": ("gauge", "Dispatchers that lead: 1, or 0 where nobody moves what is due."),
    "redelivery_outcomes_recorded_total": ("counter", "Events that were ever recorded in the outcome log."),
    "redelivery_outcome_log_events": ("gauge", "Events in the outcome log: those that are not exported yet."),
    "redelivery_outcome_log_messages": ("gauge", "Messages in the outcome log, each of one event or more (RabbitMQ alone)."),
    "redelivery_outcome_log_bytes": ("gauge", "What the outcome log takes in the broker, estimated."),
    "redelivery_outcome_log_max_bytes": ("gauge", "What it may take: the setting outcome_log_max_bytes."),
    "redelivery_outcome_log_lost_events": (
        "gauge",
        "Events that left a full log unexported, since the last export.",
    ),
    "redelivery_outcome_log_exported_timestamp_seconds": ("gauge", "When the last export let go of what it had written."),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value, with its labels."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, and its samples."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        samples = [{"labels": dict(sample.labels), "value": sample.value} for sample in self.samples]
        return {"name": self.name, "type": self.kind, "help": self.help, "samples": samples}


class Measured:
    """Samples, as they are found."""

    def __init__(self) -> None:
        self._samples: dict[str, list[Sample]] = {}

    def add(self, name: str, value: float, **labels: str) -> None:
        """One more sample of the metric `redelivery_<name>`."""
        self._samples.setdefault(f"redelivery_{name}", []).append(Sample(value, labels))

    @property
    def families(self) -> list[Family]:
        """What was found, in the order of `METRICS`; a metric without a sample is left out."""
        assert self._samples.keys() <= METRICS.keys()  # noqa: S101 - each is named above
        return [Family(name, *METRICS[name], self._samples[name]) for name in METRICS if name in self._samples]


def measured(runtime: Runtime, living: Living | None = None) -> list[Family]:
    """Look once. Raises whatever the broker does.

    `living` remembers the workers of the looks before; without it every worker with a lease counts as living.
    """
    found = Measured()
    found.add("outcome_log_max_bytes", runtime.settings.outcome_log_max_bytes)
    letter_queues = dead_letters.known(runtime)
    queues = sorted(set(runtime.app.amqp.queues) - letter_queues.keys())
    living = Living(runtime.settings.lease) if living is None else living
    for each in needed(broker_of(runtime.transport).gauges).sample(queues, letter_queues, living.count):
        found.add(each.name, each.value, **each.labels)
    return found.families
