"""The runner of operations beside a page that another application serves: it begins with the page's first request.

It does not begin earlier, because a server may load its application and fork then: each process that answers has its own runner. It
takes part in the same lead as the workers (`duties.operation_runner`), so one process of the whole fleet carries an operation out.
If a process is killed, another one leads after some seconds; a process that exits gives the lead up.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING

from redelivery.errors import RedeliveryError
from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.logs import log

from ..duties.operation_runner import OperationRunner
from ..operations.runs.operation import is_kept

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

    from .shared.source import Source

#: Seconds that the end of a process waits for the operations that it carries out.
ENDING = 2.0


class Beside:
    """The runner of one page, in each process that serves it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._pid = 0
        self._runner: OperationRunner | None = None

    def start(self) -> None:
        """Begin, if this process has not begun and the broker keeps operations. Never raises."""
        with self._lock:
            if self._pid == os.getpid():
                return
            try:
                runner = self._made(self._source.runtime)
            except (RedeliveryError, *BROKER_ERRORS) as exc:
                log.warning("operations.waiting", error=str(exc))  # the next request tries again
                return
            self._pid = os.getpid()
            if runner is not None:
                self._runner = runner
                runner.start()

    def _made(self, runtime: Runtime) -> OperationRunner | None:
        if not is_kept(self._source.transport):
            return None
        runner = OperationRunner(runtime)
        weakref.finalize(self, runner.ask_to_stop).atexit = False  # when the page is collected
        atexit.register(_end, weakref.ref(runner))
        return runner


def _end(made: weakref.ref[OperationRunner]) -> None:
    """Stop a runner, if it still exists."""
    runner = made()
    if runner is not None:
        runner.stop(ENDING)
