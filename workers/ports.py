"""What a broker offers those who look after it: one protocol for each feature, and the rows that these answer with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from redelivery.middleware.outcomes import Event
    from redelivery.middleware.transports.base import Answer
    from redelivery.workers.contents import Contents
    from redelivery.workers.export import ExportResult
    from redelivery.workers.tables import Format

__all__ = ["DelayStore", "Delayed", "Gauge", "OutcomeLog", "Place", "Tail", "TaskLife"]


@dataclass(frozen=True, slots=True)
class Delayed:
    """One message that waits. `list_name` is where it goes when it is due (`due_ms`, by the server's clock).

    `ident` is its id in the store.
    """

    contents: Contents
    list_name: str
    queue: str
    due_ms: int
    ident: str = ""

    def to_row(self) -> dict[str, Any]:
        """What a listing shows."""
        return {
            "task_id": self.contents.task_id,
            "task": self.contents.task,
            "generation": self.contents.envelope.generation,
            "queue": self.queue,
            "list": self.list_name,
            "due_ms": self.due_ms,
        }


class DelayStore(Protocol):
    """The messages that wait for their time. Every method raises what the broker's driver does."""

    def totals(self) -> dict[str, int]:
        """How many messages wait for each queue; queues without one are left out."""
        ...

    def soonest(self, limit: int, queue: str | None = None) -> list[Delayed]:
        """The `limit` messages that are due first, of one queue or of all."""
        ...

    def of_task(self, task_id: str) -> list[Delayed]:
        """The waiting messages of one task."""
        ...

    def cancel(self, list_name: str, ident: str, event: Event) -> Answer:
        """Take one message out for good, and record `event`; `ALREADY` where it no longer waits."""
        ...

    def reschedule(self, list_name: str, ident: str, message: bytes, event: Event, *, due_ms: int | None) -> Answer:
        """Have `message` wait in its place until `due_ms` (None: no longer), and record `event`; `ALREADY` as for `cancel`."""
        ...


class Tail(NamedTuple):
    """The end of the outcome log: the newest events, the oldest of them first; how many newer messages were not looked at.

    `follow` yields what is recorded from then on, as it is recorded, without end.
    """

    events: list[Event]
    left: int
    follow: Callable[[], Iterator[Event]]


class OutcomeLog(Protocol):
    """The recorded outcomes. Every method raises what the broker's driver does."""

    def lead(self, token: str, lead_ms: int) -> bool:
        """Whether the exporter of this token may export now; where one leads, it does for so long (milliseconds)."""
        ...

    def export(self, destination: str, *, format: Format = "parquet", batch: int = 50_000) -> ExportResult:  # noqa: A002 - as the command has it
        """Move what stands in the log to a path or a URI that pyarrow knows, about `batch` events at a time.

        Raises `InputError` where the destination cannot be written or `batch` is not positive, `BrokerError` where another export
        runs, `ImportError` without pyarrow. What was not written stays in the log.
        """
        ...

    def tail(self, limit: int, *, is_followed: bool) -> AbstractContextManager[Tail]:
        """The `limit` newest events; what follows is only heard where it `is_followed`, and until the block ends."""
        ...


class Gauge(NamedTuple):
    """One value of the metric `redelivery_<name>`."""

    name: str
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one message of the task is. `detail` holds what is known there: `due_ms`, `owner`, or the letter's death."""

    place: str
    name: str
    contents: Contents
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TaskLife:
    """What was found of a task. `cut` names what was not read to its end, and how far it was read."""

    task_id: str
    events: list[Event] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)

    @property
    def task(self) -> str:
        """The task's name, where anything says it."""
        return next(
            (each for each in (*(event.task for event in self.events), *(place.contents.task for place in self.places)) if each), ""
        )

    @property
    def queue(self) -> str:
        """The queue that it belongs to."""
        queues = [event.queue for event in self.events] + [place.name for place in self.places if place.place != "dead_letter"]
        return next((queue for queue in queues if queue), "")
