"""The protocols that a broker implements for operators, one for each feature, and the rows that they return.

Every method raises the errors of the broker's driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.ports import Answer

    from .letters import Contents, Letter


Format = Literal["parquet", "jsonl"]


@dataclass(frozen=True, slots=True)
class Delayed:
    """A delayed message. At `due_ms` (the server's clock) it goes to the list `list_name`. `ident` is its id in the store."""

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
            "generation": self.contents.generation,
            "queue": self.queue,
            "list": self.list_name,
            "due_ms": self.due_ms,
        }


@dataclass(frozen=True, slots=True)
class Glance:
    """The delayed messages at one moment. Except for `totals`, the fields are about one queue, or about all queues.

    - `totals`: how many messages wait for each queue.
    - `soonest`: the messages that are due first.
    - `course`: how many are due in each part of the time from now until `until_ms` (the broker's clock); the first part includes
      overdue messages.
    - `later`: how many are due after `until_ms`.
    - `unseen`: how many were not read, because there are too many. No other count includes them.
    """

    totals: Mapping[str, int]
    soonest: list[Delayed]
    course: list[int]
    until_ms: int
    later: int = 0
    unseen: int = 0


class DelayStore(Protocol):
    """The delayed messages. For each method, `queue = None` means all queues."""

    def glance(self, limit: int, parts: int, queue: str | None = None, within_ms: int | None = None) -> Glance:
        """Count the messages in `parts` parts of the next `within_ms` (None: of the time until the last message is due).

        Read the `limit` messages that are due first.
        """

    def totals(self) -> dict[str, int]:
        """How many messages wait for each queue, without queues that have none."""

    def soonest(self, limit: int, queue: str | None = None) -> list[Delayed]:
        """The `limit` messages that are due first."""

    def pages(self, queue: str | None = None) -> Iterator[list[Delayed]]:
        """All messages, in pages. If a message is cancelled meanwhile, no other message is missed."""

    def of_task(self, task_id: str) -> list[Delayed]:
        """The delayed messages of one task."""

    def ids_like(self, given: str, most: int) -> list[str]:
        """At most `most` ids of delayed tasks that begin with `given`. If `given` is a whole id, it is among them."""

    def cancel(self, list_name: str, ident: str, event: Event) -> Answer:
        """Remove one message and record `event`. Returns `ALREADY` if the message no longer waits."""

    def reschedule(self, list_name: str, ident: str, message: bytes, event: Event, *, due_ms: int | None) -> Answer:
        """Replace a message by `message`, due at `due_ms` (None: now), and record `event`.

        Returns `ALREADY` if the message no longer waits.
        """


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A dead-letter queue. `reasons` counts the reasons of its `sampled` newest dead letters, the most frequent first."""

    name: str
    origin: str
    letters: int
    oldest_ms: int | None = None
    newest_ms: int | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    sampled: int = 0


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some of a queue's `total` dead letters, the newest first, each with its place: how many older ones the queue has."""

    letters: list[tuple[int, bytes]]
    total: int


class LetterList(Protocol):
    """The dead letters that were in a queue when it was opened."""

    @property
    def total(self) -> int:
        """How many there were."""

    def newest(self, limit: int) -> list[bytes]:
        """The `limit` newest dead letters, the newest first."""

    def pages(self, gone: Callable[[], int] = lambda: 0) -> Iterator[list[bytes]]:
        """All dead letters, the oldest first, in pages. `gone` returns how many of them have left the queue so far."""


class LetterStore(Protocol):
    """The dead-letter queues.

    The methods that move dead letters need an open list of that queue. They move each dead letter separately, and return an
    answer or an error for each. A dead letter is identified by its bytes, as they are in the queue.
    """

    def queues(self, named: Mapping[str, str]) -> dict[str, str]:
        """The `named` dead-letter queues, and those that were used if the broker stores them, each with its origin.

        The origin of a used queue is the one that used it last. A name that belongs to something else is left out, with a warning.
        """

    def is_consumed(self, name: str) -> bool:
        """Whether the broker knows of a consumer of this queue."""

    def depth(self, name: str) -> int:
        """How many dead letters the queue has. Reads none of them."""

    def summaries(self, origins: Mapping[str, str]) -> list[DeadLetterQueue]:
        """Count these queues, given with their origins.

        Times and reasons come from a bounded number of dead letters. They are unknown if reading a dead letter would mark it.
        """

    def open(self, name: str) -> AbstractContextManager[LetterList]:
        """The dead letters of a queue, to be opened with `with`."""

    def page(self, name: str, before: int | None, count: int) -> LetterPage:
        """The `count` dead letters before the place `before` (None: the newest). The cost does not depend on the queue's size.

        Raises `BrokerError` if reading a dead letter marks it on this broker.
        """

    def found(self, name: str, task_ids: Collection[str]) -> Iterator[Letter]:
        """The dead letters whose task id begins with one of these, the newest first. Reads the whole queue, in pages."""

    def redrive_many(self, dead_letter_queue: str, moves: Sequence[tuple[bytes, str, bytes, Event]]) -> list[Answer | Exception]:
        """Move dead letters back: for each its bytes, its target list, the new message, and its event.

        `ALREADY`: it has left the queue; `MISSING`: no queue accepts it; `UNSURE`: a command that died or lost its connection may
        have moved it.
        """

    def purge_many(self, dead_letter_queue: str, gone: Sequence[tuple[bytes, Event]]) -> list[Answer | Exception]:
        """Remove dead letters, each with its event."""

    def move_many(
        self, dead_letter_queue: str, target: str, moves: Sequence[tuple[bytes, bytes, str, tuple[Event, Event]]]
    ) -> list[Answer | Exception]:
        """Move dead letters to another dead-letter queue: for each its bytes, its new bytes, its origin queue, its two events."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that left the log before they were exported.

    - `after`, `before`: the stream ids around them; `before` is empty if no entry followed yet.
    - `lost`: their number; None if it is unknown.
    - `why`: `cap` (the log exceeded `outcome_log_max_bytes`), `removed` (another client deleted them), or `replaced` (it is another
      stream than at the last export: the old one was deleted, or restored from an older copy).
    - `noticed_ms`: the server's time, in milliseconds since the epoch.
    """

    after: str
    before: str
    lost: int | None
    why: str
    noticed_ms: int


@dataclass(slots=True)
class ExportResult:
    """What one export did. `files` are relative to the destination. `refused` counts entries that redelivery did not write."""

    destination: str
    events: int = 0
    refused: int = 0
    files: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    commits: int = 0


class Tail(NamedTuple):
    """The end of the outcome log: its newest `events`, in order, and `left`, the number of newer messages that were not read.

    `follow` yields each later event, without end.
    """

    events: list[Event]
    left: int
    follow: Callable[[], Iterator[Event]]


class OutcomeLog(Protocol):
    """The recorded outcomes."""

    def lead(self, token: str, lead_ms: int) -> bool:
        """Whether the exporter with this token may export now. If so, it leads for `lead_ms` milliseconds."""

    def export(self, destination: str, *, format: Format = "parquet", batch: int = 50_000) -> ExportResult:  # noqa: A002 - as the command has it
        """Move the events of the log to a path or a URI that pyarrow supports, about `batch` events at a time.

        Raises `InputError` if the destination cannot be written or `batch` is not positive, `BrokerError` if another export runs,
        `ImportError` without pyarrow. Events that were not written stay in the log.
        """

    def tail(self, limit: int, *, is_followed: bool) -> AbstractContextManager[Tail]:
        """The `limit` newest events. If `is_followed`, also later events until the block ends."""

    def listen(
        self, dead_letter_queue: str, *, since_ms: int | None = None
    ) -> AbstractContextManager[Callable[[float], Iterable[Event]]]:
        """A function that returns the events since its last call, after at most the given seconds of waiting.

        It returns at least the events of dead letters that were redriven from this queue. The first call begins at `since_ms` (the
        broker's time) if the log can be read back; otherwise at the moment when the block begins.
        """


class Halted(Exception):
    """A message did not move: its operation was paused or aborted, or another process carries the operation out."""


class Life(NamedTuple):
    """One life of a task."""

    task_id: str
    generation: int
    queue: str


class Claim(NamedTuple):
    """A process's right to move messages for an operation: as long as the operation runs under this token."""

    operation_id: str
    token: str
    #: Whether the broker now keeps each life that the operation opens, until the life is reported as ended.
    follows: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOperation:
    """An operation as it is stored.

    `about` (the task of the operation) and `progress` are JSON. Any client may have written them. The broker updates `moved` and
    `by_target` in the same step as it moves a message. Times are the broker's, in milliseconds since the epoch; 0 means not yet.
    """

    operation_id: str
    about: str
    state: str
    message: str = ""
    progress: str = ""
    moved: int = 0
    by_target: Mapping[str, int] = field(default_factory=dict)
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    heartbeat_ms: int = 0
    #: The last report of its progress.
    reported_ms: int = 0


class Record(NamedTuple):
    """One record of the audit. `said` is JSON, which any client may have written.

    `moved` is how many messages the operation had moved by then; None if the record is not about an operation.
    """

    record_id: str
    at_ms: int
    said: str
    moved: int | None = None


class Recorded(NamedTuple):
    """Records of the audit, the oldest first. `position` is the last record's number. `gap`: records missing before the first."""

    records: list[Record]
    position: int
    gap: Gap | None = None


class AuditStore(Protocol):
    """The audit: the newest records of what operators did."""

    @property
    def name(self) -> str:
        """The audit's name on the broker."""

    def record(self, said: str) -> None:
        """Record what an operator did."""

    def records(self, limit: int) -> list[Record]:
        """The newest records, the newest first."""

    def following(self, record_id: str, position: int) -> Recorded:
        """All records after the record `record_id`, whose number was `position`.

        All records of the audit if `record_id` is empty, or if the audit was deleted or restored from an older copy since.
        """


class Gauge(NamedTuple):
    """One value of the metric `redelivery_<name>`."""

    name: str
    value: float
    labels: Mapping[str, str]

    @classmethod
    def of(cls, name: str, value: float, **labels: str) -> Self:
        """One value with these labels."""
        return cls(name, value, labels)


class Gauges(Protocol):
    """The metrics of a broker."""

    def sample(
        self, queues: Collection[str], letter_queues: Mapping[str, str], living: Callable[[Mapping[bytes, bytes]], int]
    ) -> Iterator[Gauge]:
        """Measure these queues once, and the dead-letter queues, given with their origins.

        `living` takes all leases, and returns the number of living workers.
        """


class Sightings(Protocol):
    """Collects an inventory while the broker is read."""

    def see(self, contents: Contents, queue: str, place: str, seen_ms: int, *, due_ms: int | None = None, owner: str = "") -> None:
        """Add a message that was found in this place."""

    def apply(self, event: Event) -> None:
        """Add an event that was recorded while the broker was read."""


class InventorySource(Protocol):
    """Reads all messages of a broker while it goes on working."""

    def walk(
        self, inventory: Sightings, queues: Collection[str], letter_queues: Collection[str], *, look: bool
    ) -> Mapping[str, int]:
        """Add every message to the inventory. Returns how many messages of each queue cannot be read.

        `look` allows to read a message in a way that counts as a delivery, if the broker has no other way.
        """


@dataclass(frozen=True, slots=True)
class NotKnown:
    """A fact that a broker or a worker does not report: what, why, and how to find it out."""

    what: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Ending:
    """A rule of the broker itself that ends messages of these queues.

    `name` is the name of the policy or of the declared queue. `by` are the policy's definitions, or the queue's arguments.
    """

    kind: Literal["policy", "declaration"]
    name: str
    queues: tuple[str, ...]
    by: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a broker reports about itself. None: it does not report the fact (`not_known` says why), or does not have it.

    - `evicts`: the policy by which a full server deletes messages; empty if it deletes none.
    - `keeps`: what remains after a restart: `log`, `snapshots` or `nothing`.
    - `failing`: failed writes to its disk.
    - `memory`: the bytes it uses, and the maximum.
    - `is_replica`: whether it refuses writes; `replicas`: how many replicas are connected to it.
    - `alarm`: why it accepts no publications now; empty if it accepts them.
    - `endings`: the broker's own rules that end messages, outside redelivery's policies.
    """

    evicts: str | None = None
    keeps: Literal["log", "snapshots", "nothing"] | None = None
    failing: tuple[str, ...] = ()
    memory: tuple[int, int] | None = None
    is_replica: bool | None = None
    replicas: int | None = None
    alarm: str | None = None
    endings: tuple[Ending, ...] = ()
    not_known: tuple[NotKnown, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The outcome log at one moment; None if the broker does not report the fact.

    `oldest_ms` is the time of its oldest event; None if it has no event. `lost` is how many events left the log unexported since
    the last export.
    """

    oldest_ms: int | None
    bytes: int | None = None
    lost: int | None = None


class Checkup(Protocol):
    """What `redelivery doctor` asks a broker. No method changes anything."""

    def condition(self, queues: Sequence[str], letters: Collection[str], management_url: str | None) -> Condition:
        """What the broker reports about itself, and its own rules that end messages of these queues and dead-letter queues."""

    def log_state(self) -> LogState:
        """The state of the outcome log."""

    def leases(self) -> dict[str, str]:
        """The counter of each lease, which changes with every renewal. Empty if the broker keeps no leases."""

    def consumers(self, queues: Collection[str]) -> dict[str, int] | None:
        """How many consumers each existing queue of these has; None if the broker does not know its consumers."""

    def wrong_clocks(self) -> dict[str, int] | None:
        """The producers' hosts whose clocks were wrong lately, and by how many milliseconds they were ahead; None if unknown."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one message of a task is. `detail` has `due_ms`, `owner`, or the dead letter's death.

    `at` is about the dead letter's place in its queue, as `LetterStore.page` counts places; None if unknown.
    """

    place: str
    name: str
    contents: Contents
    detail: dict[str, Any] = field(default_factory=dict)
    at: int | None = None


@dataclass(slots=True)
class TaskLife:
    """What was found of a task. `cut` describes what was read only in part; `unread` names what could not be read at all."""

    task_id: str
    events: list[Event] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def task(self) -> str:
        """The task's name; empty if it is unknown."""
        return next(
            (each for each in (*(event.task for event in self.events), *(place.contents.task for place in self.places)) if each), ""
        )

    @property
    def queue(self) -> str:
        """The task's origin queue; empty if it is unknown."""
        queues = [event.queue for event in self.events] + [place.name for place in self.places if place.place != "dead_letter"]
        return next((queue for queue in queues if queue), "")


class TaskSource(Protocol):
    """Finds one task on the broker: every task whose id begins with the id of `life`."""

    def read_log(self, life: TaskLife, most: int) -> None:
        """Add the task's events to `life`; reads at most `most` events."""

    def find(self, life: TaskLife, queues: Collection[str], letter_queues: Collection[str], most: int) -> None:
        """Add the places of the task's messages to `life`; reads at most `most` messages of each list."""
