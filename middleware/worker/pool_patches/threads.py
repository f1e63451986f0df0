"""The stop of a pool of threads: tasks that have not begun are taken back, and the stop waits for those that run.

Limits: a thread cannot be ended. After a cold shutdown the threads run on, and Python ends after them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery.worker import state

from ...logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runtime import Runtime

#: Seconds that a running task has in a cold shutdown. If it ends in this time, it is recorded and does not run again.
GRACE = 1.0
#: The attributes of Celery's pool that are used.
USED = ("executor",)


class PoolThreads:
    """The threads of a pool. Only the main thread may use it."""

    grace = GRACE

    def __init__(self, pool: Any, runtime: Runtime) -> None:
        self._pool, self._runtime = pool, runtime

    def lacks(self) -> list[str]:
        """The used attributes that this pool lacks."""
        return [name for name in USED if not hasattr(self._pool, name)]

    def is_known(self) -> bool:
        """Whether this pool lacks nothing."""
        return not self.lacks()

    def is_over(self) -> bool:
        """Whether nothing runs any more."""
        return not self._running()

    def turn(self, seconds: float) -> None:
        """Wait for `seconds` at most."""
        time.sleep(min(seconds, 0.01))  # `concurrent.futures.wait` would build its waiter again each time

    def ask_to_end(self) -> None:
        """Keep further tasks from beginning."""
        self._pool.executor.shutdown(wait=False, cancel_futures=True)

    def cut(self, cancel: Callable[[], None]) -> None:  # noqa: ARG002 - as with processes
        """Log that a thread cannot be ended."""
        for request in self._running():
            log.warning("worker.terminated", task_id=request.id, why="a cold shutdown, and this pool cannot end a task")

    def kill(self) -> None:
        """Do nothing: threads cannot be killed."""

    def pids(self) -> list[int]:
        """No children."""
        return []

    def not_begun(self) -> list[Any]:
        """No jobs: `ask_to_end` has cancelled the futures of tasks that have not begun."""
        return []

    def close(self, celerys_own: Callable[[], None]) -> None:
        """Stop the pool as Celery does, unless a task still runs: Celery would wait for it, and a cold stop must not."""
        if self.is_over():
            celerys_own()

    def _running(self) -> list[Any]:
        """The requests of held messages that run, then others that only Celery knows."""
        owned = list(self._runtime.owner.held.values()) if self._runtime.holds_messages else []
        held = [each.request for each in owned if each.request is not None]
        running = [request for request in held if request.is_running()]
        return running + [request for request in list(state.active_requests) if request not in running]
