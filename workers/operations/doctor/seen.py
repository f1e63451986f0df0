"""The material of an examination: the app, and the answers of its broker and its workers. None: an answer did not come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redelivery.middleware.runtime import Runtime
    from redelivery.middleware.worker.startup.checks import DeadLetterQueueFault

    from ...ports import Condition, DeadLetterQueue, Gauge, LogState
    from .fleet import Fleet


@dataclass(frozen=True, slots=True)
class Queues:
    """How many messages wait in each queue and in the delay store. `overdue` (seconds) is the longest time of an overdue message.

    `dispatchers` is None if the broker needs no dispatcher. `consumers` is the number for each queue; None if the broker does not
    know it.
    """

    waiting: Mapping[str, int]
    delayed: int = 0
    overdue: float = 0
    dispatchers: int | None = None
    consumers: Mapping[str, int] | None = None

    @classmethod
    def of(cls, gauges: list[Gauge], consumers: Mapping[str, int] | None) -> Queues:
        """Read the gauges of the broker."""
        values: dict[str, list[float]] = {}
        for each in gauges:
            values.setdefault(each.name, []).append(each.value)
        waiting = {each.labels["queue"]: int(each.value) for each in gauges if each.name == "queue_messages"}
        dispatchers = values.get("dispatchers")
        return cls(
            waiting,
            delayed=int(sum(values.get("delayed_messages", ()))),
            overdue=max(values.get("overdue_seconds", ()), default=0),
            dispatchers=None if dispatchers is None else int(dispatchers[0]),
            consumers=consumers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The material. `app` is the value of `-A`; `kind` is `redis` or `amqp`.

    `now_ms` is the broker's time, or this machine's if the broker does not report its time. `silent` is how many workers renew
    their lease but do not answer remote control.
    """

    runtime: Runtime
    app: str
    kind: str
    now_ms: int
    condition: Condition | None = None
    queues: Queues | None = None
    letters: list[DeadLetterQueue] | None = None
    letter_faults: list[DeadLetterQueueFault] | None = None
    log: LogState | None = None
    fleet: Fleet | None = None
    silent: int = 0
    wrong_clocks: Mapping[str, int] | None = None
    letter_readers: Mapping[str, int] = field(default_factory=dict)
