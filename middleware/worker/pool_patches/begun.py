"""Read the children's reports before Celery forgets tasks that a child has begun.

When its consumer closes, to stop or to connect again, Celery forgets each task that no child has reported as begun. But a child
that got its task a moment ago has begun it, or will: the task runs, its message is given back and runs again, and a stopping worker
waits half a minute for the child, because nothing reads the child's result. So the reports of each child that got a task are read
first; a task that no child got has not begun.

Limits: pools of processes whose children get one task at a time (`-O fair`, Celery's default). After `TIMEOUT` Celery forgets the
tasks that are still not reported.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .processes import PoolProcesses, take_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ports import Deliveries
    from .stop import Stop

#: Seconds that a child may take to report that it has begun.
TIMEOUT = 1.0
TURN = 0.05


def read_reports_first(pool: Any, hub: Any, owner: Deliveries, stop: Stop | None) -> None:
    """Have this pool read its children's reports before Celery forgets tasks; `owner` holds their messages.

    If the worker stops, and there is a `stop`, Celery forgets nothing: the `stop` drains the children's result pipes.
    """
    flush = getattr(pool, "flush", None)
    if flush is not None and hasattr(pool, "_pool"):
        own = flush.flush if isinstance(flush, ReadingReports) else flush
        pool.flush = ReadingReports(PoolProcesses(pool, hub), owner, own, stop)


class ReadingReports:
    """The pool's own `flush`, which first reads the children's reports."""

    def __init__(self, pool: PoolProcesses, owner: Deliveries, flush: Callable[[], None], stop: Stop | None) -> None:
        self._pool, self._owner, self.flush, self._stop = pool, owner, flush, stop

    def __call__(self) -> None:
        """Called by Celery."""
        if self._stop is not None and self._pool.is_closed():
            return
        if self._pool.is_known():
            until = time.monotonic() + TIMEOUT
            while self._has_unread() and time.monotonic() < until:
                self._pool.turn(TURN)
            take_back(self._owner, {job for job in self._pool.not_begun() if _child_of(job) is None})
        self.flush()

    def _has_unread(self) -> bool:
        """Whether a child got a task and has not reported its begin."""
        children = [child for job in self._pool.not_begun() if (child := _child_of(job)) is not None]
        return any(child._is_alive() for child in children)  # noqa: SLF001 - Celery's


def _child_of(job: Any) -> Any:
    """The child that got the job, if any."""
    return getattr(job, "_write_to", None)
