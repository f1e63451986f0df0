"""The searches of one page: they run one after the other, with rests that are as long as the searches.

So all of them together use at most half of the time of one client of the broker, however many people search. After a rest they run
for a second without another rest, so that a single user does not wait. Counts in the background run in pieces, which take turns in
the same way in a queue of their own: a search does not wait for them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..guard import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .asking import Turn


#: Seconds that searches may take without a rest, and that one rest may last. No search of a page takes longer, unless its broker
#: is slow because of others.
AT_ONCE, REST = 1.0, 4.0
#: Seconds that a request waits until it is the next one. With a rest and a search it must have time (`asking.SECONDS`).
WAIT = 4.0
BUSY = "The page is busy: other searches are under way, and they go one after the other. Nothing was changed; ask again."


class Searches:
    """Searches that go one after the other, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._order: deque[object] = deque()
        self._began = self._free_at = 0.0

    @contextmanager
    def one(self, turn: Turn | None = None) -> Iterator[None]:
        """One search, for this request. Raises as `begin`."""
        self.begin(turn)
        try:
            yield
        finally:
            self.end()

    def begin(self, turn: Turn | None = None) -> None:
        """Wait until this search is the next one, and until the rest has ended.

        Raises `Refused` for a request that waits too long, or was given up meanwhile. Without a `turn` the wait has no bound.
        """
        mine = object()
        with self._moved:
            self._order.append(mine)
            if not self._moved.wait_for(lambda: self._order[0] is mine, None if turn is None else WAIT):
                self._order.remove(mine)
                raise Refused(503, BUSY)
        self._began = time.monotonic()
        rest = self._free_at - self._began
        if rest > 0:
            time.sleep(rest)
            self._began = time.monotonic()
        if turn is not None:
            try:
                turn.require()
            except Refused:
                self.end()
                raise

    def end(self) -> None:
        """End this search: the next one may begin, after a rest."""
        with self._moved:
            now = time.monotonic()
            owed = max(self._free_at, self._began - AT_ONCE) + 2 * (now - self._began)
            self._free_at = min(owed, now + REST)
            self._order.popleft()
            self._moved.notify_all()
