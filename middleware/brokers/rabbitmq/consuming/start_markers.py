"""Recorded starts on RabbitMQ: while a suspect runs, the broker has an empty queue that is named after the delivery.

RabbitMQ does not tell which messages of a dead worker had begun, and cannot store a note about a message. But every client can
check whether a queue exists. A worker declares the queue before it runs a suspect, and deletes it when the task has ended, both on
one channel, so that the broker knows of the end before the next start. A crash counts only if the queue exists.

Limits: a queue that a dead process has left behind expires after `KEPT_MS`. If the broker does not answer, this crash does not
count, but the next one does. A worker that loses its connection while it runs a suspect, or before it has acknowledged it, counts
as crashed: other workers cannot see the difference.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ....logs import log
from ....messages.envelope import Envelope
from ..names import START
from ..topology import declare_start, has_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Seconds for the broker to answer.
TIMEOUT = 10.0


def start_of(headers: Mapping[str, Any]) -> str:
    """The name of a delivery's start; each delivery of each message has its own."""
    envelope = Envelope.of(headers)
    known = (headers.get("id"), headers.get("replaced_task_nesting"), envelope.generation, envelope.delivery)
    return START + hashlib.sha1(repr(known).encode(), usedforsecurity=False).hexdigest()


class Starts:
    """The starts, on their own connection; safe from any thread. `connect` opens a new kombu connection."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        # Not reentrant: a second caller would write into a half-written frame. Signal handlers do not call this: they leave it to
        # the loop (`pool_patches/stop.py`).
        self._lock = threading.Lock()
        self._kombu: Any = None
        self._channel: Any = None
        self._pid = 0

    def note(self, name: str) -> None:
        """Record a start. When this returns, the broker has it, or does not answer."""
        with self._lock:
            self._try(lambda: declare_start(self._opened(), name))

    def has(self, name: str) -> bool:
        """Whether this start is recorded: the task had begun, and had not ended."""
        with self._lock:
            return self._try(lambda: has_queue(self._opened().connection, name)) is True

    def forget(self, name: str) -> None:
        """Delete a start, because the task has ended, without waiting. Without an open connection, the start expires later."""
        with self._lock:
            if self._kombu is not None and self._pid == os.getpid():
                try:
                    self._channel.queue_delete(name, nowait=True)
                except Exception as exc:  # noqa: BLE001 - the connection is gone
                    self._give_up(exc)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _opened(self) -> Any:
        if self._pid != os.getpid():
            self._pid, self._kombu = os.getpid(), None
        if self._kombu is None:
            kombu = self._connect()
            kombu.connection.sock.settimeout(TIMEOUT)
            self._kombu, self._channel = kombu, kombu.connection.channel()
        return self._channel

    def _try(self, ask: Callable[[], Any]) -> Any:
        """Call `ask`, and once more on a new connection if that fails; None if there is no answer."""
        was_open = self._kombu is not None
        try:
            return ask()
        except Exception as exc:  # noqa: BLE001 - the message must go on, after any error
            self._give_up(exc, is_last=not was_open)
            return self._try(ask) if was_open else None

    def _give_up(self, exc: Exception, *, is_last: bool = True) -> None:
        self._drop()
        if is_last:
            error = f"{type(exc).__name__}: {exc}"
            log.warning("start.unsure", error=error, why="a crash may not be counted, or may be counted once too often")

    def _drop(self) -> None:
        kombu, self._kombu, self._channel = self._kombu, None, None
        if kombu is not None and self._pid == os.getpid():
            with suppress(Exception):
                kombu.collect(socket_timeout=1.0)
