"""The receiver: the state of an armed channel's receiving: its owner, the pending messages, and when to ask next.

If the server pushes, the worker asks when a push wakes it, and again after the time that the script returns, to be safe. One push
wakes one worker: the script decides which (`receive.lua`), and prefers workers with a free process. If a worker had no free process
when it last asked, and has one now, it tells the server: with the acknowledgement that frees the process (`acknowledge.lua`), or by
asking again. If the server does not push at all, the worker polls, less often the longer nothing comes.

Under load there is always more to receive: while the pool already has its next tasks, the worker waits up to 20 ms for free slots,
so that it does not ask for every single message.
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
#: How long to wait for free slots (seconds).
REST = 0.02


class Receiver:
    """The state of an armed channel's receiving. To ask is to call the script `receive.lua`."""

    def __init__(
        self,
        owner: Owner,
        limit: Callable[[], int],
        processes: Callable[[], int],
        on_garbage: Callable[[Held, Exception], None],
    ) -> None:
        self.owner = owner
        self.limit = limit
        #: How many tasks the worker's pool runs at once.
        self.processes = processes
        self.on_garbage = on_garbage
        #: The owner's token when the call that is under way was made.
        self.asked_as = ""
        self.script = Script("receive")
        self.pending: deque[Held] = deque()
        self.handed_over = 0
        self.was_cut_short = False
        self.queues: list[str] = []
        #: The lists that this worker watches; the keys of which the server will report the next change; and the key by which other
        #: workers wake this one.
        self.watched: frozenset[bytes] = frozenset()
        self.told_of: frozenset[bytes] = frozenset()
        self.own = b""
        #: The lists of the one queue that it waits for: if its own key wakes it, it watches them without asking first.
        self.waits_for: frozenset[bytes] = frozenset()
        #: While it waits for one queue, the keys of that wait: `received`, `watch`, `idle`, and the lists.
        self.place: tuple[str, ...] = ()
        #: The commands whose answers are under way, in their order.
        self.under_way: deque[str] = deque()
        self.names: dict[tuple[tuple[str, ...], str], tuple[list[str], list[str]]] = {}
        self.is_tracking = True
        self._ask_at = 0.0
        self._poll = FIRST_POLL
        self._rest_until: float | None = None
        self.is_woken = True
        #: Whether it had no free process when it last asked; the number of the call since which the server knows of a free one.
        self._was_busy = False
        self._is_free_since: int | None = None

    def seconds_to_wait(self) -> float:
        """The seconds until it must ask again; 0 if it must ask now."""
        if self._was_busy and self._is_free_since != self.owner.calls and self.free() > 0:
            return 0.0
        return max(self._ask_at - time.monotonic(), 0.0)

    def seconds_to_rest(self) -> float:
        """How much longer to wait for free slots; 0 if that gains nothing, or a push has come.

        The wait gains something only if the worker holds more than twice as many messages as it runs at once.
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
        """Handle a push: keys that this connection has looked at have changed. Ask now, if one of them wakes this worker."""
        changed = frozenset(self.told_of if push[1] is None else push[1])
        self.told_of -= changed
        if self.own in changed and self.waits_for:
            self.watched, self.waits_for = self.waits_for, frozenset()
        elif self.own in changed or not self.watched.isdisjoint(changed):
            self.wake()

    def connected(self) -> None:
        """Reset for a new connection: no answer is under way, and the server reports no changes yet."""
        self.under_way.clear()
        self.waits_for = frozenset()
        self.told_of = frozenset()
        self.wake()

    def must_look(self) -> bool:
        """Whether it watches lists whose changes the server would not report."""
        return self.is_tracking and not self.watched <= self.told_of

    def wake(self) -> None:
        """Ask now: something has changed."""
        self._ask_at = 0.0
        self.is_woken = True

    def asked(self) -> None:
        """Note that the script was called: forget what was known since the call before."""
        self._rest_until, self.is_woken, self._was_busy, self._is_free_since = None, False, False, None

    def free(self) -> int:
        """How many processes of the pool are idle."""
        return max(self.processes() - len(self.owner.held), 0)

    def must_hand_on(self) -> bool:
        """Whether it was woken: if it has no room, it must ask all the same, so that the script wakes another worker."""
        return self.is_woken and self.is_tracking

    def waits(self, look_ms: int) -> None:
        """Wait, because there are no more messages: until it is woken, or for `look_ms`; not at all if it was woken since it asked.

        If `look_ms` is below zero, it also asks when a process of its pool is free again.
        """
        if not self.is_woken:
            self._was_busy = look_ms < 0
            self._ask_in(abs(look_ms) / 1000)

    def place_of(self, tag: str) -> tuple[tuple[str, ...], str]:
        """The keys of this worker's wait, and the number of its last call, for the script that ends this message; for any thread.

        Empty if the worker does not wait as a busy one, or does not hold this message, or its end frees no process.
        """
        owner = self.owner
        number, place = owner.calls, self.place
        if not (self._was_busy and self.waits_for and tag in owner.held and len(owner.held) <= self.processes()):
            return (), ""
        return place, str(number)

    def waits_as_free(self, number: int) -> None:
        """Note that the server knows of a free process; `number` is the call after which there was none. For any thread."""
        self._is_free_since = number

    def leaves(self) -> None:
        """Note that a consumer is gone: the worker must not be woken for the queue that it waits for."""
        self.waits_for = frozenset()

    def polls(self) -> None:
        """Choose when to ask next, if nothing came and the server does not push; now if something has changed since it asked."""
        if not self.is_woken:
            self._ask_in(self._poll)
            self._poll = min(self._poll * 2, MAX_POLL)

    def _ask_in(self, seconds: float) -> None:
        self._ask_at = time.monotonic() + seconds * random.uniform(0.8, 1.0)  # noqa: S311 - it only spreads the calls

    def found(self) -> None:
        """Ask as soon as there is room, because there may be more."""
        self._ask_at, self._poll = 0.0, FIRST_POLL

    def hold_off(self, seconds: float) -> None:
        """Do not ask for a while, because the server refused."""
        self._ask_at = time.monotonic() + seconds
