"""A connection for questions, kept from one to the next: RabbitMQ works longer for a new connection than for most questions.

One question at a time has it. Another one that has waited for a second gets a connection of its own, so that one that hangs holds
up nobody. A connection that a question has failed on, that has lain unused for long, that the broker has closed, or that came here
by a fork, is not used again. It is closed when the process ends.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds after which a connection that nobody has used is not trusted any more, and that a question waits for the one before it.
IDLE, PATIENCE = 30.0, 1.0


@dataclass(slots=True)
class _Last:
    """The connection of the last question, who made it, and when it was used."""

    connection: Any = None
    pid: int = 0
    used: float = 0.0

    def is_usable(self) -> bool:
        if self.connection is None or self.pid != os.getpid() or time.monotonic() - self.used > IDLE:
            return False
        with selectors.DefaultSelector() as heard:  # whatever the pool has: eventlet takes `poll` away
            heard.register(self.connection.connection.transport.sock, selectors.EVENT_READ)
            return not heard.select(0)  # nothing was asked: all that can come is the end

    def drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None and self.pid == os.getpid():
            with suppress(Exception):  # it is of no use, and what was asked has its answer, or its error
                connection.release()


class KeptConnection:
    """The connection; `connect` makes a new one."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._last = _Last()
        weakref.finalize(self, self._last.drop)

    @contextmanager
    def asking(self) -> Iterator[Any]:
        """The connection, for one question that leaves nothing open on it. Raises as `connect`."""
        if not self._lock.acquire(timeout=PATIENCE):
            with self._connect() as connection:
                yield connection
            return
        try:
            if not self._last.is_usable():
                self._last.drop()
                self._last.connection, self._last.pid = self._connect(), os.getpid()
            try:
                yield self._last.connection
            except BaseException:
                self._last.drop()
                raise
            self._last.used = time.monotonic()
        finally:
            self._lock.release()
