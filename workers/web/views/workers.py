"""Workers: which hold a lease, since when, which tasks each runs, and which messages it has prefetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...operations.fleet.holders import holders
from ..screen import Screen
from ..shared.looks import leaves_marks

if TYPE_CHECKING:
    from ..screen import Visit

#: The maximum number of messages that are read, and that are named for each worker.
LOOKED_AT, NAMED = 5_000, 20


def workers(visit: Visit) -> Screen:
    """Show the workers."""
    if leaves_marks(visit.transport):
        consumers = visit.services.sampler.figures().by("queue_consumers", "queue")
        return Screen("workers.html", {"is_here": False, "consumers": consumers, "found": None, "named": NAMED})
    visit.head_first(is_reached=False)  # a worker may answer slowly
    found = holders(visit.runtime, most=LOOKED_AT, named=NAMED, living=visit.services.sampler.living)
    return Screen("workers.html", {"is_here": True, "consumers": {}, "found": found, "named": NAMED})
