"""Recorded starts on RabbitMQ: a suspect that is about to run has a queue of its name, for as long as it runs.

RabbitMQ hands over again whatever a dead worker held, begun or not, and says nothing of which was which. It keeps no place for a
word about a message, but for names: a queue that is declared is there, for anybody who asks. So a worker that runs a suspect first
declares an empty queue that is called by that delivery of it, and takes it away as soon as the task has ended; a worker that is
handed the message asks for it. A crash counts against what had begun, as on Redis, and nobody has to wait for anybody.

Declaring and taking away are asked for in one channel, so that the end of one task is known before the start of the next. Only
suspects have such queues: what no worker has died with pays nothing.

Limits: what is left behind, by a process that died between two steps, expires in `KEPT_MS`. Where the broker does not answer, a
start is not recorded, or not found: the crash does not count then, and the next one does. A suspect that runs while its worker,
and no other, loses its connection counts as one that its worker died with: nobody else can tell. So does one that ends in that
moment and is not acknowledged.
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
    """The name of a start: of this delivery of this message, and of no other."""
    envelope = Envelope.of(headers)
    known = (headers.get("id"), headers.get("replaced_task_nesting"), envelope.generation, envelope.delivery)
    return START + hashlib.sha1(repr(known).encode(), usedforsecurity=False).hexdigest()


class Starts:
    """The starts, on a connection of their own; from any thread. `connect` opens a new one (kombu's)."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        # Not reentrant: a second caller would write into a frame that is half written. A signal's handler does not
        # come here: what it asks for is noted, and done by the loop (`pool_patches/stop.py`).
        self._lock = threading.Lock()
        self._kombu: Any = None
        self._channel: Any = None
        self._pid = 0

    def note(self, name: str) -> None:
        """It begins: the broker knows that when this returns, if it answers."""
        with self._lock:
            self._try(lambda: declare_start(self._opened(), name))

    def has(self, name: str) -> bool:
        """Whether it had begun, and had not ended."""
        with self._lock:
            return self._try(lambda: has_queue(self._opened().connection, name)) is True

    def forget(self, name: str) -> None:
        """It has ended. Nobody waits for the broker, nor for a connection where there is none: then it is left to expire."""
        with self._lock:
            if self._kombu is not None and self._pid == os.getpid():
                try:
                    self._channel.queue_delete(name, nowait=True)
                except Exception as exc:  # noqa: BLE001 - the connection is gone
                    self._unsure(exc)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _opened(self) -> Any:
        """The channel; a fork takes none along."""
        if self._pid != os.getpid():
            self._pid, self._kombu = os.getpid(), None
        if self._kombu is None:
            kombu = self._connect()
            kombu.connection.sock.settimeout(TIMEOUT)
            self._kombu, self._channel = kombu, kombu.connection.channel()
        return self._channel

    def _try(self, ask: Callable[[], Any]) -> Any:
        """Ask, once more on a new connection; None where nobody answers."""
        was_open = self._kombu is not None
        try:
            return ask()
        except Exception as exc:  # noqa: BLE001 - whatever it is, the message must go on
            self._unsure(exc, is_last=not was_open)
            return self._try(ask) if was_open else None

    def _unsure(self, exc: Exception, *, is_last: bool = True) -> None:
        self._drop()
        if is_last:
            error = f"{type(exc).__name__}: {exc}"
            log.warning("start.unsure", error=error, why="a crash may not be counted, or may be counted once too often")

    def _drop(self) -> None:
        kombu, self._kombu, self._channel = self._kombu, None, None
        if kombu is not None and self._pid == os.getpid():
            with suppress(Exception):
                kombu.collect(socket_timeout=1.0)
