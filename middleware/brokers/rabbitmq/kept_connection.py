"""A connection that is kept between questions, because a new connection costs RabbitMQ more than most questions.

One question uses it at a time. A question that has waited for a second gets its own connection, so that a hanging question does not
stop the others. A question fails if its answer takes longer than `TIMEOUT`. The connection is not used again if a question failed
on it, if it was unused for long, if the broker has closed it, or if a parent process opened it. It is closed when the process ends.
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

from redelivery.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds after which an unused connection is not used again; seconds that a question waits for the previous question.
IDLE, PATIENCE = 30.0, 1.0
#: Seconds until an answer: RabbitMQ may be stopped, or in swap, and still hold the connection.
TIMEOUT = 30.0


@dataclass(slots=True)
class _Last:
    """The last question's connection, the process that opened it, and when it was used."""

    connection: Any = None
    pid: int = 0
    used: float = 0.0

    def is_usable(self) -> bool:
        if self.connection is None or self.pid != os.getpid() or time.monotonic() - self.used > IDLE:
            return False
        with selectors.DefaultSelector() as selector:  # works in every pool: eventlet removes `poll`
            selector.register(self.connection.connection.transport.sock, selectors.EVENT_READ)
            return not selector.select(0)  # no answer is due: data can only be the end of the connection

    def drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None and self.pid == os.getpid():
            with suppress(Exception):  # the connection is no longer needed
                connection.release()


class KeptConnection:
    """The kept connection; `connect` opens a new one."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._last = _Last()
        weakref.finalize(self, self._last.drop)

    @contextmanager
    def asking(self) -> Iterator[Any]:
        """The connection, for one question, which must leave nothing open on it.

        Raises what `connect` raises, and `BrokerUnavailable` if an answer takes longer than `TIMEOUT`.
        """
        if not self._lock.acquire(timeout=PATIENCE):
            with self._connect() as connection, _in_time(connection):
                yield connection
            return
        try:
            if not self._last.is_usable():
                self._last.drop()
                self._last.connection, self._last.pid = self._connect(), os.getpid()
            connection = self._last.connection
            try:
                with _in_time(connection):
                    yield connection
            except BaseException:
                self._last.drop()
                raise
            self._last.used = time.monotonic()
        finally:
            self._lock.release()


@contextmanager
def _in_time(connection: Any) -> Iterator[None]:
    """Drop the connection without a word if an answer takes too long: the broker would not answer a close, either."""
    connection.connection.transport.sock.settimeout(TIMEOUT)
    try:
        yield
    except TimeoutError as exc:
        connection.collect(socket_timeout=1.0)
        msg = f"broker {connection.as_uri()} has not answered within {TIMEOUT:g} s; is it stopped, or out of memory?"
        raise BrokerUnavailable(msg) from exc
