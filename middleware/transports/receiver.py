"""The receiver: what an armed channel knows of its receiving: whose messages they are, what is in line, and when to ask next.

Where the server pushes, it asks when it is woken, and every five seconds to be safe. Where this owner was not armed (enough others
are), it asks once a second. Where the server does not push at all, it polls, the less often the longer there is nothing.
"""

from __future__ import annotations

import random
import time
from collections import deque
from typing import TYPE_CHECKING

from redelivery.middleware.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.owner import Owner
    from redelivery.middleware.transports.base import Held

__all__ = ["FIRST_POLL", "LONGEST_POLL", "SAFETY_NET", "Receiver"]

#: Seconds between two askings.
SAFETY_NET = 5.0
UNARMED = 1.0
FIRST_POLL, LONGEST_POLL = 0.01, 1.0


class Receiver:
    """What an armed channel knows of its receiving: whose it is, and when to ask next."""

    def __init__(self, owner: Owner, limit: Callable[[], int], on_garbage: Callable[[Held, Exception], None]) -> None:
        self.owner = owner
        self.limit = limit
        self.on_garbage = on_garbage
        self.script = Script("receive")
        self.pending: deque[Held] = deque()
        self.queues: list[str] = []
        self.names: dict[tuple[tuple[str, ...], str], tuple[list[str], list[str]]] = {}
        self.is_tracking = True
        self._ask_at = 0.0
        self._poll = FIRST_POLL

    def seconds_to_wait(self) -> float:
        """Until the next asking is due; 0 where it is due now."""
        return max(self._ask_at - time.monotonic(), 0.0)

    def wake(self, _push: object = None) -> None:
        """Something changed: ask now."""
        self._ask_at = 0.0

    def found_nothing(self, *, is_armed: bool) -> None:
        """Choose when to ask next."""
        if is_armed and self.is_tracking:
            wait = SAFETY_NET
        elif self.is_tracking:
            wait = UNARMED
        else:
            wait = self._poll
            self._poll = min(self._poll * 2, LONGEST_POLL)
        self._ask_at = time.monotonic() + wait * random.uniform(0.8, 1.0)  # noqa: S311 - spreads askings, keeps no secret

    def found(self) -> None:
        """There may be more: ask as soon as there is room."""
        self._ask_at, self._poll = 0.0, FIRST_POLL

    def hold_off(self, seconds: float) -> None:
        """The server refused: leave it alone for a while."""
        self._ask_at = time.monotonic() + seconds
