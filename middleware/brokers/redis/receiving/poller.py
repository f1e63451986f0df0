"""Polling on Redis: kombu's poller and its place in the event loop, for channels that receive by a script (`channel`).

Such a channel is read whenever something has come, and asked when its receiver says so; the loop wakes up for that, also where the
room for more was made by another thread.
"""

from __future__ import annotations

import threading
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import redis as kombu_redis

from ....ports import ignore

if TYPE_CHECKING:
    from collections.abc import Collection


class Poller(kombu_redis.MultiChannelPoller):
    """kombu's poller; for an armed channel it also minds when to ask next, and what is pushed without being asked for."""

    def on_readable(self, fileno: int) -> Any:
        """Read for an armed channel whether or not there is room: a push is remembered, never a reason to disconnect."""
        channel, kind = self._fd_to_chan.get(fileno, (None, None))
        if kind == "BRPOP" and channel.receiver is not None and fileno not in self._paused():
            try:
                return channel._brpop_read()  # noqa: SLF001 - kombu's handler
            except Empty:
                return None
        return super().on_readable(fileno)

    def _paused(self) -> Collection[int]:
        """The connections that kombu leaves alone for now; kombu 5.6 leaves none alone."""
        paused: Collection[int] = getattr(self, "_paused_brpop", ())
        return paused

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """As kombu's, but no longer than until the next asking is due."""
        receivers = [channel.receiver for channel in self._channels if channel.receiver is not None]
        waits = [each.seconds_to_wait() or each.seconds_to_rest() for each in receivers]
        if waits and (timeout is None or min(waits) < timeout):
            timeout = max(min(waits), 0.001)
        before = [each.handed_over for each in receivers]
        try:
            return super().get(callback, timeout)
        except Empty:
            if before == [each.handed_over for each in receivers]:
                raise
            return None  # what was in line went out before the waiting: the worker's loop looks around now


class Wakeful:
    """The transport: wakes its event loop when room is made from another thread."""

    _hub: Any = None

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self: Any, connection: Any, loop: Any) -> None:
        """As kombu's; remembers the loop."""
        super().register_with_event_loop(connection, loop)  # type: ignore[misc]
        self._hub = loop

    def wake_in(self: Any, seconds: float) -> None:
        """Make the event loop look again after less than its own second."""
        if self._hub is not None and 0 < seconds < 1:
            self._hub.call_later(seconds, ignore)

    def look_around(self: Any) -> bool:
        """Make the loop read what is there already, and not wait, before it comes back; False where no loop can be told so."""
        waker = getattr(self._hub, "_waker", None)
        if waker is None:
            return False
        waker.wake()
        return True

    def wake(self: Any) -> None:
        """Make the event loop look again; called from any thread. A hub of kombu 5.6 sleeps on, for a second at most."""
        if self._hub is not None and threading.get_ident() != getattr(self._hub, "_loop_thread", None):  # kombu's own test
            self._hub.call_soon(ignore)
