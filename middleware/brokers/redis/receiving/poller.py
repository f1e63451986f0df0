"""Polling on Redis: kombu's poller and its part of the event loop, for armed channels, which receive by a script (`channel`).

An armed channel is read whenever data has come, and asks when its receiver says so. The loop wakes up for that, and when another
thread has made room for more messages.
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
    """kombu's poller, which also reads an armed channel's pushes, and wakes up when the channel has to ask."""

    def on_readable(self, fileno: int) -> Any:
        """Read for an armed channel even if it has no room: kombu would disconnect at a push."""
        channel, kind = self._fd_to_chan.get(fileno, (None, None))
        paused: Collection[int] = getattr(self, "_paused_brpop", ())  # kombu 5.6 has no such list
        if kind == "BRPOP" and channel.receiver is not None and fileno not in paused:
            try:
                return channel._brpop_read()  # noqa: SLF001 - kombu's handler
            except Empty:
                return None
        return super().on_readable(fileno)

    def leave(self, channel: Any) -> None:
        """Stop reading for a channel before its connection closes: another connection may get the same file number."""
        for fileno in [each for each, watched in self._fd_to_chan.items() if watched == (channel, "BRPOP")]:
            del self._fd_to_chan[fileno]
            self.poller.unregister(fileno)

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """As kombu's, but wait at most until the next call of the script is due."""
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
            return None  # messages were handed over before the wait


class Wakeful:
    """Mixin for a transport, to wake its event loop."""

    _hub: Any = None

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self: Any, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)  # type: ignore[misc]
        self._hub = loop

    def wake_in(self: Any, seconds: float) -> None:
        """Wake the event loop after this time, if it is shorter than the loop's own wait of a second."""
        if self._hub is not None and 0 < seconds < 1:
            self._hub.call_later(seconds, ignore)

    def look_around(self: Any) -> bool:
        """Make the loop's next turn read what has come, without waiting; False if the loop cannot do that."""
        waker = getattr(self._hub, "_waker", None)
        if waker is None:
            return False
        waker.wake()
        return True

    def wake(self: Any) -> None:
        """Wake the event loop, from any thread. A hub of kombu 5.6 sleeps on, for a second at most."""
        if self._hub is not None and threading.get_ident() != getattr(self._hub, "_loop_thread", None):  # kombu's own test
            self._hub.call_soon(ignore)
