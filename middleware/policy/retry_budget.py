"""The retry budget of a queue (`redeliveries_per_second`): at most so many of its messages are delivered again in a second.

All workers of the queue share it, on the broker's clock: in the step in which a message leaves for its next attempt it takes the
queue's first free slot from the end of its own delay on, and is due then. So a fleet whose downstream is dead comes back to it at
that pace, however many messages have failed, while first deliveries flow on. Nothing is early, nothing is lost, and nothing takes
a slot twice.

1. *What is paced*: whatever a policy delivers again after an attempt, with a delay or at once (`redelivery_delay = 0`, `Reject`
   with requeueing), whoever chose the delay (the policy, a strategy, `RedeliverAfter`, `Task.retry`), a lost child's message and a
   dead worker's that had started. Not paced: first deliveries, ETA and countdown, what is given back uncounted, redrives (they have
   `--rate`), and what `Task.retry` publishes anew because its arguments change.
2. *How long the budget makes it wait*: as long as the slots before it are taken. That is no delay of the policy's, so
   `max_redelivery_delay` does not bound it: the fleet would come back at once just when there is most to bring back. `max_age` is
   asked with the delay alone. A message that expires before its slot takes none, and dies on time.
3. *A budget that is changed* begins with free slots: what has a slot keeps it, and what fails from then on does not wait for it.
   While workers of two budgets run, each keeps its own.
4. *A clock that goes back* finds the slots before those that are taken free: nothing waits for the old time to come again.
5. *What is asked for and what is given*: the delay in the message's history (`attempts`) is the one that was asked for; `delay_ms`
   and `due_ms` of the outcome event are those that it was given.

Limits: messages become due at the pace; that they run at it, too, takes a dispatcher that runs, and workers that are not behind.
What became due while there was none comes at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from .decision import MAX_DELAY

__all__ = ["Pace"]


@dataclass(frozen=True, slots=True)
class Pace:
    """The budget that a message takes its slot of; with `latest_ms` (the broker's clock), the time at which it expires."""

    queue: str
    per_second: float
    latest_ms: int | None = None

    @property
    def gap(self) -> str:
        """How long a slot is, in milliseconds, as the script takes it; a hundred years at most."""
        return repr(1000 * min(1 / self.per_second, MAX_DELAY))
