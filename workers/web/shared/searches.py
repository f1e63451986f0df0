"""Runs the searches of one page one after the other, with pauses that are as long as the searches.

So all searches together use at most half of the time of one client of the broker. After a pause they run for a second without
another pause, so that a single user does not wait. Dry runs and counts in the background have another instance: a search does not
wait for them.
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

    from .threads import Turn

#: The maximum seconds of searches without a pause, and of one pause.
AT_ONCE, REST = 1.0, 4.0
#: The maximum seconds that a request waits for earlier searches. With a pause and a search, it must end within `threads.SECONDS`.
WAIT = 4.0
BUSY = "The page is busy: other searches are under way, and they go one after the other. Nothing was changed; ask again."


class Searches:
    """Runs searches one after the other, in the order of the requests."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._order: deque[object] = deque()
        self._began = self._free_at = 0.0

    @contextmanager
    def one(self, turn: Turn | None = None) -> Iterator[None]:
        """One search of this request. Raises as `begin`."""
        self.begin(turn)
        try:
            yield
        finally:
            self.end()

    def begin(self, turn: Turn | None = None) -> None:
        """Wait for the earlier searches and for the pause.

        Raises `Refused` if the request waits too long, or was given up meanwhile. Without a `turn` there is no limit.
        """
        mine = object()
        with self._moved:
            self._order.append(mine)
            if not self._moved.wait_for(lambda: self._order[0] is mine, None if turn is None else WAIT):
                self._order.remove(mine)
                raise Refused(503, BUSY)
        self._began = time.monotonic()
        pause = self._free_at - self._began
        if pause > 0:
            time.sleep(pause)
            self._began = time.monotonic()
        if turn is not None:
            try:
                turn.require()
            except Refused:
                self.end()
                raise

    def end(self) -> None:
        """End this search: the next one may begin after the pause."""
        with self._moved:
            now = time.monotonic()
            free_at = max(self._free_at, self._began - AT_ONCE) + 2 * (now - self._began)
            self._free_at = min(free_at, now + REST)
            self._order.popleft()
            self._moved.notify_all()
