"""The operations that a broker offers the middleware: the moves of a message that a worker holds, and the broker's answers.

A move names the tag under which the message is held. The answer is `DONE`; `ALREADY` if an earlier call did the move and its answer
was lost; `REFUSED` if the broker no longer keeps the message for this worker; or `MISSING` if the target queue does not exist and
may not be created: then nothing has changed.

The transport's `capabilities` name what the broker can do. Code that needs a capability checks for it, and reports its lack.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery import Celery
    from celery.worker.consumer import Consumer

    from .messages.events import Event
    from .policy.resolver import Pace

#: The recorded start of a message that was acknowledged before its task ran (`acks_late=False`).
ACCEPTED = "accepted"
#: What `Answer.REFUSED` means, in a line of the log.
NOT_KEPT = "the broker no longer keeps the message for this worker: another worker has it, or the broker has lost it"


class Capability(StrEnum):
    """What a transport can do.

    - `ATOMIC_MOVES`: acknowledging, moving and recording are one step; otherwise a crash between them delivers a message again.
    - `KEPT_UNTIL_ACKNOWLEDGED`: if a worker is killed, its messages are delivered again; otherwise they are lost.
    - `LEASES`: workers hold messages under leases that other workers watch; otherwise the broker itself delivers again, if it can.
    - `STARTS`: a start can be recorded, so that a crash counts only against messages that had begun.
    - `SERVER_TIME`: times are by the broker's clock; otherwise by each machine's own.
    - `BROKER_DELAYS`: messages that are not due wait in the broker; otherwise in the worker.
    - `EXACT_DELAYS`: delays are milliseconds; otherwise whole seconds, rounded up.
    - `DELAY_STORE_LISTING`, `CANCEL_DELAYED`, `PROMOTE_DELAYED`: delayed messages can be listed, removed, made due earlier.
    - `DEAD_LETTER_QUEUES`: dead letters are kept.
    - `BROWSE_LETTERS_UNMARKED`: reading dead letters or delayed messages neither takes nor marks them.
    - `HEAD_OF_QUEUE`: a message that did not run goes back to the head of its queue; otherwise behind all others.
    - `QUEUE_BOUNDS`, `LETTER_BOUNDS`: redelivery enforces `max_length`, and `dead_letter_time_to_live` with `max_dead_letters`.
    - `REDELIVERY_BUDGETS`: redelivery enforces `redeliveries_per_second`.
    - `OUTCOME_LOG`: the outcome events are kept on the broker.
    - `REDELIVERY_COUNTS`: the broker reports that it has delivered a message before.
    """

    ATOMIC_MOVES = "atomic_moves"
    KEPT_UNTIL_ACKNOWLEDGED = "kept_until_acknowledged"
    LEASES = "leases"
    STARTS = "starts"
    SERVER_TIME = "server_time"
    BROKER_DELAYS = "broker_delays"
    EXACT_DELAYS = "exact_delays"
    DELAY_STORE_LISTING = "delay_store_listing"
    CANCEL_DELAYED = "cancel_delayed"
    PROMOTE_DELAYED = "promote_delayed"
    DEAD_LETTER_QUEUES = "dead_letter_queues"
    BROWSE_LETTERS_UNMARKED = "browse_letters_unmarked"
    HEAD_OF_QUEUE = "head_of_queue"
    QUEUE_BOUNDS = "queue_bounds"
    LETTER_BOUNDS = "letter_bounds"
    REDELIVERY_BUDGETS = "redelivery_budgets"
    OUTCOME_LOG = "outcome_log"
    REDELIVERY_COUNTS = "redelivery_counts"


class Answer(StrEnum):
    """How a transition ended."""

    DONE = "done"
    ALREADY = "already"
    REFUSED = "refused"
    MISSING = "missing"
    #: The request was sent; the answer comes later (`Pipeline`).
    ASKED = "asked"
    #: The process that moved the message died, so it is unknown whether it moved. This call changed nothing.
    UNSURE = "unsure"


class Successor(StrEnum):
    """Whether a message that the broker delivers again was moved already, so that a copy of it (the successor) exists.

    `RECORDED`: the copy exists, and the event of the move is in the log. `SEEN`: the copy exists; the worker that made it may have
    died before it recorded the move.
    """

    UNKNOWN = "unknown"
    SEEN = "seen"
    RECORDED = "recorded"


def ignore(*_: Any, **__: Any) -> None:
    """Do nothing."""


class TaskResult(NamedTuple):
    """The result of a success, for its backend: the key, the bytes, and for how many seconds they are kept (None or 0: for ever).

    `database` is the number of the backend's database on the broker's server.
    """

    key: bytes
    stored: bytes
    seconds: int | None
    database: int


@dataclass(slots=True, eq=False)
class Held:
    """A message that this worker holds: the tag it is held under, where it came from, its bytes, and when it came (server's ms).

    `release_credit` gives its place in the prefetch window back; the receiver sets it. `request` is Celery's request. It is None
    after the message `has_left`: message and request refer to each other, and only the garbage collector would free them.
    `handed_over_before` is how often the broker delivered the message before without an acknowledgement. `was_cut`: such a delivery
    does not prove a crash, because this worker's own connection broke. `was_moved`: redelivery has moved the message before.
    `trace` is the W3C context of this delivery's span: empty if it has no span, None if it was not handed to the pool. `move_trace`
    is the context of its move's span, if any.
    """

    tag: str
    queue: str
    list_name: str
    raw: bytes
    seen_ms: int
    release_credit: Callable[[], None] = ignore
    request: Any = None
    handed_over_before: int = 0
    was_cut: bool = False
    was_moved: bool = False
    has_left: bool = False
    trace: str | None = None
    move_trace: str = ""

    def make_room(self) -> None:
        """Give its place in the prefetch window back, once; the message stays held."""
        self.release_credit, release_credit = ignore, self.release_credit
        release_credit()

    def leave(self) -> None:
        """Note that its transition has been answered."""
        self.request, self.has_left = None, True


class Lease(Protocol):
    """A worker's lease on the messages that it holds. If other workers see that it is not renewed, they end it."""

    def begin(self, instead_of: str) -> None:
        """Take a new token, and open its lease; `instead_of` is the lost token."""

    def is_alive(self) -> bool:
        """Renew the lease; False if the token has been fenced."""

    def part(self) -> None:
        """End the lease, because the worker holds nothing any more."""

    def has_minted(self, tag: str) -> bool:
        """Whether this tag is held under a lease."""

    def accept(self, tag: str) -> Answer:
        """Record that the message counts as acknowledged, although it is still held."""


class Deliveries(Protocol):
    """The messages that one worker holds: `held` maps tag → message, from its receipt until its transition has been answered.

    `token` is the token of the lease or connection under which the messages are held.
    """

    worker: str
    held: dict[str, Held]
    token: str

    @property
    def lease(self) -> Lease | None:
        """The lease under which they are held; None if the broker has no leases."""

    def holds(self, tag: str) -> bool:
        """Whether this tag was made under the current token or connection."""

    def take(self, message: Any) -> Held | None:
        """Hold a message of kombu's; None if it does not come from a task queue."""

    def drop(self, tag: str) -> None:
        """Stop holding the message: its transition has been answered."""

    def release(self, keep: set[str]) -> int:
        """Give the held messages back, uncounted, except for the tags to `keep`; return how many went back."""

    def now_ms(self) -> int:
        """The broker's time, as far as this worker knows it without a call."""


class Pipeline(Protocol):
    """Transitions that were sent to the broker; their answers are read later."""

    def __len__(self) -> int: ...

    def tags(self) -> set[str]:
        """The tags of the messages whose transitions have no answer yet."""

    def is_here(self) -> bool:
        """Whether this thread may call `begin`."""

    def begin(self, tag: str, transition: Callable[[Moves], Answer], then: Callable[[Answer], None]) -> None:
        """Send the transition; `then` gets the answer, now or later."""

    def settle(self) -> None:
        """Wait for every answer."""


class Carrier(Protocol):
    """Carries transitions out, each once and in order; it tries again if the broker cannot carry one out now (`outbox`)."""

    under_way: Pipeline | None

    def __len__(self) -> int: ...

    def tags(self) -> set[str]:
        """The tags of the messages whose transitions are not carried out yet."""

    def ask(self, tag: str, transition: Callable[[Moves], Answer], then: Callable[[Answer], None], transport: Moves) -> None:
        """As `carry_out`, for a transition that takes the transport as argument; if possible, its answer is not waited for."""

    def carry_out(self, tag: str, transition: Callable[[], Answer], then: Callable[[Answer], None]) -> None:
        """Try the transition now; `then` gets the answer, now or later."""

    def settle(self) -> None:
        """Wait for the answers still to come, and make every later call wait for its own."""

    def drain(self, seconds: float) -> bool:
        """Wait at most `seconds` for the waiting transitions; False if one still waits."""


class Names(Protocol):
    """The broker's name for the list of a queue's messages: the queue's own name, if one list holds all priorities."""

    @property
    def outcomes(self) -> str:
        """The name of the outcome log; empty if there is none."""
        return ""

    def list_name(self, queue: str, priority: int = 0) -> str:  # noqa: ARG002 - brokers with a list for each priority use it
        """The name of the list that holds messages of this priority."""
        return queue


class Moves(Protocol):
    """The moves of a held message; with `ATOMIC_MOVES`, each happens completely or not at all."""

    def acknowledge(self, tag: str, event: Event | None, result: TaskResult | None = None) -> Answer:
        """End the message, record the event, and store the `result` of its task (`FastPath.stores_results`)."""

    def defer(
        self,
        tag: str,
        list_name: str,
        message: bytes,
        *,
        task_id: str,
        event: Event | None,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        first: bool = False,
        pace: Pace | None = None,
    ) -> Answer:
        """Move the message to the delay store, or directly to its list if it need not wait.

        With `pace` (`REDELIVERY_BUDGETS`) it also waits for its slot in the queue's retry budget.
        """

    def dead_letter(
        self,
        tag: str,
        message: bytes,
        *,
        dead_letter_queue: str,
        queue: str,
        event: Event | None,
        must_exist: bool = False,
    ) -> Answer:
        """Move the message to a dead-letter queue. The queue is created if it is missing, unless it `must_exist`."""

    def start(self, tag: str) -> Answer:
        """Record that the message is about to run."""

    def release(self, held: Sequence[Held]) -> int:
        """Put messages that did not run back where they came from."""


class Session(Protocol):
    """A worker's deliveries on a broker that delivers them again itself when the worker's connection is gone."""

    def attach(self, consumer: Consumer) -> None:
        """Begin to hold this consumer's deliveries. Raises `BrokerError`."""

    def drain(self, seconds: float) -> int:
        """Wait at most `seconds` for the broker's answers; return how many moves still have none."""


class Redeliveries(Protocol):
    """What is known about a message that the broker itself delivers again (`REDELIVERY_COUNTS`)."""

    def recorded_start(self, held: Held) -> str | None:
        """The recorded start of a message that came again: `ACCEPTED`, a time, or a name; None without a record."""

    def ask_moved(self, held: Held, letters: frozenset[str], then: Callable[[Successor, Sequence[Event]], None]) -> None:
        """Find out whether the message was moved already, and call `then` with the answer, now or later, from any thread.

        With `SEEN`, `then` also gets the events of a death or a redrive that may not be recorded yet. `letters` are the queues to
        search for its dead letter.
        """


class FastPath(Protocol):
    """Receiving and moving on connections of our own. Without it kombu receives, and each move waits for its answer."""

    def receive(
        self, consumer: Consumer, owner: Deliveries, limit: Callable[[], int], on_garbage: Callable[[Held, Exception], None]
    ) -> bool:
        """Begin to receive without kombu, at most `limit` messages; False if this version of kombu is not known."""

    def pipeline(self, hub: Any, wait_for: Callable[..., None]) -> Pipeline | None:
        """A pipeline whose answers this event loop reads; None if each call waits. `wait_for` is `Carrier.carry_out`."""

    def stores_results(self, app: Celery) -> bool:
        """Try on the broker whether `acknowledge` can store the results of this app's tasks."""


class Registry(Protocol):
    """What the broker records about names of queues."""

    def objection_to(self, queue: str) -> str | None:
        """Why this broker allows no queue of this name, in addition to the rules for every broker; None if it does."""

    def origin_of(self, dead_letter_queue: str) -> str | None:
        """The queue consumed by the worker that used this dead-letter queue last."""


class Transport(Moves, Protocol):
    """One app's broker. A feature that it lacks is None."""

    #: The app whose broker this is; None if the transport was made without an app.
    app: Celery | None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this kind of broker can do."""

    @property
    def session(self) -> Session | None:
        """The deliveries held by a connection; None if they are held under leases."""

    @property
    def redeliveries(self) -> Redeliveries | None:
        """What is known about messages that the broker itself delivers again."""

    @property
    def fast_path(self) -> FastPath | None:
        """Receiving and moving without kombu."""

    @property
    def registry(self) -> Registry | None:
        """What the broker records about names; None if any name may be a queue's."""

    @property
    def keys(self) -> Names:
        """This broker's names for the lists of messages."""

    def claim_for(self, worker: str) -> Deliveries:
        """The object that holds this worker's messages. Raises `BrokerError`."""

    def is_transient(self, exc: BaseException) -> bool:
        """Whether the same transition may succeed a little later."""

    def is_driver_error(self, exc: BaseException) -> bool:
        """Whether the driver raised this because the broker refuses a command, or does not answer."""

    def has_queue(self, name: str) -> bool:
        """Whether the broker has this queue."""

    def warn(self, queues: Sequence[str], letters: Iterable[str], management_url: str | None) -> None:
        """Log a warning if the broker itself removes messages from the consumed queues or their dead-letter queues."""

    def now_ms(self) -> int:
        """The broker's time, or this machine's if the broker reports none; milliseconds since the epoch."""

    def close(self) -> None:
        """Close the connections."""
