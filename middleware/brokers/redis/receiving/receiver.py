"""The receiver: what an armed channel knows of its receiving: whose messages they are, what is in line, and when to ask next.

Where the server pushes, it asks when it is woken, and again after as long as the script says, to be safe. One push wakes one
worker: the script says which (`receive.lua`), and those that have a process free come first. A worker that had none when it last
asked lets the server know when it has one: with the acknowledgement that frees it (`acknowledge.lua`), or it asks again. Where the
server does not push at all, it polls, the less often the longer there is nothing.

Under load there is always more to receive: while its pool has its next tasks already, it waits up to 20 ms for free slots, rather
than ask for every single message.
"""

from __future__ import annotations

import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ..scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....ports import Held
    from .owner import Owner

#: Seconds between two polls.
FIRST_POLL, MAX_POLL = 0.01, 1.0
#: How long it waits for free slots (seconds).
REST = 0.02


class Receiver:
    """What an armed channel knows of its receiving: whose it is, and when to ask next."""

    def __init__(
        self,
        owner: Owner,
        limit: Callable[[], int],
        processes: Callable[[], int],
        on_garbage: Callable[[Held, Exception], None],
    ) -> None:
        self.owner = owner
        self.limit = limit
        #: How many tasks its pool runs at once.
        self.processes = processes
        self.on_garbage = on_garbage
        #: The owner's token when the call that is under way was made.
        self.asked_as = ""
        self.script = Script("receive")
        self.pending: deque[Held] = deque()
        self.handed_over = 0
        self.was_cut_short = False
        self.queues: list[str] = []
        #: The lists that it watches; what the server tells of, once, when it changes; and the key that others wake it by.
        self.watched: frozenset[bytes] = frozenset()
        self.told_of: frozenset[bytes] = frozenset()
        self.own = b""
        #: The lists of the one queue that it waits for: it watches them when it is woken by its own key, and need not ask first.
        self.waits_for: frozenset[bytes] = frozenset()
        #: While it waits for one queue, the keys by which the server knows that: `received`, `watch`, `idle`, and the lists.
        self.place: tuple[str, ...] = ()
        #: Of which commands the answers are under way, in their order.
        self.under_way: deque[str] = deque()
        self.names: dict[tuple[tuple[str, ...], str], tuple[list[str], list[str]]] = {}
        self.is_tracking = True
        self._ask_at = 0.0
        self._poll = FIRST_POLL
        self._rest_until: float | None = None
        self.is_woken = True
        #: It had no process free when it last asked; and the number of an asking after which the server knows that it has one.
        self._was_busy = False
        self._is_free_since: int | None = None

    def seconds_to_wait(self) -> float:
        """Until the next asking is due; 0 where it is due now."""
        if self._was_busy and self._is_free_since != self.owner.calls and self.free() > 0:
            return 0.0
        return max(self._ask_at - time.monotonic(), 0.0)

    def seconds_to_rest(self) -> float:
        """How much longer to wait for free slots; 0 where nothing is gained by it, or something was pushed.

        Twice as many as it runs at once is what a worker can hold and still have its next tasks at hand.
        """
        if self.is_woken or len(self.owner.held) <= 2 * self.processes():
            self._rest_until = None
            return 0.0
        now = time.monotonic()
        if self._rest_until is None:
            self._rest_until = now + REST
            return REST
        return max(self._rest_until - now, 0.0)

    def pushed(self, push: list[Any]) -> None:
        """The server says that keys changed which this connection has looked at: ask now, where one that wakes us is among them."""
        changed = frozenset(self.told_of if push[1] is None else push[1])
        self.told_of -= changed
        if self.own in changed and self.waits_for:
            self.watched, self.waits_for = self.waits_for, frozenset()
        elif self.own in changed or not self.watched.isdisjoint(changed):
            self.wake()

    def connected(self) -> None:
        """The connection is a new one: nothing is under way, and the server tells of nothing yet."""
        self.under_way.clear()
        self.waits_for = frozenset()
        self.told_of = frozenset()
        self.wake()

    def must_look(self) -> bool:
        """Whether it watches lists that the server would not tell of."""
        return self.is_tracking and not self.watched <= self.told_of

    def wake(self) -> None:
        """Something changed: ask now."""
        self._ask_at = 0.0
        self.is_woken = True

    def asked(self) -> None:
        """An asking is under way: the next one is another."""
        self._rest_until, self.is_woken, self._was_busy, self._is_free_since = None, False, False, None

    def free(self) -> int:
        """How many processes of the pool have nothing to do."""
        return max(self.processes() - len(self.owner.held), 0)

    def must_hand_on(self) -> bool:
        """Whether it was woken, so that another must be where it has no room."""
        return self.is_woken and self.is_tracking

    def waits(self, look_ms: int) -> None:
        """Nothing, or nothing more: it is woken, or looks again after so long; at once where something has changed since it asked.

        Below zero: also when a process of its pool is free again.
        """
        if not self.is_woken:
            self._was_busy = look_ms < 0
            self._ask_in(abs(look_ms) / 1000)

    def place_of(self, tag: str) -> tuple[tuple[str, ...], str]:
        """Where this worker waits, and the number of its last asking, for the step that ends this message; any thread may ask.

        Nothing where the worker does not wait as a busy one, or does not hold this message, or the step frees no process.
        """
        owner = self.owner
        number, place = owner.calls, self.place
        if not (self._was_busy and self.waits_for and tag in owner.held and len(owner.held) <= self.processes()):
            return (), ""
        return place, str(number)

    def waits_as_free(self, number: int) -> None:
        """The server knows that a process is free; `number` is that of the asking after which none was. Any thread may say so."""
        self._is_free_since = number

    def leaves(self) -> None:
        """It consumes a queue less, or none, and is no longer to be woken for what it waits for."""
        self.waits_for = frozenset()

    def polls(self) -> None:
        """Nothing, and the server does not push: choose when to ask next; at once where something has changed since it asked."""
        if not self.is_woken:
            self._ask_in(self._poll)
            self._poll = min(self._poll * 2, MAX_POLL)

    def _ask_in(self, seconds: float) -> None:
        self._ask_at = time.monotonic() + seconds * random.uniform(0.8, 1.0)  # noqa: S311 - spreads askings, keeps no secret

    def found(self) -> None:
        """There may be more: ask as soon as there is room."""
        self._ask_at, self._poll = 0.0, FIRST_POLL

    def hold_off(self, seconds: float) -> None:
        """The server refused: leave it alone for a while."""
        self._ask_at = time.monotonic() + seconds
