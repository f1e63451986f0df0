"""`redelivery leave` in a run: at times all workers are killed at once, and `leave` is killed while it hands messages back.

The next `leave` goes on, and so do the workers when they are started again: messages that were handed back wait once more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from tests.faults.chaos.run.faults import LEASE
from tests.faults.chaos.run.turns import TIMEOUT

if TYPE_CHECKING:
    from tests.faults.chaos.plans.plan import Plan
    from tests.faults.chaos.processes.fleet import Fleet

__all__ = ["Leaving"]

#: How many messages must have a long delay before the fleet is stopped, and seconds between two such times.
ENOUGH, PAUSE = 6, 10.0


class Leaving:
    """Keeps the fleet stopped (`is_on`) while `leave` has messages to hand back."""

    def __init__(self, fleet: Fleet, plan: Plan) -> None:
        self.is_on = False
        self._fleet, self._plan = fleet, plan
        self._next = time.monotonic() + PAUSE

    def turn(self) -> None:
        """Begin, kill the next `leave`, or end. Raises nothing if the broker is away: the next turn asks again."""
        try:
            if not self.is_on:
                self._begin()
            elif (running := self._fleet.alive("leave")) is not None:
                if running.age > TIMEOUT:
                    self._fleet.slay(running, "at_random")
            elif self._plan.left("leave") and self._fleet.delayed(1):
                self._fleet.start("leave", ["redelivery", "leave", "--yes"], self._plan.next("leave"), slot="leave")
            else:
                self.end()
        except RedisError:
            return

    def end(self) -> None:
        """Let the workers start again."""
        self.is_on, self._next = False, time.monotonic() + PAUSE

    def needs_messages(self) -> bool:
        """Whether producers should publish messages with a long delay."""
        return bool(self._plan.left("leave")) and not self.is_on and time.monotonic() >= self._next

    def _begin(self) -> None:
        if not self.needs_messages() or self._fleet.delayed(LEASE * 2) < ENOUGH:
            return
        self.is_on = True
        for worker in self._fleet.workers():
            self._fleet.slay(worker, "all_at_once")
