"""Looks at dead letters on a broker where a look leaves marks: each is kept for a while, for a screen that is opened again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redelivery.middleware.ports import Capability

from ...operations.letters.reading.browse import looked

if TYPE_CHECKING:
    from redelivery.middleware.ports import Transport

    from ...operations.letters.reading.browse import Browsed


#: Dead letters of one look; queues whose look is kept, and for how many seconds; and the least between two looks into one queue.
LIMIT, QUEUES, KEPT, PAUSE = 200, 20, 900.0, 10.0


def leaves_marks(transport: Transport) -> bool:
    """Whether a look into a dead-letter queue marks its dead letters on this broker."""
    return Capability.BROWSE_LETTERS_UNMARKED not in transport.capabilities


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen, and when."""

    seen: Browsed
    at_ms: int
    taken: float


class Looks:
    """The looks of one page."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Look] = OrderedDict()
        self._lock = threading.Lock()

    def last(self, name: str) -> Look | None:
        """The last look into this queue, if it is not too old."""
        found = self._kept.get(name)
        return found if found is not None and time.monotonic() - found.taken < KEPT else None

    def look(self, transport: Transport, name: str) -> Look:
        """Look, unless the last look is only seconds old; then that one. Raises what the broker's driver raises."""
        with self._lock:
            found = self.last(name)
            if found is not None and time.monotonic() - found.taken < PAUSE:
                return found
            made = self._kept[name] = Look(looked(transport, name, LIMIT), transport.now_ms(), time.monotonic())
            self._kept.move_to_end(name)
            while len(self._kept) > QUEUES:
                self._kept.popitem(last=False)
            return made

    def forget(self, name: str) -> None:
        """Drop the look into this queue: it is out of date."""
        self._kept.pop(name, None)
