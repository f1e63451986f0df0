"""The threads that take the steps of a process's duties: one for each current step, and at most two that are at rest.

One thread waits for the time of the next step. Before it takes this step, the spare thread, or a new one, waits in its place: so a
long step delays no other. A thread that comes back becomes the spare one, or ends if there is one. If the system refuses a thread,
the step is postponed, unless it is brief.

The threads are native, because a task on a solo pool blocks every timer of the event loop.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redelivery.middleware.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

#: The name of a thread that takes no step.
NAME = "redelivery-duties"
#: Seconds until a step that found no thread is tried again.
POSTPONED = 5.0


@dataclass(slots=True, eq=False)
class Entry:
    """The steps of one duty. `step` takes one, and returns the seconds until the next; its thread has this name meanwhile.

    The other duties can wait for a step that `is_brief`.
    """

    step: Callable[[], float]
    name: str
    #: When the next step is due (monotonic seconds; 0: at once).
    due: float
    is_brief: bool = False
    is_running: bool = False
    #: Whether the current step is followed by the next at once.
    is_hurried: bool = False
    has_ended: bool = False


class Scheduler:
    """Takes the steps of its entries when they are due; of one entry, one step after the other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may call `end` wherever memory is allocated
        self._changed, self._vacant, self._ended = (threading.Condition(self._lock) for _ in range(3))
        self._entries: list[Entry] = []
        #: Whether a thread waits for the next step, and whether one waits to take its place.
        self._is_watched = self._has_spare = False

    def add(self, step: Callable[[], float], name: str, after: float, *, is_brief: bool = False) -> Entry:
        """Take the first step after so many seconds. Raises `RuntimeError` if no thread can be started."""
        entry = Entry(step, name, time.monotonic() + after, is_brief)
        with self._lock:
            if not self._is_watched:
                self._begin_thread()
            self._entries.append(entry)
            self._changed.notify()
        return entry

    def hurry(self, entry: Entry) -> None:
        """Take the next step now, or at once after the current one."""
        with self._lock:
            entry.due, entry.is_hurried = 0.0, entry.is_running
            self._changed.notify()

    def end(self, entry: Entry) -> None:
        """Take no further step; do not wait for the current one."""
        with self._lock:
            entry.has_ended = True
            self._changed.notify()

    def await_end(self, entry: Entry, seconds: float) -> None:
        """Wait for the end of the current step, `seconds` at most."""
        with self._lock:
            self._ended.wait_for(lambda: not entry.is_running, seconds)

    def _begin_thread(self) -> None:
        """Begin a thread that waits for the next step."""
        threading.Thread(target=self._work, name=NAME, daemon=True).start()
        self._is_watched = True

    def _work(self) -> None:
        with self._lock:
            while (entry := self._next()) is not None:
                self._is_watched = False
                self._take(entry)
                if not self._is_needed():
                    return
                self._is_watched = True
            self._is_watched = False
            self._vacant.notify()

    def _is_needed(self) -> bool:
        """Whether this thread is to wait for the next step: at once, or as the spare thread after a while."""
        if self._is_watched:
            if self._has_spare:
                return False
            self._has_spare = True
            self._vacant.wait_for(lambda: not self._is_watched)
            self._has_spare = False
        return True

    def _next(self) -> Entry | None:
        """Wait until an entry is due; None if there are no entries any more."""
        while True:
            self._entries = [entry for entry in self._entries if entry.is_running or not entry.has_ended]
            if not self._entries:
                return None
            resting = (entry for entry in self._entries if not entry.is_running)
            first = min(resting, key=lambda entry: entry.due, default=None)
            left = None
            if first is not None and (left := first.due - time.monotonic()) <= 0:
                return first
            self._changed.wait(left)

    def _take(self, entry: Entry) -> None:
        """Take a step, without the lock."""
        if not self._has_successor() and not entry.is_brief:
            entry.due = time.monotonic() + POSTPONED
            log.warning("duty.postponed", duty=entry.name, why="the system refuses a new thread", again_in=POSTPONED)
            return
        entry.is_running, entry.is_hurried = True, False
        threading.current_thread().name = entry.name
        self._lock.release()
        pause = None
        try:
            pause = entry.step()
        finally:
            self._lock.acquire()
            threading.current_thread().name = NAME
            entry.is_running, entry.has_ended = False, entry.has_ended or pause is None
            entry.due = 0.0 if entry.is_hurried else time.monotonic() + (pause or 0)
            self._ended.notify_all()
            self._changed.notify()

    def _has_successor(self) -> bool:
        """Whether another thread waits for the next step from now on, or no other entry needs one."""
        if self._has_spare:
            self._vacant.notify()
        elif len(self._entries) > 1:
            try:
                self._begin_thread()
            except (RuntimeError, MemoryError):
                return False
        return True


@functools.cache
def scheduler() -> Scheduler:
    """The scheduler of this process."""
    return Scheduler()


os.register_at_fork(after_in_child=scheduler.cache_clear)  # a child has none of its parent's threads
