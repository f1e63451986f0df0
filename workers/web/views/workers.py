"""Workers: which hold a lease, since when, what each of them runs, and what it has fetched ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...operations.fleet.holders import holders
from ..asked import Shown
from ..shared.looks import leaves_marks

if TYPE_CHECKING:
    from ..asked import Asked

#: Messages that are looked at, and how many of them are named for each worker.
LOOKED_AT, NAMED = 5_000, 20


def workers(asked: Asked) -> Shown:
    """The workers of the app's broker."""
    if leaves_marks(asked.transport):
        consumers = asked.desk.sampler.figures().by("queue_consumers", "queue")
        return Shown("workers.html", {"is_here": False, "consumers": consumers, "found": None, "named": NAMED})
    asked.head_first(is_reached=False)  # a worker may take its time to answer
    found = holders(asked.runtime, most=LOOKED_AT, named=NAMED, living=asked.desk.sampler.living)
    return Shown("workers.html", {"is_here": True, "consumers": {}, "found": found, "named": NAMED})
