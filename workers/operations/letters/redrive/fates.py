"""The fates of the dead letters that a redrive sent: which of them have ended since, and which died again.

On Redis the outcome log is read on from where it stood when the redrive began. An export takes events out of the log, and may be
faster; so the newest letters of the dead-letter queue are looked at besides. On RabbitMQ a queue of its own, behind the log's
exchange, hears what is recorded, and no letter is looked at.

Limits: a success that an export took away unread counts as not seen. What died into another dead-letter queue, or was discarded, is
known by the log alone. Each life that was opened takes some hundred bytes of memory.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redelivery.middleware.messages.events import TERMINAL, Event, Outcome

from ....brokers.broker import broker_of, needed
from ....ports import Life

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ....ports import Transitions

#: Outcomes of a life that ended as a dead one.
DIED = frozenset({Outcome.DEAD_LETTERED, Outcome.DISCARDED, Outcome.EXPIRED})


@dataclass(slots=True)
class Fates:
    """What is known of the lives that were opened: the last event of each in `last`, and, of those that died again, in `died`.

    `heard` waits at the most as long as it is told (seconds) for what was recorded since it was last asked.
    """

    heard: Callable[[float], Iterable[Event]]
    last: dict[Life, Event] = field(default_factory=dict)
    died: dict[Life, Event] = field(default_factory=dict)
    died_before: int = 0

    def sent(self, event: Event) -> None:
        """A letter went back: `event` opened its life."""
        self.last[_life(event)] = event

    def look(self, seconds: float = 0.0) -> None:
        """Hear what was recorded since the last look. Raises what the broker raises."""
        for event in self.heard(seconds):
            life = _life(event)
            before = self.last.get(life)
            if before is None:
                continue
            if before.outcome not in TERMINAL:
                self.last[life] = event
            if event.outcome in DIED:
                self.died.setdefault(life, event)

    @property
    def deaths(self) -> int:
        """How many letters died again, those that another process heard of among them."""
        return self.died_before + len(self.died)

    @property
    def ended(self) -> list[Life]:
        """The lives that have ended."""
        return [life for life, event in self.last.items() if event.outcome in TERMINAL]

    def forget(self, lives: Iterable[Life]) -> None:
        """Keep the last words about these lives no longer; that they died is kept."""
        for life in lives:
            del self.last[life]

    @property
    def open(self) -> list[Event]:
        """The last events of the lives that have not ended."""
        return [event for event in self.last.values() if event.outcome not in TERMINAL]


def _life(event: Event) -> Life:
    return Life(event.task_id, event.generation, event.queue)


@contextmanager
def watched(transport: Transitions, name: str, *, since_ms: int | None = None) -> Iterator[Fates]:
    """Fates of letters of the dead-letter queue `name`, heard of from now on. Raises what the broker raises.

    From `since_ms` on (the broker's time) where the log can be read back: so another process goes on with what one has begun.
    """
    with needed(broker_of(transport).outcomes).hear(name, since_ms=since_ms) as heard:
        yield Fates(heard)
