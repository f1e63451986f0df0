"""Polling on Redis: kombu's poller and its part of the event loop, for channels that receive by a script (`channel`).

Such a channel is read whenever data has come, and asks when its receiver says so. The loop wakes up for that, also if another
thread made room for more messages.
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
    """kombu's poller; for an armed channel, it also considers when to ask next, and reads pushes."""

    def on_readable(self, fileno: int) -> Any:
        """Read for an armed channel even if there is no room: a push is remembered, and does not make kombu disconnect."""
        channel, kind = self._fd_to_chan.get(fileno, (None, None))
        if kind == "BRPOP" and channel.receiver is not None and fileno not in self._paused():
            try:
                return channel._brpop_read()  # noqa: SLF001 - kombu's handler
            except Empty:
                return None
        return super().on_readable(fileno)

    def leave(self, channel: Any) -> None:
        """Stop reading for a channel whose connection is about to close: its number may become that of another connection.

        kombu would still read for this channel when data come on that other one, and wait for ever for an answer that is not due.
        """
        for fileno in [each for each, watched in self._fd_to_chan.items() if watched == (channel, "BRPOP")]:
            del self._fd_to_chan[fileno]
            self.poller.unregister(fileno)

    def _paused(self) -> Collection[int]:
        """The connections that kombu does not read for now; kombu 5.6 has none."""
        paused: Collection[int] = getattr(self, "_paused_brpop", ())
        return paused

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """As kombu's, but it waits at most until the next call of the script is due."""
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
            return None  # pending messages were handed over before the wait: the worker's loop continues


class Wakeful:
    """Mixin for a transport: wakes its event loop when another thread makes room."""

    _hub: Any = None

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self: Any, connection: Any, loop: Any) -> None:
        """As kombu's; remembers the loop."""
        super().register_with_event_loop(connection, loop)  # type: ignore[misc]
        self._hub = loop

    def wake_in(self: Any, seconds: float) -> None:
        """Make the event loop look again after this time, if it is less than the loop's own second."""
        if self._hub is not None and 0 < seconds < 1:
            self._hub.call_later(seconds, ignore)

    def look_around(self: Any) -> bool:
        """Make the loop's next turn read what has come, without waiting; False if there is no loop that can."""
        waker = getattr(self._hub, "_waker", None)
        if waker is None:
            return False
        waker.wake()
        return True

    def wake(self: Any) -> None:
        """Make the event loop look again; called from any thread. A hub of kombu 5.6 goes on sleeping, for a second at most."""
        if self._hub is not None and threading.get_ident() != getattr(self._hub, "_loop_thread", None):  # kombu's own test
            self._hub.call_soon(ignore)
