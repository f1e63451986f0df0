"""The plan: which process dies where, so that every boundary is come to often enough with a message in hand.

A seed makes the order repeatable; what a run makes of it is not, because real processes and a real broker answer in their own time.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from tests.chaos.boundary import Order

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BOUNDARIES", "Plan"]


def _around(*steps: str) -> tuple[str, ...]:
    return tuple(f"{step}.{side}" for step in steps for side in ("before", "after"))


#: Who can be killed where. What a worker's pool child does is in `child`; commands are killed in the steps that they are there for.
BOUNDARIES: dict[str, tuple[str, ...]] = {
    "worker": (
        *_around("receive", "acknowledge", "defer", "dead_letter", "start", "accept", "release"),
        *_around("register", "renew", "fence", "recover", "evict"),
        *("hand_over.before", "hand_over.after", "unregister.before"),
    ),
    "child": _around("run", "publish", "publish_within"),
    "dispatcher": _around("promote", "lead"),
    "producer": _around("publish"),
    "redrive": _around("redrive"),
    "purge": _around("purge"),
    "move": _around("move"),
    "cancel": _around("cancel"),
    "reschedule": _around("reschedule"),
    "exporter": _around("export_write", "exported"),
}
#: Of these there are many in the life of a process: any of the first few may be the one.
FREQUENT = {"receive", "acknowledge", "defer", "hand_over", "publish", "run"}


class Plan:
    """What is still to be hit. Boundaries are named `<role>:<boundary>`; `wanted` is how often each is to be."""

    def __init__(self, seed: int, wanted: int, only: Iterable[str] | None = None) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a scenario, no secret
        names = [f"{role}:{each}" for role, boundaries in BOUNDARIES.items() for each in boundaries]
        self.wanted = {name: wanted for name in names if only is None or name in set(only)}
        self.hits: Counter[str] = Counter()
        self.given: Counter[str] = Counter()

    def next(self, role: str, *, only_missing: bool) -> Order | None:
        """An order for a process of this role: what is missing most; with nothing missing any, or none where `only_missing`."""
        missing = {name: self.wanted[name] - self.hits[name] for name in self.wanted if name.startswith(f"{role}:")}
        if not missing or (only_missing and max(missing.values()) <= 0):
            return None
        fewest = min(self.given[name] for name in missing if missing[name] > 0 or max(missing.values()) <= 0)
        name = self.chance.choice(
            sorted(name for name in missing if self.given[name] == fewest and (missing[name] > 0 or max(missing.values()) <= 0))
        )
        self.given[name] += 1
        boundary = name.partition(":")[2]
        frequent = boundary.partition(".")[0] in FREQUENT
        return Order(boundary, self.chance.randint(1, 6) if frequent else 1)

    def hit(self, role: str, boundary: str) -> None:
        """A process has died there."""
        self.hits[f"{role}:{boundary}"] += 1

    @property
    def missing(self) -> list[str]:
        """What has not been hit often enough."""
        return sorted(name for name, wanted in self.wanted.items() if self.hits[name] < wanted)
