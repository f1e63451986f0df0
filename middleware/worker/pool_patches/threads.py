"""A pool of threads that ends: what has not begun is taken back, what runs is waited for, and nobody can end it.

Limits: where a cold shutdown does not wait any longer, the threads run on, and Python ends when they have ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery.worker import state

from ...logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runtime import Runtime

#: Seconds that what is about to end has after a cold shutdown: it is recorded, and does not run again.
GRACE = 1.0
#: What is used of Celery's pool.
USED = ("executor",)


class PoolThreads:
    """The threads of a pool. For the main thread alone."""

    grace = GRACE

    def __init__(self, pool: Any, runtime: Runtime) -> None:
        self._pool, self._runtime = pool, runtime

    def lacks(self) -> list[str]:
        """What this pool should have and has not, so that its inner workings are others than we know."""
        return [name for name in USED if not hasattr(self._pool, name)]

    def is_known(self) -> bool:
        """Whether this is a pool whose inner workings we know."""
        return not self.lacks()

    def is_over(self) -> bool:
        """Whether nothing runs any more."""
        return not self._running()

    def turn(self, seconds: float) -> None:
        """Wait for so long at most."""
        time.sleep(min(seconds, 0.01))  # a condition of all futures would be made anew each time

    def tell(self) -> None:
        """Let nothing more begin."""
        self._pool.executor.shutdown(wait=False, cancel_futures=True)

    def cut(self, cancel: Callable[[], None]) -> None:  # noqa: ARG002 - as with processes
        """Nobody can end a thread: say so."""
        for request in self._running():
            log.warning("worker.terminated", task_id=request.id, why="a cold shutdown, and its pool cannot end a task")

    def kill(self) -> None:
        """Nobody can: what runs still, runs on."""

    def pids(self) -> list[int]:
        """There are no children."""
        return []

    def not_begun(self) -> list[Any]:
        """What has not begun is asked by its own future."""
        return []

    def close(self, celerys_own: Callable[[], None]) -> None:
        """As Celery, which waits for what runs; where a cold stop must not wait, nothing is done."""
        if self.is_over():
            celerys_own()

    def _running(self) -> list[Any]:
        """What we hold, and what Celery knows of besides."""
        owned = list(self._runtime.owner.held.values()) if self._runtime.holds_messages else []
        held = [each.request for each in owned if each.request is not None]
        running = [request for request in held if request.is_running()]
        return running + [request for request in list(state.active_requests) if request not in running]
