"""Looks: on a broker where reading marks dead letters, a look reads some and keeps them for the following screens."""

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

#: Dead letters of one look; how many looks are kept, and for how many seconds; the minimum seconds between two looks at one queue.
LIMIT, QUEUES, KEPT, PAUSE = 200, 20, 900.0, 10.0


def leaves_marks(transport: Transport) -> bool:
    """Whether reading a dead letter marks it on this broker."""
    return Capability.BROWSE_LETTERS_UNMARKED not in transport.capabilities


@dataclass(frozen=True, slots=True)
class Look:
    """The dead letters of one look, and when it was."""

    seen: Browsed
    at_ms: int
    taken: float


class Looks:
    """The looks of one page."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Look] = OrderedDict()
        self._lock = threading.Lock()

    def last(self, name: str) -> Look | None:
        """The last look at this queue; None if it is too old."""
        found = self._kept.get(name)
        return found if found is not None and time.monotonic() - found.taken < KEPT else None

    def look(self, transport: Transport, name: str) -> Look:
        """Look at this queue; if the last look is only seconds old, return that one."""
        with self._lock:
            found = self.last(name)
            if found is not None and time.monotonic() - found.taken < PAUSE:
                return found
            look = self._kept[name] = Look(looked(transport, name, LIMIT), transport.now_ms(), time.monotonic())
            self._kept.move_to_end(name)
            while len(self._kept) > QUEUES:
                self._kept.popitem(last=False)
            return look

    def forget(self, name: str) -> None:
        """Drop the look at this queue, which has changed."""
        self._kept.pop(name, None)
