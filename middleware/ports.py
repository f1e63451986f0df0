"""The operations that a broker offers the middleware: the moves of a message that a worker holds, and the broker's answers.

A move names the tag under which the message is held. The answer is `DONE`; `ALREADY` if an earlier call of the same move was
carried out and its answer was lost; `REFUSED` if the broker no longer keeps the message for this worker; or `MISSING` if the target
queue does not exist and may not be created: then nothing has changed.

If a broker cannot do something, its transport's `capabilities` lack it; code that needs a capability checks for it, and reports if
it is missing.
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
    - `DELAY_STORE_LISTING`, `CANCEL_DELAYED`, `PROMOTE_DELAYED`: delayed messages can be listed, removed, and made due earlier.
    - `DEAD_LETTER_QUEUES`: dead letters are kept.
    - `BROWSE_LETTERS_UNMARKED`: reading dead letters or delayed messages takes them from nobody, and leaves no mark on them.
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
    #: It was only asked for (`Pipeline`).
    ASKED = "asked"
    #: A worker or command that was to move it has died, and it is not known whether the message moved. Nothing was changed.
    UNSURE = "unsure"


class Successor(StrEnum):
    """Whether a message that the broker delivers again was moved already, so that its next delivery exists.

    `RECORDED`: it exists, and the event of the move is in the log. `SEEN`: it was seen; the worker that moved it may have died
    before it recorded the move.
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
    """A worker's lease on the messages that it holds. If other workers see that it is not renewed, they end it."""

    def begin(self, instead_of: str) -> None:
        """Take a new token, and open its lease; `instead_of` is the one that was lost."""

    def is_alive(self) -> bool:
        """Renew the lease; False if the token has been fenced."""

    def part(self) -> None:
        """Nothing is held any more: end the lease."""

    def has_minted(self, tag: str) -> bool:
        """Whether this tag is held under a lease."""

    def accept(self, tag: str) -> Answer:
        """Record that the message counts as acknowledged from here on, although it is still held."""


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
        """Hold a message of kombu's from now on; None if it does not come from a task queue."""

    def drop(self, tag: str) -> None:
        """Its transition has been answered: the message is no longer held."""

    def release(self, keep: set[str]) -> int:
        """Give back, uncounted, the held messages, except for the tags to `keep`; return how many went back."""

    def now_ms(self) -> int:
        """The broker's time, as far as this worker knows it without a call."""


class Pipeline(Protocol):
    """Transitions that were sent to the broker, and whose answers are read later."""

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
        """From here on every call waits for its answer."""

    def drain(self, seconds: float) -> bool:
        """Wait until no transition waits any more, at most `seconds`; False if one still waits."""


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
    """The moves of a message that is held; with `ATOMIC_MOVES`, each is one step, which happens completely or not at all."""

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
        """Put messages that did not run back to where they were taken from."""


class Session(Protocol):
    """A worker's deliveries on a broker that itself delivers a dead worker's messages again, when its connection is gone."""

    def attach(self, consumer: Consumer) -> None:
        """From here on hold this consumer's deliveries. Raises `BrokerError`."""

    def drain(self, seconds: float) -> int:
        """Wait for the broker's answers, at most `seconds`; return how many moves are still not answered."""


class Redeliveries(Protocol):
    """What is known about a message that the broker itself delivers again (`REDELIVERY_COUNTS`)."""

    def recorded_start(self, held: Held) -> str | None:
        """The recorded start of a message that came again: `ACCEPTED`, or a time or name of the start; None if none is recorded."""

    def ask_moved(self, held: Held, letters: frozenset[str], then: Callable[[Successor, Sequence[Event]], None]) -> None:
        """Call `then`, now or later, from any thread, with the answer whether the message was moved already.

        With `SEEN` it also gets the events of a death or a redrive that may not be recorded yet. `letters` are the queues in which
        to look for its dead letter.
        """


class FastPath(Protocol):
    """Receiving and moving on connections of our own. Without it kombu receives, and each move waits for its answer."""

    def receive(
        self, consumer: Consumer, owner: Deliveries, limit: Callable[[], int], on_garbage: Callable[[Held, Exception], None]
    ) -> bool:
        """Receive without kombu from now on, at most `limit` messages; False if this version of kombu is not known."""

    def pipeline(self, hub: Any, wait_for: Callable[..., None]) -> Pipeline | None:
        """Transitions whose answers this event loop reads; None if each call waits. `wait_for` is `Carrier.carry_out`."""

    def stores_results(self, app: Celery) -> bool:
        """Whether `acknowledge` can store the results of this app's tasks; this is tried on the broker."""


class Registry(Protocol):
    """What the broker records about names of queues."""

    def objection_to(self, queue: str) -> str | None:
        """Why no message may be sent to a queue of this name, beside the rules for every broker; None if it may."""

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
        """Whether the broker fails only for now: it may carry out the same transition a little later."""

    def is_driver_error(self, exc: BaseException) -> bool:
        """Whether the driver raised this because the broker refuses a command, or does not answer."""

    def has_queue(self, name: str) -> bool:
        """Whether the broker has this queue."""

    def warn(self, queues: Sequence[str], letters: Iterable[str], management_url: str | None) -> None:
        """Log a warning if the broker itself ends messages in one of the consumed queues, or in their dead-letter queues."""

    def now_ms(self) -> int:
        """The broker's time, or this machine's if the broker does not report its time; milliseconds since the epoch."""

    def close(self) -> None:
        """Close the connections."""
