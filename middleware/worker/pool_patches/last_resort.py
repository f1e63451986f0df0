"""The last resort for a worker that must stop at once and does not: end its process.

A native thread does it, because anything may block the main thread: a library, a hook of the application, a broker. The thread
starts with the worker, because a signal's handler must not start a thread; the handler only writes a byte. The messages that the
worker holds are delivered again when its lease or its connection ends, as after any worker's death.

The main thread may hold the lock of a log handler whose pipe is full. So another thread logs the end, and has one second for it.

Limits: a library that never releases Python's global lock (GIL) blocks this thread, too.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from celery.platforms import EX_FAILURE

from ...logs import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Seconds that a worker has to stop, in addition to those of a soft shutdown. All its waits together take less.
LAST = 60.0
#: Seconds that the log line about the end may take.
LOGGING = 1.0


class LastResort:
    """The thread. `pids` returns the children to end with the process."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._receiver, self._sender = socket.socketpair()
        self._sender.settimeout(0)
        self._soft, self._is_over = 0.0, False
        self._pid = 0

    def begin(self) -> None:
        """Start the thread; a second call changes nothing."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            threading.Thread(target=self._run, name="redelivery-last-resort", daemon=True).start()

    def ask(self, soft: float) -> None:
        """Begin to count after a request to stop, which may take `soft` seconds more. A signal's handler calls this."""
        self._soft = soft
        self._wake()

    def cancel(self) -> None:
        """Let the process end later: the worker has stopped, and holds no messages."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # the socket is full: the thread is awake
            self._sender.send(b"!")

    def _run(self) -> None:
        self._receiver.recv(1)
        until = time.monotonic() + self._soft + LAST
        while not self._is_over and (left := until - time.monotonic()) > 0:
            self._receiver.settimeout(left)
            with suppress(TimeoutError):
                self._receiver.recv(64)
        if not self._is_over:
            self._end()

    def _end(self) -> None:
        logging = threading.Thread(target=self._log_end, name="redelivery-last-words", daemon=True)
        logging.start()
        logging.join(LOGGING)
        with suppress(Exception):
            for pid in self._pids():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        os._exit(EX_FAILURE)

    def _log_end(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - Python's own way
        where = "".join(traceback.format_stack(frame)[-5:])
        log.critical("stop.overdue", after=self._soft + LAST, where=where, why="the process ends; its messages are delivered again")
