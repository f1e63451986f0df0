"""The plan: which process dies where, so that every boundary is reached often enough while a message is in hand.

A seed makes the orders repeatable, but not the run, because real processes and a real broker answer in their own time.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from tests.faults.chaos.boundary import Order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["BOUNDARIES", "FILE", "Plan", "around"]


def around(*steps: str) -> tuple[str, ...]:
    """Both boundaries of each step."""
    return tuple(f"{step}.{side}" for step in steps for side in ("before", "after"))


#: A file is written as a whole, and named when its bytes are on the disk; afterwards only the report is left.
FILE = ("write.before", "name.before", "write.after")
#: Nobody waits for the answers to these, in a worker with an event loop. A group waits for a batch's when its next one is complete.
UNDER_WAY = ("acknowledge.asked", "defer.asked")
#: Which roles can be killed where. The steps of a pool child are in `child`; commands are killed in their main steps.
BOUNDARIES: dict[str, tuple[str, ...]] = {
    "worker": (
        *around("receive", "hand_over", "acknowledge", "defer", "dead_letter", "start", "accept", "release"),
        *around("register", "unregister", "renew", "extend", "fence", "recover", "bind"),
        *around("evict", "forget", "bound", "lead", "purge", "watch", "cancel"),
        *UNDER_WAY,
        *FILE,
    ),
    "child": (*around("run", "publish", "publish_within"), *FILE),
    "dispatcher": around("promote", "lead", "resign"),
    "producer": (*around("publish", "publish_within", "publish_batch"), "publish_batch.asked"),
    "redrive": around("redrive"),
    "purge": (*around("purge"), *FILE),
    "move": around("move"),
    "archivist": FILE,
    "cancel": around("cancel"),
    "reschedule": around("reschedule"),
    "exporter": (*around("exported", "lead"), *FILE),
    "inventory": FILE,
    "leave": around("hand_back"),
}
#: Steps that a long-running process reaches often: it dies at one of the first few.
GOING_ON = {"worker", "producer"}
FREQUENT = {"receive", "acknowledge", "defer", "hand_over", "publish", "run", "record", "announce"}


class Plan:
    """Which boundaries must still be hit. They are named `<role>:<boundary>`; `wanted` is how often each must be hit."""

    def __init__(
        self,
        seed: int,
        wanted: int,
        only: Iterable[str] | None = None,
        boundaries: Mapping[str, tuple[str, ...]] = BOUNDARIES,
    ) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a scenario, no secret
        names = [f"{role}:{each}" for role, its in boundaries.items() for each in its]
        self.wanted = {name: wanted for name in names if only is None or name in set(only)}
        self.hits: Counter[str] = Counter()
        self.given: Counter[str] = Counter()

    def next(self, role: str) -> Order | None:
        """An order for a process of this role: the missing boundary that was ordered least often; None if none is missing."""
        missing = [name for name in self.missing if name.startswith(f"{role}:")]
        if not missing:
            return None
        fewest = min(self.given[name] for name in missing)
        name = self.chance.choice([name for name in missing if self.given[name] == fewest])
        self.given[name] += 1
        boundary = name.partition(":")[2]
        frequent = role in GOING_ON and boundary.partition(".")[0] in FREQUENT
        return Order(boundary, self.chance.randint(1, 6) if frequent else 1)

    def left(self, role: str) -> int:
        """How many hits are missing at this role's boundaries."""
        return sum(max(wanted - self.hits[name], 0) for name, wanted in self.wanted.items() if name.startswith(f"{role}:"))

    def lacks(self, *boundaries: str) -> bool:
        """Whether one of these boundaries needs more hits; the name of a step stands for both its boundaries."""
        return any(name.startswith(boundaries) for name in self.missing)

    def hit(self, role: str, boundary: str) -> None:
        """A process has died there."""
        self.hits[f"{role}:{boundary}"] += 1

    @property
    def missing(self) -> list[str]:
        """The boundaries that have not been hit often enough."""
        return sorted(name for name, wanted in self.wanted.items() if self.hits[name] < wanted)
