"""What a broker offers its operators: one protocol for each feature, and the rows that the protocols return."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

from redelivery.middleware.ports import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.ports import Answer

    from .letters import Contents, Letter


Format = Literal["parquet", "jsonl"]
#: A broker's transitions, for an operator.
Transitions = Transport


@dataclass(frozen=True, slots=True)
class Delayed:
    """One message that waits. `list_name` is the list that it goes to when it is due (`due_ms`, by the server's clock).

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
            "generation": self.contents.generation,
            "queue": self.queue,
            "list": self.list_name,
            "due_ms": self.due_ms,
        }


@dataclass(frozen=True, slots=True)
class Glance:
    """The messages that wait at one moment: how many for each queue, and the `soonest` due, of one queue or of all.

    `course` counts those (of one queue or of all) that are due in each part of the time from now until `until_ms` (the broker's);
    overdue ones count in the first part. `later` are due after that. `unseen` were too many to look at: no other count has them.
    """

    totals: Mapping[str, int]
    soonest: list[Delayed]
    course: list[int]
    until_ms: int
    later: int = 0
    unseen: int = 0


class DelayStore(Protocol):
    """The messages that wait for their time. Every method raises what the broker's driver does."""

    def glance(self, limit: int, parts: int, queue: str | None = None, within_ms: int | None = None) -> Glance:
        """All waiting messages, counted in so many parts of the next `within_ms`, or of the time until the last one is due.

        The `limit` messages that are due first are read.
        """

    def totals(self) -> dict[str, int]:
        """How many messages wait for each queue; queues without one are left out."""

    def soonest(self, limit: int, queue: str | None = None) -> list[Delayed]:
        """The `limit` messages that are due first, of one queue or of all."""

    def pages(self, queue: str | None = None) -> Iterator[list[Delayed]]:
        """All waiting messages, of one queue or of all, in pages; a message that is cancelled meanwhile hides no other."""

    def of_task(self, task_id: str) -> list[Delayed]:
        """The waiting messages of one task."""

    def ids_like(self, given: str, most: int) -> list[str]:
        """The ids of waiting tasks that begin with `given`, at most `most`; if `given` is a whole id, it is among them."""

    def cancel(self, list_name: str, ident: str, event: Event) -> Answer:
        """Take one message out for good, and record `event`; `ALREADY` if it no longer waits."""

    def reschedule(self, list_name: str, ident: str, message: bytes, event: Event, *, due_ms: int | None) -> Answer:
        """Let `message` wait in its place until `due_ms` (None: no longer), and record `event`; `ALREADY` as for `cancel`."""


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """One dead-letter queue. `reasons` counts the reasons of its `sampled` newest dead letters, the most frequent first."""

    name: str
    origin: str
    letters: int
    oldest_ms: int | None = None
    newest_ms: int | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    sampled: int = 0


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some dead letters of a queue of `total`, the newest first, each with its place: how many are before it in the queue."""

    letters: list[tuple[int, bytes]]
    total: int


class LetterList(AbstractContextManager["LetterList"], Protocol):
    """The dead letters that were in a queue when it was opened."""

    @property
    def total(self) -> int:
        """How many there were."""

    def newest(self, limit: int) -> list[bytes]:
        """The `limit` newest, the newest first."""

    def pages(self, gone: Callable[[], int] = lambda: 0) -> Iterator[list[bytes]]:
        """All, the oldest first, in pages; `gone` says how many of them have left the queue so far."""


class LetterStore(Protocol):
    """The dead-letter queues. Every method raises what the broker's driver does.

    The methods that move dead letters take those of an open list, move each by itself, and return an answer or an error for each. A
    dead letter is named by its bytes, as they are in the queue.
    """

    def queues(self) -> dict[str, str]:
        """Every dead-letter queue that was used, with the queue whose worker used it last, if the broker keeps that."""

    def has_queue(self, name: str) -> bool:
        """Whether the broker knows a queue of this name, of whatever kind."""

    def is_consumed(self, name: str) -> bool:
        """Whether somebody consumes this queue, as far as the broker knows."""

    def depth(self, name: str) -> int:
        """How many dead letters there are; none is read."""

    def summaries(self, origins: Mapping[str, str]) -> list[DeadLetterQueue]:
        """These queues with their origins, counted; times and reasons come from a bounded number of dead letters of each.

        Times and reasons are unknown if a look leaves a mark.
        """

    def open(self, name: str) -> LetterList:
        """The dead letters of a queue, to be opened with `with`."""

    def page(self, name: str, before: int | None, count: int) -> LetterPage:
        """The `count` dead letters in front of the place `before` (None: of the end), whatever the queue's size.

        Raises `BrokerError` if a look leaves a mark on this broker.
        """

    def found(self, name: str, task_ids: Collection[str]) -> Iterator[Letter]:
        """The dead letters whose task id is one of these or begins with one, the newest first; reads the whole queue, in pages."""

    def redrive_many(self, dead_letter_queue: str, moves: Sequence[tuple[bytes, str, bytes, Event]]) -> list[Answer | Exception]:
        """Move dead letters back: for each its bytes, the list that it goes to, the message that it becomes, and its event.

        `ALREADY`: it was gone; `MISSING`: no queue takes it; `UNSURE`: a command that died may have moved it.
        """

    def purge_many(self, dead_letter_queue: str, gone: Sequence[tuple[bytes, Event]]) -> list[Answer | Exception]:
        """Remove dead letters for good, each with its event."""

    def move_many(
        self,
        dead_letter_queue: str,
        target: str,
        moves: Sequence[tuple[bytes, bytes, str, tuple[Event, Event]]],
    ) -> list[Answer | Exception]:
        """Move dead letters to another dead-letter queue: for each its bytes, its new bytes, its origin queue, its two events."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that left the log before they were exported.

    They were between the entries `after` and `before` (stream ids; `before` is empty if nothing followed yet). `lost` is how
    many, or None if that cannot be known. `why` is `cap` (the log passed `outcome_log_max_bytes`), `removed` (something else
    deleted them) or `replaced` (the stream is not the one that was exported last: deleted, or restored from an older copy).
    `noticed_ms` is the server's time, in milliseconds since the epoch.
    """

    after: str
    before: str
    lost: int | None
    why: str
    noticed_ms: int


@dataclass(slots=True)
class ExportResult:
    """What one export did. `files` are relative to the destination; `refused` counts entries that are not ours."""

    destination: str
    events: int = 0
    refused: int = 0
    files: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    commits: int = 0


class Tail(NamedTuple):
    """The end of the outcome log: the newest events, the oldest of them first; how many newer messages were not looked at.

    `follow` yields each event that is recorded from then on, without end.
    """

    events: list[Event]
    left: int
    follow: Callable[[], Iterator[Event]]


class OutcomeLog(Protocol):
    """The recorded outcomes. Every method raises what the broker's driver does."""

    def lead(self, token: str, lead_ms: int) -> bool:
        """Whether the exporter of this token may export now. If so, it leads for `lead_ms` milliseconds."""

    def export(self, destination: str, *, format: Format = "parquet", batch: int = 50_000) -> ExportResult:  # noqa: A002 - as the command has it
        """Move the events of the log to a path or a URI that pyarrow knows, about `batch` events at a time.

        Raises `InputError` if the destination cannot be written or `batch` is not positive, `BrokerError` if another export runs,
        `ImportError` without pyarrow. Events that were not written stay in the log.
        """

    def tail(self, limit: int, *, is_followed: bool) -> AbstractContextManager[Tail]:
        """The `limit` newest events; if it `is_followed`, also later ones until the block ends."""

    def hear(
        self, dead_letter_queue: str, *, since_ms: int | None = None
    ) -> AbstractContextManager[Callable[[float], Iterable[Event]]]:
        """The events that are recorded until the block ends, at least those of redriven dead letters of this queue.

        They begin now, or if the log can be read back, at `since_ms` (the broker's time).

        A call waits at most so many seconds, and returns the events that were recorded since the last call.
        """


class Halted(Exception):
    """A message did not move: the operation that it belongs to was paused or aborted, or is carried out by another process."""


class Life(NamedTuple):
    """One life of a task."""

    task_id: str
    generation: int
    queue: str


class Claim(NamedTuple):
    """What lets a process move messages for an operation: as long as the operation runs, and under this token."""

    operation_id: str
    token: str
    #: Whether the lives that it opens at this moment are kept until they are reported as ended.
    follows: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOperation:
    """An operation as it is stored.

    `about` (what is to be done) and `progress` (how far it is) are JSON, which anybody may have written. The broker counts `moved`
    and `by_target` in the same step as each message moves. Times are the broker's, in milliseconds since the epoch; 0 if there is
    none yet.
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
    #: When its progress was reported last.
    reported_ms: int = 0


class Record(NamedTuple):
    """One record of the audit: when, and what, as JSON that anybody may have written.

    `moved` is how many messages the operation had moved by then; None if the record is of no operation.
    """

    record_id: str
    at_ms: int
    said: str
    moved: int | None = None


class Recorded(NamedTuple):
    """Records of the audit, the oldest first; the last of them is its `position`th. `gap` is what is missing before the first."""

    records: list[Record]
    position: int
    gap: Gap | None = None


class AuditStore(Protocol):
    """The audit: a list of what operators did, of which the newest are kept. Every method raises what the broker's driver does."""

    @property
    def name(self) -> str:
        """Its name on the broker."""

    def record(self, said: str) -> None:
        """Record what an operator did."""

    def records(self, limit: int) -> list[Record]:
        """The newest records, the newest first."""

    def following(self, record_id: str, position: int) -> Recorded:
        """All records that follow this one, which was the audit's `position`th.

        All records of the audit if `record_id` is empty, or if the audit is another one than before: deleted since, or restored
        from an older copy.
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
    """What can be measured of a broker at one moment."""

    def sample(
        self, queues: Collection[str], letter_queues: Mapping[str, str], living: Callable[[Mapping[bytes, bytes]], int]
    ) -> Iterator[Gauge]:
        """Look once at these queues, and at the dead-letter queues with their origins. Raises what the broker's driver does.

        `living` takes all leases, and counts the workers that live.
        """


class Sightings(Protocol):
    """What an inventory takes in while the broker is walked."""

    def see(self, contents: Contents, queue: str, place: str, seen_ms: int, *, due_ms: int | None = None, owner: str = "") -> None:
        """A message was found in this place."""

    def hear(self, event: Event) -> None:
        """This event was recorded while the broker was walked."""


class InventorySource(Protocol):
    """All messages of a broker, which goes on working. Raises what the broker's driver does."""

    def walk(
        self, inventory: Sightings, queues: Collection[str], letter_queues: Collection[str], *, look: bool
    ) -> Mapping[str, int]:
        """Show the inventory every message. Returns the queues with messages that cannot be shown, and their numbers.

        `look` allows a look that counts as a delivery, if the broker has no other.
        """


@dataclass(frozen=True, slots=True)
class NotKnown:
    """A fact that a broker or a worker does not report: what, why not, and how it can be known."""

    what: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Ending:
    """A rule of the broker's own that ends messages of these queues: a policy, or a queue's declaration.

    `kind` is `policy` or `declaration`; `name` is the policy's, or the queue's; `by` are its definitions or arguments.
    """

    kind: Literal["policy", "declaration"]
    name: str
    queues: tuple[str, ...]
    by: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a broker reports about itself. None: it does not report it (`not_known` says why), or it does not have it.

    - `evicts`: the policy by which a full server deletes messages; empty if it deletes none.
    - `keeps`: what is left after a restart: `log`, `snapshots` or `nothing`.
    - `failing`: what it has tried to write to its disk, and could not.
    - `memory`: the bytes it uses, and the most it may use.
    - `is_replica`: whether it takes no writes; `replicas`: how many replicas are connected to it.
    - `alarm`: why it takes no publications now; empty if it takes them.
    - `endings`: the broker's own rules that end messages, outside our policies.
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
    """The outcome log at one moment. None: the broker does not report it.

    `oldest_ms` is when its oldest event was recorded, None if there is none; `bytes` is its size; `lost` how many events left it
    unexported since the last export.
    """

    oldest_ms: int | None
    bytes: int | None = None
    lost: int | None = None


class Checkup(Protocol):
    """What `redelivery doctor` asks a broker. Every method raises what the broker's driver does, and changes nothing."""

    def condition(self, queues: Sequence[str], letters: Collection[str], management_url: str | None) -> Condition:
        """What the broker reports about itself, and its own rules that end messages of these queues and dead-letter queues."""

    def log_state(self) -> LogState:
        """The state of the outcome log."""

    def leases(self) -> dict[str, str]:
        """All leases, each with a counter that its worker moves at each renewal; none if the broker keeps no leases."""

    def consumers(self, queues: Collection[str]) -> dict[str, int] | None:
        """How many consumers each of these queues has, if it exists; None if the broker does not know its consumers."""

    def wrong_clocks(self) -> dict[str, int] | None:
        """The hosts of producers whose clocks were wrong lately, each with the milliseconds it was ahead; None if unknown."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one message of the task is. `detail` holds what is known there: `due_ms`, `owner`, or the dead letter's death.

    `at` is a dead letter's place in its queue, as `LetterStore.page` counts it, or one nearby; None if that is not known.
    """

    place: str
    name: str
    contents: Contents
    detail: dict[str, Any] = field(default_factory=dict)
    at: int | None = None


@dataclass(slots=True)
class TaskLife:
    """What was found of a task. `cut` names what was not read to its end, and how far; `unread` what could not be read at all."""

    task_id: str
    events: list[Event] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def task(self) -> str:
        """The task's name, if anything names it."""
        return next(
            (each for each in (*(event.task for event in self.events), *(place.contents.task for place in self.places)) if each), ""
        )

    @property
    def queue(self) -> str:
        """The queue that it belongs to."""
        queues = [event.queue for event in self.events] + [place.name for place in self.places if place.place != "dead_letter"]
        return next((queue for queue in queues if queue), "")


class TaskSource(Protocol):
    """Where one task is looked for. Raises what the broker's driver does."""

    def read_log(self, life: TaskLife, most: int) -> None:
        """Add the events of every task whose id begins with that of `life`; at most `most` events are looked at."""

    def find(self, life: TaskLife, queues: Collection[str], letter_queues: Collection[str], most: int) -> None:
        """Add every place where such a task is; at most `most` messages of each list are looked at."""
