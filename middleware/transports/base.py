"""What every transport offers the middleware: the moves of a message that a worker holds, and its answers.

A move is asked for with the tag under which the message is held. It is answered `DONE`; or `ALREADY`, when an earlier asking of the
same move was carried out and its answer was lost; or `REFUSED`, when the message has meanwhile been given to another worker; or
`MISSING`, when the queue that it should go to is not there and may not be made: then nothing has changed.

What a kind of broker cannot do is missing in its transport's `capabilities`; whoever needs one asks for it, and says plainly what
is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redelivery.middleware.outcomes import Event
    from redelivery.middleware.pacing import Pace

__all__ = ["Answer", "Capability", "Held", "Transport"]


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
    - `BROWSE_LETTERS_UNMARKED`: looking at a letter leaves no mark on it.
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
    #: It was only asked for (`underway`).
    ASKED = "asked"


@dataclass(slots=True, eq=False)
class Held:
    """A message that this worker holds: the tag it is held under, where it came from, its bytes, and when it came (server's ms).

    `release_credit` gives its place in the prefetch window back; the receiver sets it. `request` is Celery's, once there is one and
    until the message `has_left`: the two refer to each other, and are to go away without the help of a garbage collector.
    `handed_over_before` is how often the broker says that it has handed the message over before, to somebody who has not ended it;
    `was_cut` says that a connection which broke explains that: this worker's did, too, and it lives.
    """

    tag: str
    queue: str
    list_name: str
    raw: bytes
    seen_ms: int
    release_credit: Callable[[], None] = field(default=lambda: None)
    request: Any = None
    handed_over_before: int = 0
    was_cut: bool = False
    has_left: bool = False

    def leave(self) -> None:
        """Its transition has been answered."""
        self.request, self.has_left = None, True


class Transport(Protocol):
    """The transitions; with `ATOMIC_MOVES`, each is one step of the broker's, which happens whole or not at all."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this kind of broker can do."""
        ...

    def acknowledge(self, tag: str, event: Event | None) -> Answer:
        """End the message."""
        ...

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
        ...

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
        ...

    def start(self, tag: str) -> Answer:
        """Record that the message is about to run."""
        ...

    def release(self, held: Sequence[Held]) -> int:
        """Put messages that were not run back to where they were taken from."""
        ...
