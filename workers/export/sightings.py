"""The contents of an inventory: each life once, in the place where its message was seen last. Events of moves correct it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from redelivery.middleware.messages.events import TERMINAL, Event, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..letters import Contents

#: The most characters of an exception's message.
MAX_MESSAGE = 200

QUEUE, UNACKED, DELAYED, DEAD_LETTER = "queue", "unacked", "delayed", "dead_letter"


class Life(NamedTuple):
    """The life of a message."""

    task_id: str
    nesting: int
    generation: int
    queue: str


class Sight(NamedTuple):
    """Where a message was seen, and when (server's ms); for a dead letter, also the message of its exception."""

    place: str
    task: str
    due_ms: int | None
    owner: str
    seen_ms: int
    message: str | None = None


@dataclass(slots=True)
class Inventory:
    """The lives seen; a later sight replaces an earlier one. `unlisted` counts the messages of queues that cannot be read."""

    lives: dict[Life, Sight] = field(default_factory=dict)
    unlisted: Mapping[str, int] = field(default_factory=dict)

    def see(self, contents: Contents, queue: str, place: str, seen_ms: int, *, due_ms: int | None = None, owner: str = "") -> None:
        """Add a message. A dead letter counts as one in any place: a handler may hold it, or it may wait for its handler."""
        envelope, message = contents.envelope, None
        if envelope.is_letter:
            place, due_ms, message = DEAD_LETTER, None, _message_of(envelope.failure)
        life = Life(contents.task_id, contents.nesting, envelope.generation, envelope.life_queue(queue))
        self.lives.pop(life, None)
        self.lives[life] = Sight(place, contents.task, due_ms, owner, seen_ms, message)

    def apply(self, event: Event) -> None:
        """Apply an event that records a move, unless the life was seen after the event."""
        life = Life(event.task_id, event.nesting, event.generation, event.queue)
        if event.outcome == Outcome.REDRIVEN:
            self.lives.pop(life._replace(generation=event.generation - 1), None)
        seen = self.lives.get(life)
        if seen is not None and seen.seen_ms >= event.at_ms:
            return
        place = _place_after(event)
        if place is None:
            self.lives.pop(life, None)
        else:
            due_ms = event.due_ms if place == DELAYED else None
            self.lives[life] = Sight(place, event.task, due_ms, event.worker if place == UNACKED else "", event.at_ms)

    def rows(self, *, redact: bool = False) -> Iterator[dict[str, Any]]:
        """The rows that the books read; `redact` leaves out the messages of exceptions."""
        hidden = {"message": None} if redact else {}
        for life, sight in self.lives.items():
            yield {**life._asdict(), **sight._asdict(), **hidden}

    def counts(self) -> dict[str, int]:
        """How many lives are in each place."""
        counts = dict.fromkeys((QUEUE, UNACKED, DELAYED, DEAD_LETTER), 0)
        for sight in self.lives.values():
            counts[sight.place] += 1
        return counts


def _message_of(failure: Mapping[str, Any] | None) -> str | None:
    """The exception's message on one line; a client may have written any value."""
    message = None if failure is None else failure.get("message")
    return " ".join(message[: MAX_MESSAGE * 2].split())[:MAX_MESSAGE] if isinstance(message, str) else None


def _place_after(event: Event) -> str | None:
    """Where a message is after this event; None if it is gone."""
    if event.outcome == Outcome.DEAD_LETTERED:
        return DEAD_LETTER
    if event.outcome in TERMINAL:
        return None
    if event.outcome == Outcome.RECEIVED:
        return UNACKED
    return DELAYED if event.delay_ms else QUEUE
