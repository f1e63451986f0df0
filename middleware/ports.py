"""What a broker offers the middleware: the moves of a message that a worker holds, and its answers.

A move is asked for with the tag under which the message is held. It is answered `DONE`; or `ALREADY`, when an earlier asking of the
same move was carried out and its answer was lost; or `REFUSED`, when the message has meanwhile been given to another worker; or
`MISSING`, when the queue that it should go to is not there and may not be made: then nothing has changed.

What a kind of broker cannot do is missing in its transport's `capabilities`; code that needs one asks for it, and says what is
missing.
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

#: How the start of a message is recorded that was acknowledged before its task ran (`acks_late=False`).
ACCEPTED = "accepted"


class Capability(StrEnum):
    """What a transport can do.

    - `ATOMIC_MOVES`: acknowledging, moving and recording are one step; else a crash between them delivers a message again.
    - `KEPT_UNTIL_ACKNOWLEDGED`: what a worker holds is delivered again when it is killed; else it is lost with it.
    - `LEASES`: workers hold messages under leases that others watch; else it is the broker that delivers again, where anybody does.
    - `STARTS`: a start can be recorded, so that a crash counts against what had begun, and not against what was beside it.
    - `SERVER_TIME`: the broker's clock is the one that counts; else each machine's own.
    - `BROKER_DELAYS`: what is not due waits in the broker; else in the worker.
    - `EXACT_DELAYS`: delays are milliseconds; else whole seconds, rounded up.
    - `DELAY_STORE_LISTING`, `CANCEL_DELAYED`, `PROMOTE_DELAYED`: what waits can be listed, taken out, and be made due earlier.
    - `DEAD_LETTER_QUEUES`: dead letters are kept.
    - `BROWSE_LETTERS_UNMARKED`: a look at letters, or at what waits, takes them from nobody and leaves no mark on them.
    - `HEAD_OF_QUEUE`: what was not run goes back to where it was taken from; else behind all others.
    - `QUEUE_BOUNDS`, `LETTER_BOUNDS`: `max_length`, and `dead_letter_time_to_live` with `max_dead_letters`, are kept by us.
    - `REDELIVERY_BUDGETS`: `redeliveries_per_second` is kept by us.
    - `OUTCOME_LOG`: the outcome events are kept on the broker.
    - `REDELIVERY_COUNTS`: the broker says that it has handed a message over before.
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
    #: It was only asked for (`Pipeline`).
    ASKED = "asked"
    #: A worker or command that was to move it has died, and it is not known whether the message moved. Nothing was changed.
    UNSURE = "unsure"


class Successor(StrEnum):
    """What is known of the next delivery of a message that is handed over again.

    `RECORDED`: it is there, and the event of the move is in the log. `SEEN`: it was there; the worker that moved it may have died
    before it recorded that.
    """

    UNKNOWN = "unknown"
    SEEN = "seen"
    RECORDED = "recorded"


def ignore(*_: Any, **__: Any) -> None:
    """What is called where nothing is to be done."""


class TaskResult(NamedTuple):
    """What a backend is to store of a task's success: the key there, its bytes, for how many seconds (None or 0: for good).

    `database` is the number of the backend's database on the broker's server.
    """

    key: bytes
    stored: bytes
    seconds: int | None
    database: int


@dataclass(slots=True, eq=False)
class Held:
    """A message that this worker holds: the tag it is held under, where it came from, its bytes, and when it came (server's ms).

    `release_credit` gives its place in the prefetch window back; the receiver sets it. `request` is Celery's request. It is set
    until the message `has_left`, and not longer: message and request refer to each other, and only the garbage collector would
    remove them. `handed_over_before` is how often the broker has delivered the message before without an acknowledgement.
    `was_cut`: such a delivery does not prove a crash, because this worker's connection broke too, and the worker lives.
    `was_moved`: a worker or command of redelivery has moved the message before. `trace` is the W3C context of this delivery's
    span: empty if it has no span, None if it was not handed to the pool. `move_trace` is the context of its move's span, if any.
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
        """Give its place in the prefetch window back, once; it stays held."""
        self.release_credit, release_credit = ignore, self.release_credit
        release_credit()

    def leave(self) -> None:
        """Its transition has been answered."""
        self.request, self.has_left = None, True


class Lease(Protocol):
    """A worker's lease of what it holds: it must be renewed, and ends where others see it stand still."""

    def begin(self, instead_of: str) -> None:
        """Take a new token, and open its lease; `instead_of` is the one that was lost."""

    def is_alive(self) -> bool:
        """Renew the lease; False where the token has been fenced."""

    def part(self) -> None:
        """Nothing is held any more: end the lease."""

    def has_minted(self, tag: str) -> bool:
        """Whether this tag is held under a lease."""

    def accept(self, tag: str) -> Answer:
        """Record that the message counts as acknowledged from here on, though it is held."""


class Deliveries(Protocol):
    """What one worker holds: `held` maps tag → message, from its receipt until its transition has been answered.

    `token` is the one that the messages are held under, of a lease or of a connection.
    """

    worker: str
    held: dict[str, Held]
    token: str

    @property
    def lease(self) -> Lease | None:
        """The lease that they are held under, where the broker has leases."""

    def holds(self, tag: str) -> bool:
        """Whether this tag was minted under the token, or the connection, that there is now."""

    def take(self, message: Any) -> Held | None:
        """A message of kombu's as this worker holds it, from now on; None where it is none of a task queue's."""

    def drop(self, tag: str) -> None:
        """Its transition has been answered: the message is no longer held."""

    def release(self, keep: set[str]) -> int:
        """Give back, uncounted, what is held, but for the tags to `keep`; how many went back."""

    def now_ms(self) -> int:
        """The broker's time, as far as this worker can tell without asking."""


class Pipeline(Protocol):
    """Transitions that the broker was asked for, and whose answers nobody waits for."""

    def __len__(self) -> int: ...

    def tags(self) -> set[str]:
        """The tags of the messages whose transitions are under way."""

    def is_here(self) -> bool:
        """Whether this thread may ask."""

    def begin(self, tag: str, transition: Callable[[Moves], Answer], then: Callable[[Answer], None]) -> None:
        """Ask for the transition; `then` gets the answer, here or later."""

    def settle(self) -> None:
        """Wait for every answer."""


class Carrier(Protocol):
    """Carries transitions out, each once, in order, and again where the broker cannot now (`outbox`)."""

    under_way: Pipeline | None

    def __len__(self) -> int: ...

    def tags(self) -> set[str]:
        """The tags of the messages whose transitions are not carried out yet."""

    def ask(self, tag: str, transition: Callable[[Moves], Answer], then: Callable[[Answer], None], transport: Moves) -> None:
        """As `carry_out`, of a transition that is told the transport; nobody waits for its answer, where that can be."""

    def carry_out(self, tag: str, transition: Callable[[], Answer], then: Callable[[Answer], None]) -> None:
        """Try the transition now; `then` gets the answer, here or later."""

    def settle(self) -> None:
        """From here on every answer is waited for."""

    def drain(self, seconds: float) -> bool:
        """Wait until nothing is in line any more, at most this long; False where something still is."""


class Names(Protocol):
    """How a broker calls the place where the messages of a queue lie: as the queue, where all priorities lie in one."""

    def list_name(self, queue: str, priority: int = 0) -> str:  # noqa: ARG002 - brokers with a list for each priority use it
        """The name of the place where a message of this priority lies."""
        return queue


class Moves(Protocol):
    """What may become of a message that is held; with `ATOMIC_MOVES`, each is one step, which happens whole or not at all."""

    def acknowledge(self, tag: str, event: Event | None, result: TaskResult | None = None) -> Answer:
        """End the message; with the event, the `result` of its task is stored in that step (`FastPath.stores_results`)."""

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
        """Move the message to the delay store, or straight back to its list where nothing is left to wait.

        With `pace` (`REDELIVERY_BUDGETS`) it waits for its turn among what is delivered again, too.
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
        """Move the message to a dead-letter queue, where that is there, or (unless it `must_exist`) may be made."""

    def start(self, tag: str) -> Answer:
        """Record that the message is about to run."""

    def release(self, held: Sequence[Held]) -> int:
        """Put messages that were not run back to where they were taken from."""


class Session(Protocol):
    """A worker's deliveries, where the broker itself gives back what a dead worker held, as soon as its connection is gone."""

    def attach(self, consumer: Consumer) -> None:
        """From here on this consumer's deliveries are ours. Raises `BrokerError`."""

    def drain(self, seconds: float) -> int:
        """Wait for what the broker has not answered, at most this long; how many moves are left where that was not enough."""


class Redeliveries(Protocol):
    """What a broker that hands messages over again by itself knows of one that it does (`REDELIVERY_COUNTS`)."""

    def recorded_start(self, held: Held) -> str | None:
        """How the start of a message that came again was recorded, where the broker says so: `ACCEPTED`, or when, or not at all."""

    def ask_moved(self, held: Held, letters: frozenset[str], then: Callable[[Successor, Sequence[Event]], None]) -> None:
        """Tell `then`, now or later, from any thread, whether the message was moved on already.

        With `SEEN` it is told the events of a death or a redrive, too, which may not be recorded. `letters` are the queues where a
        dead letter may be looked for.
        """


class FastPath(Protocol):
    """Receiving and asking on connections of our own, where kombu receives and each move is waited for otherwise."""

    def receive(
        self, consumer: Consumer, owner: Deliveries, limit: Callable[[], int], on_garbage: Callable[[Held, Exception], None]
    ) -> bool:
        """Receive by ourselves from now on, `limit` messages at the most; False where kombu is one that we do not know."""

    def pipeline(self, hub: Any, wait_for: Callable[..., None]) -> Pipeline | None:
        """Transitions whose answers this event loop reads; None where each is waited for. `wait_for` is `Carrier.carry_out`."""

    def stores_results(self, app: Celery) -> bool:
        """Whether the results of this app's tasks can be stored by `acknowledge`: tried, on the broker."""


class Registry(Protocol):
    """What the broker knows of names."""

    def objection_to(self, queue: str) -> str | None:
        """Why nothing may be sent to a queue of this name, beside what every broker refuses; None where it may."""

    def origin_of(self, dead_letter_queue: str) -> str | None:
        """The queue whose worker used this dead-letter queue last."""


class Transport(Moves, Protocol):
    """One app's broker. A feature that it lacks is None."""

    #: The app whose broker this is; None for one that was made by hand.
    app: Celery | None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this kind of broker can do."""

    @property
    def session(self) -> Session | None:
        """What holds deliveries by their connection; None where they are held under leases."""

    @property
    def redeliveries(self) -> Redeliveries | None:
        """What is known of messages that the broker hands over again."""

    @property
    def fast_path(self) -> FastPath | None:
        """Receiving and asking without kombu."""

    @property
    def registry(self) -> Registry | None:
        """What the broker knows of names; None where any name is a queue's."""

    @property
    def keys(self) -> Names:
        """How this broker calls its places."""

    def claim_for(self, worker: str) -> Deliveries:
        """What holds this worker's messages. Raises `BrokerError`."""

    def is_transient(self, exc: BaseException) -> bool:
        """Whether this failure is the broker's for now: the same transition may be carried out a little later."""

    def is_driver_error(self, exc: BaseException) -> bool:
        """Whether the driver says by this that the broker refuses, or is away."""

    def has_queue(self, name: str) -> bool:
        """Whether the broker has this queue."""

    def warn(self, queues: Sequence[str], letters: Iterable[str], management_url: str | None) -> None:
        """Say in the log where the broker ends messages by itself: of the queues that are consumed, or of their dead letters."""

    def now_ms(self) -> int:
        """The broker's time, or this machine's where it tells nobody; milliseconds since the epoch."""

    def close(self) -> None:
        """Close the connections."""
