"""The receiver: an armed channel's owner, its pending messages, and when it asks for more.

If the server pushes, the worker asks when a push wakes it, and, to be safe, after the time that the script returns. One push wakes
one worker. The script chooses it (`receive.lua`), and prefers workers with a free process. A worker that had no free process when
it last asked, and has one now, tells the server: with the acknowledgement that frees the process (`acknowledge.lua`), or by asking
again. If the server does not push, the worker polls, less often the longer nothing comes.

Under load, while the pool already has its next tasks, the worker waits up to 20 ms for free slots, so that it does not ask for each
single message.
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

#: Seconds between two polls: at first, and at most.
FIRST_POLL, MAX_POLL = 0.01, 1.0
#: Seconds to wait for free slots.
REST = 0.02


class Receiver:
    """The state of an armed channel. To ask is to call `receive.lua`. `processes` returns how many tasks the pool runs at once."""

    def __init__(
        self, owner: Owner, limit: Callable[[], int], processes: Callable[[], int], on_garbage: Callable[[Held, Exception], None]
    ) -> None:
        self.owner = owner
        self.limit = limit
        self.processes = processes
        self.on_garbage = on_garbage
        #: The owner's token in the last call of the script.
        self.asked_as = ""
        self.script = Script("receive")
        self.pending: deque[Held] = deque()
        self.handed_over = 0
        self.was_cut_short = False
        self.queues: list[str] = []
        #: The lists that this worker watches.
        self.watched: frozenset[bytes] = frozenset()
        #: The keys whose next change the server will report.
        self.tracked: frozenset[bytes] = frozenset()
        #: The key by which other workers wake this one.
        self.wake_key = b""
        #: The lists of the only queue that it waits for: if its own key wakes it, it watches them without asking first.
        self.waits_for: frozenset[bytes] = frozenset()
        #: The keys of that wait: `received`, `watch`, `idle`, and the lists.
        self.place: tuple[str, ...] = ()
        #: The commands whose answers are awaited, in their order.
        self.under_way: deque[str] = deque()
        self.names: dict[tuple[tuple[str, ...], str], tuple[list[str], list[str]]] = {}
        self.is_tracking = True
        self._ask_at = 0.0
        self._poll = FIRST_POLL
        self._rest_until: float | None = None
        self.is_woken = True
        #: Whether it had no free process when it last asked.
        self._was_busy = False
        #: The number of the call after which the server was told of a free process.
        self._is_free_since: int | None = None

    def seconds_to_wait(self) -> float:
        if self._was_busy and self._is_free_since != self.owner.calls and self.free() > 0:
            return 0.0
        return max(self._ask_at - time.monotonic(), 0.0)

    def seconds_to_rest(self) -> float:
        """Seconds to wait for more free slots; 0 after a push, or if the worker holds at most two messages for each process."""
        if self.is_woken or len(self.owner.held) <= 2 * self.processes():
            self._rest_until = None
            return 0.0
        now = time.monotonic()
        if self._rest_until is None:
            self._rest_until = now + REST
            return REST
        return max(self._rest_until - now, 0.0)

    def pushed(self, push: list[Any]) -> None:
        """Handle a push: keys that this connection looked at have changed. Ask now, if one of them wakes this worker."""
        changed = frozenset(self.tracked if push[1] is None else push[1])
        self.tracked -= changed
        if self.wake_key in changed and self.waits_for:
            self.watched, self.waits_for = self.waits_for, frozenset()
        elif self.wake_key in changed or not self.watched.isdisjoint(changed):
            self.wake()

    def connected(self) -> None:
        """Reset for a new connection: no answer is awaited, and the server reports no changes yet."""
        self.under_way.clear()
        self.waits_for = frozenset()
        self.tracked = frozenset()
        self.wake()

    def must_look(self) -> bool:
        """Whether it watches lists whose changes the server would not report."""
        return self.is_tracking and not self.watched <= self.tracked

    def wake(self) -> None:
        self._ask_at = 0.0
        self.is_woken = True

    def asked(self) -> None:
        """Note that the script was called, and forget what was known since the call before."""
        self._rest_until, self.is_woken, self._was_busy, self._is_free_since = None, False, False, None

    def free(self) -> int:
        """How many processes of the pool are idle."""
        return max(self.processes() - len(self.owner.held), 0)

    def must_hand_on(self) -> bool:
        """Whether it must ask even without room, because it was woken: the script then wakes another worker."""
        return self.is_woken and self.is_tracking

    def waits(self, look_ms: int) -> None:
        """Wait until it is woken, or for `look_ms`, because there are no more messages. Nothing if it was woken since it asked.

        If `look_ms` is negative, it also asks when a process of its pool is free again.
        """
        if not self.is_woken:
            self._was_busy = look_ms < 0
            self._ask_in(abs(look_ms) / 1000)

    def place_of(self, tag: str) -> tuple[tuple[str, ...], str]:
        """The keys of this worker's wait and the number of its last call, for the script that ends this message. For any thread.

        Empty unless the worker waits as a busy one, holds this message, and has a free process when the message ends.
        """
        owner = self.owner
        number, place = owner.calls, self.place
        if not (self._was_busy and self.waits_for and tag in owner.held and len(owner.held) <= self.processes()):
            return (), ""
        return place, str(number)

    def waits_as_free(self, number: int) -> None:
        """Note that the server was told of a free process after the call `number`. For any thread."""
        self._is_free_since = number

    def leaves(self) -> None:
        """Note that a consumer is gone: a woken worker asks, and does not watch the queue that it waits for."""
        self.waits_for = frozenset()

    def polls(self) -> None:
        """Choose when to poll next, if nothing came and the server does not push."""
        if not self.is_woken:
            self._ask_in(self._poll)
            self._poll = min(self._poll * 2, MAX_POLL)

    def _ask_in(self, seconds: float) -> None:
        self._ask_at = time.monotonic() + seconds * random.uniform(0.8, 1.0)  # noqa: S311 - it only spreads the calls

    def found(self) -> None:
        """Ask as soon as there is room, because there may be more messages."""
        self._ask_at, self._poll = 0.0, FIRST_POLL

    def hold_off(self, seconds: float) -> None:
        self._ask_at = time.monotonic() + seconds
