"""The metrics: what an alarm asks of a broker, at one moment.

Enters: the app and its broker. Leaves: families of samples; their names are a promise (`docs/metrics.md`). Nothing is changed. No
message is looked at but, on Redis, the oldest letter of each dead-letter queue.

Cost: some commands for each queue, in three round trips, whatever the queues hold. Limits: the numbers of one look are read one
after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from redis.exceptions import ResponseError

from redelivery.middleware.transports.base import Capability
from redelivery.workers import dead_letters
from redelivery.workers.contents import Letter
from redelivery.workers.living import Living
from redelivery.workers.redis_transport import redis_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from redelivery.middleware.runtime import Runtime
    from redelivery.middleware.transports.amqp import AmqpTransport

__all__ = ["METRICS", "Family", "Kind", "Measured", "Sample", "measured"]

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


def measured(install: Runtime, living: Living | None = None) -> list[Family]:
    """Look once. Raises whatever the broker does.

    `living` remembers the workers of the looks before; without it every worker with a lease counts as living.
    """
    found = Measured()
    found.add("outcome_log_max_bytes", install.settings.outcome_log_max_bytes)
    if Capability.BROWSE_LETTERS_UNMARKED in install.transport.capabilities:
        _look(install, found)
        _look_at_workers_and_log(install, Living(install.settings.lease) if living is None else living, found)
    else:
        from redelivery.workers.amqp_metrics import look  # noqa: PLC0415 - only where the broker is RabbitMQ

        letter_queues = dead_letters.known(install)
        queues = sorted(set(install.app.amqp.queues) - letter_queues.keys())
        for each in look(cast("AmqpTransport", install.transport), queues, letter_queues):
            found.add(each.name, each.value, **each.labels)
    return found.families


def _look(install: Runtime, found: Measured) -> None:
    """Look at Redis."""
    client, keys = redis_of(install).client, redis_of(install).keys
    letter_queues = dead_letters.known(install)
    destinations: Any = client.zrange(keys.destinations, 0, -1, withscores=True)
    next_due = {name.decode(errors="replace"): float(due_ms) for name, due_ms in destinations}
    queues = sorted({*install.app.amqp.queues, *letter_queues.values()} - letter_queues.keys())
    now_ms = install.transport.now_ms()
    with client.pipeline(transaction=False) as pipe:
        for queue in queues:
            for name in keys.list_names(queue):
                pipe.llen(keys.list(name))
        for name in next_due:
            pipe.zcard(keys.due(name))
        for name in letter_queues:
            pipe.llen(keys.list(name))
            pipe.lindex(keys.list(name), -1)
        answers = iter(pipe.execute())
    for queue in queues:
        found.add("queue_messages", sum(int(next(answers)) for _ in keys.list_names(queue)), queue=queue)
    _add_delayed(found, ((keys.queue_of(name), int(next(answers)), due_ms) for name, due_ms in next_due.items()), now_ms)
    for name, origin in letter_queues.items():
        found.add("dead_letters", int(next(answers)), dead_letter_queue=name, queue=origin)
        oldest = next(answers)
        died_ms = None if oldest is None else Letter.of(oldest).died_ms
        if died_ms is not None:
            found.add("oldest_dead_letter_age_seconds", _seconds(now_ms - died_ms), dead_letter_queue=name, queue=origin)


def _add_delayed(found: Measured, lists: Iterable[tuple[str, int, float]], now_ms: int) -> None:
    """The delay store: for each list its queue, how many wait, and when the first is due; a priority has a list of its own."""
    waiting: dict[str, int] = {}
    overdue: dict[str, float] = {}
    for queue, count, due_ms in lists:
        waiting[queue] = waiting.get(queue, 0) + count
        overdue[queue] = max(overdue.get(queue, 0), _seconds(now_ms - due_ms))
    for queue in sorted(waiting):
        found.add("delayed_messages", waiting[queue], queue=queue)
        found.add("overdue_seconds", overdue[queue], queue=queue)


def _look_at_workers_and_log(install: Runtime, living: Living, found: Measured) -> None:
    client, keys = redis_of(install).client, redis_of(install).keys
    with client.pipeline(transaction=False) as pipe:
        pipe.hlen(keys.unacked)
        pipe.hgetall(keys.leases)
        pipe.exists(keys.dispatcher)
        pipe.memory_usage(keys.outcomes, samples=100)
        pipe.hget(keys.trimmed, "entries")
        pipe.hget(keys.exported, "at")
        pipe.xinfo_stream(keys.outcomes)
        answers: list[Any] = pipe.execute(raise_on_error=False)
    info: Any = answers.pop()
    if isinstance(info, ResponseError) and "no such key" in str(info):
        info = {"length": 0, "entries-added": 0}
    for answer in (*answers, info):
        if isinstance(answer, Exception):
            raise answer
    held, leases, leading, taken, lost, exported_ms = answers
    found.add("held_messages", int(held))
    found.add("workers", living.count(leases))
    found.add("dispatchers", int(leading))
    found.add("outcomes_recorded_total", int(info["entries-added"]))
    found.add("outcome_log_events", int(info["length"]))
    found.add("outcome_log_bytes", 0 if taken is None else int(taken))
    found.add("outcome_log_lost_events", 0 if lost is None else int(lost))
    if exported_ms is not None:
        found.add("outcome_log_exported_timestamp_seconds", int(exported_ms) / 1000)


def _seconds(ms: float) -> float:
    """Of a time that has passed; a clock that was put back makes none negative."""
    return max(ms, 0) / 1000
