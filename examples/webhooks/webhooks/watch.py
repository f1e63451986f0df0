"""The progress of a run, from the outcome events while they are recorded: how many tasks have ended, wait or died.

It only reads the broker.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from redelivery.middleware.messages.events import TERMINAL, Outcome

if TYPE_CHECKING:
    from webhooks.broker import Broker

__all__ = ["Watch"]


class Watch:
    """The events so far."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._changed = time.monotonic()
        self._last: dict[str, tuple[int, str]] = {}
        self.outcomes: Counter[str] = Counter()

    def look(self) -> None:
        """Read the new events."""
        for event in self._broker.events():
            self._changed = time.monotonic()
            self.outcomes[event.outcome] += 1
            known, outcome = self._last.get(event.task_id, (-1, ""))
            if event.generation > known or (event.generation == known and outcome not in TERMINAL):
                self._last[event.task_id] = (event.generation, event.outcome)

    @property
    def ended(self) -> int:
        """How many tasks have ended. A redriven task has not, until it ends again."""
        return sum(outcome in TERMINAL for _, outcome in self._last.values())

    @property
    def waiting(self) -> int:
        """How many wait for their redelivery."""
        return sum(outcome == Outcome.REDELIVERY_SCHEDULED for _, outcome in self._last.values())

    @property
    def dead(self) -> int:
        """How many are in a dead-letter queue."""
        return sum(outcome == Outcome.DEAD_LETTERED for _, outcome in self._last.values())

    def has_ended(self, count: int) -> bool:
        """Whether this many tasks have ended, and no copy of a message is left after a crash."""
        return self.ended >= count and not (self._broker.may_repeat and self._broker.held())

    def is_idle(self) -> bool:
        """Whether no event came for a while, and the broker has no message to deliver."""
        return time.monotonic() - self._changed > self._broker.quiet and self._broker.held() == 0
