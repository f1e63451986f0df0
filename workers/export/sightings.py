"""What an inventory has seen: each life once, in the place where it was seen last. Events that tell of moves correct it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from redelivery.middleware.messages.events import TERMINAL, Event, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..letters import Contents

__all__ = ["DEAD_LETTER", "DELAYED", "QUEUE", "UNACKED", "Inventory"]

QUEUE, UNACKED, DELAYED, DEAD_LETTER = "queue", "unacked", "delayed", "dead_letter"


class Life(NamedTuple):
    """Which life a message is in."""

    task_id: str
    nesting: int
    generation: int
    queue: str


class Sight(NamedTuple):
    """Where it was seen, and when (server's ms)."""

    place: str
    task: str
    due_ms: int | None
    owner: str
    seen_ms: int


@dataclass(slots=True)
class Inventory:
    """The lives that were seen; a later sight replaces an earlier one."""

    lives: dict[Life, Sight] = field(default_factory=dict)

    def see(self, contents: Contents, queue: str, place: str, seen_ms: int, *, due_ms: int | None = None, owner: str = "") -> None:
        """A message was met. A dead letter is one wherever it is: its handler may hold it, or it waits to be handled again."""
        envelope = contents.envelope
        if envelope.is_letter:
            place, due_ms = DEAD_LETTER, None
        life = Life(contents.task_id, contents.nesting, envelope.generation, envelope.life_queue(queue))
        self.lives.pop(life, None)
        self.lives[life] = Sight(place, contents.task, due_ms, owner, seen_ms)

    def hear(self, event: Event) -> None:
        """An event tells of a move: it counts where nothing was seen after it."""
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

    def rows(self) -> Iterator[dict[str, Any]]:
        """As the books read them."""
        for life, sight in self.lives.items():
            yield {**life._asdict(), **sight._asdict()}

    def counts(self) -> dict[str, int]:
        """How many in each place."""
        counts = dict.fromkeys((QUEUE, UNACKED, DELAYED, DEAD_LETTER), 0)
        for sight in self.lives.values():
            counts[sight.place] += 1
        return counts


def _place_after(event: Event) -> str | None:
    """Where a message is after this event; None where it is nowhere any more."""
    if event.outcome == Outcome.DEAD_LETTERED:
        return DEAD_LETTER
    if event.outcome in TERMINAL:
        return None
    if event.outcome == Outcome.RECEIVED:
        return UNACKED
    return DELAYED if event.delay_ms else QUEUE
