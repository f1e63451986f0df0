"""Follows the dead letters that a redrive sent: which of them have ended since, and which died again.

On Redis the outcome log is read from the redrive's beginning on. An export may take events out of the log first, so the newest
letters of the dead-letter queue are read, too. On RabbitMQ a separate queue, bound to the log's exchange, receives the events.

Limits: a success that was exported first is not seen. If a letter dies into another dead-letter queue, or is discarded, only the
log shows it. Memory: some hundred bytes for each life that was opened.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redelivery.middleware.messages.events import TERMINAL, Event, Outcome

from ....brokers.broker import broker_of
from ....ports import Life

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from redelivery.middleware.ports import Transport

#: Outcomes that count as died again.
DIED = frozenset({Outcome.DEAD_LETTERED, Outcome.DISCARDED, Outcome.EXPIRED})


@dataclass(slots=True)
class Fates:
    """The lives that the redrive opened: `last` has the last event of each, `died` the deaths of letters that died again.

    `new_events` waits at most the given seconds, and returns the events since its last call. `died_before` is how many letters died
    again while another process carried out the redrive.
    """

    new_events: Callable[[float], Iterable[Event]]
    last: dict[Life, Event] = field(default_factory=dict)
    died: dict[Life, Event] = field(default_factory=dict)
    died_before: int = 0

    def sent(self, event: Event) -> None:
        """Add a redriven letter, whose life `event` opened."""
        self.last[_life(event)] = event

    def look(self, seconds: float = 0.0) -> None:
        """Read the events since the last call; wait for them at most `seconds`. Raises the errors of the broker's driver."""
        for event in self.new_events(seconds):
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
        """How many letters died again, including those of `died_before`."""
        return self.died_before + len(self.died)

    @property
    def ended(self) -> list[Life]:
        """The lives that have ended."""
        return [life for life, event in self.last.items() if event.outcome in TERMINAL]

    def forget(self, lives: Iterable[Life]) -> None:
        """Remove the last events of these lives; their deaths are kept in `died`."""
        for life in lives:
            del self.last[life]

    @property
    def open(self) -> list[Event]:
        """The last events of the lives that have not ended."""
        return [event for event in self.last.values() if event.outcome not in TERMINAL]


def _life(event: Event) -> Life:
    return Life(event.task_id, event.generation, event.queue)


@contextmanager
def watched(transport: Transport, name: str, *, since_ms: int | None = None) -> Iterator[Fates]:
    """Follow the letters of a dead-letter queue from now on, or from `since_ms` (the broker's time) if the log can be read back.

    `since_ms` lets a process continue another process's redrive.
    """
    with broker_of(transport).outcomes.listen(name, since_ms=since_ms) as new_events:
        yield Fates(new_events)
