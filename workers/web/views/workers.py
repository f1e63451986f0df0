"""Workers: which hold a lease, since when, which tasks each runs, and which messages it has prefetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...operations.fleet.holders import holders
from ..asked import Shown
from ..shared.looks import leaves_marks

if TYPE_CHECKING:
    from ..asked import Asked

#: The maximum number of messages that are read, and that are named for each worker.
LOOKED_AT, NAMED = 5_000, 20


def workers(asked: Asked) -> Shown:
    """Show the workers."""
    if leaves_marks(asked.transport):
        consumers = asked.desk.sampler.figures().by("queue_consumers", "queue")
        return Shown("workers.html", {"is_here": False, "consumers": consumers, "found": None, "named": NAMED})
    asked.head_first(is_reached=False)  # a worker may answer slowly
    found = holders(asked.runtime, most=LOOKED_AT, named=NAMED, living=asked.desk.sampler.living)
    return Shown("workers.html", {"is_here": True, "consumers": {}, "found": found, "named": NAMED})
