"""The receiver: what an armed channel knows of its receiving: whose messages they are, what is in line, and when to ask next.

Where the server pushes, it asks when it is woken, and every five seconds to be safe. Where this owner was not armed (enough others
are), it asks once a second. Where the server does not push at all, it polls, the less often the longer there is nothing.

Under load there is always more to receive: while its pool has its next tasks already, it waits up to 20 ms for free slots, rather
than ask for every single message.
"""

from __future__ import annotations

import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from .scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ports import Held
    from .owner import Owner

#: Seconds between two askings.
SAFETY_NET = 5.0
UNARMED = 1.0
FIRST_POLL, MAX_POLL = 0.01, 1.0
#: How long it waits for free slots (seconds).
REST = 0.02


class Receiver:
    """What an armed channel knows of its receiving: whose it is, and when to ask next."""

    def __init__(
        self,
        owner: Owner,
        limit: Callable[[], int],
        enough: Callable[[], int],
        on_garbage: Callable[[Held, Exception], None],
    ) -> None:
        self.owner = owner
        self.limit = limit
        self.enough = enough
        self.on_garbage = on_garbage
        #: The owner's token when the call that is under way was made.
        self.asked_as = ""
        self.script = Script("receive")
        self.pending: deque[Held] = deque()
        self.handed_over = 0
        self.was_cut_short = False
        self.queues: list[str] = []
        self.lists: frozenset[bytes] = frozenset()
        self.names: dict[tuple[tuple[str, ...], str], tuple[list[str], list[str]]] = {}
        self.is_tracking = True
        self._ask_at = 0.0
        self._poll = FIRST_POLL
        self._rest_until: float | None = None
        self.is_woken = True

    def seconds_to_wait(self) -> float:
        """Until the next asking is due; 0 where it is due now."""
        return max(self._ask_at - time.monotonic(), 0.0)

    def seconds_to_rest(self) -> float:
        """How much longer to wait for free slots; 0 where nothing is gained by it, or something was pushed.

        `enough` is what this worker can hold and still have its next tasks at hand.
        """
        if self.is_woken or len(self.owner.held) <= self.enough():
            self._rest_until = None
            return 0.0
        now = time.monotonic()
        if self._rest_until is None:
            self._rest_until = now + REST
            return REST
        return max(self._rest_until - now, 0.0)

    def pushed(self, push: list[Any]) -> None:
        """The server says that keys changed which the last askings looked at: ask now, where a list of ours is among them.

        The other keys that the script looks at (leases, above all) change once a second with every worker of the fleet.
        """
        changed = push[1]
        if changed is None or not self.lists.isdisjoint(changed):
            self.wake()

    def wake(self) -> None:
        """Something changed: ask now."""
        self._ask_at = 0.0
        self.is_woken = True

    def asked(self) -> None:
        """An asking is under way: the next one is another."""
        self._rest_until, self.is_woken = None, False

    def spare(self) -> int:
        """How many messages this worker can take and still be at hand for the next one: armed with the same asking."""
        return max(self.enough() - len(self.owner.held), 0)

    def found_nothing(self, *, is_armed: bool) -> None:
        """Nothing, or nothing more: choose when to ask next; at once where something has changed since it was asked."""
        if self.is_woken:
            return
        if is_armed and self.is_tracking:
            wait = SAFETY_NET
        elif self.is_tracking:
            wait = UNARMED
        else:
            wait = self._poll
            self._poll = min(self._poll * 2, MAX_POLL)
        self._ask_at = time.monotonic() + wait * random.uniform(0.8, 1.0)  # noqa: S311 - spreads askings, keeps no secret

    def found(self) -> None:
        """There may be more: ask as soon as there is room."""
        self._ask_at, self._poll = 0.0, FIRST_POLL

    def hold_off(self, seconds: float) -> None:
        """The server refused: leave it alone for a while."""
        self._ask_at = time.monotonic() + seconds
