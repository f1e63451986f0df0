"""Runs operations in the process of a page that another application serves.

The runner starts with the page's first request in a process, because a server may fork after it has loaded its application. One
process of the whole fleet, workers included, leads and carries out an operation (`duties.operation_runner`).
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING

from redelivery.middleware.brokers.errors import EXPECTED_ERRORS
from redelivery.middleware.logs import log

from ..duties.operation_runner import OperationRunner
from ..operations.runs.operation import is_kept

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

    from .shared.source import Source

#: The maximum seconds that a process waits at its end for its operations.
ENDING = 2.0


class PageRunner:
    """The runner of one page, in each process that serves the page."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._pid = 0
        self._runner: OperationRunner | None = None

    def start(self) -> None:
        """Start the runner if it does not run in this process and the broker keeps operations. Never raises."""
        with self._lock:
            if self._pid == os.getpid():
                return
            try:
                runner = self._make(self._source.runtime)
            except EXPECTED_ERRORS as exc:
                log.warning("operations.waiting", error=str(exc))  # the next request tries again
                return
            self._pid = os.getpid()
            if runner is not None:
                self._runner = runner
                runner.start()

    def _make(self, runtime: Runtime) -> OperationRunner | None:
        if not is_kept(self._source.transport):
            return None
        runner = OperationRunner(runtime)
        weakref.finalize(self, runner.ask_to_stop).atexit = False  # when the page is garbage-collected
        atexit.register(_stop, weakref.ref(runner))
        return runner


def _stop(reference: weakref.ref[OperationRunner]) -> None:
    runner = reference()
    if runner is not None:
        runner.stop(ENDING)
