"""The result pipe of a dead child is drained before its task is given to another child.

A child says when it begins a task, and when that has ended; what a dead one had still said, Celery reads when it is at that child's
death. But of one that dies while Celery is at the death of another it asks only whether it lives: what it had begun, or even
ended, would begin again in another child, and no attempt would be counted.

Limits: pools of processes in an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def hear_the_dying(pool: Any) -> None:
    """Have this pool hear them."""
    inner: Any = getattr(pool, "_pool", None)
    down = getattr(inner, "on_job_process_down", None)  # a pool of somebody's own may have none
    if down is not None and not isinstance(down, _Hearing):
        inner.on_job_process_down = _Hearing(inner, down)


class _Hearing:
    """The pool's own `on_job_process_down`, and before it the hearing."""

    def __init__(self, pool: Any, down: Callable[[Any, int], None]) -> None:
        self._pool, self._down = pool, down

    def __call__(self, job: Any, pid: int) -> None:
        """What Celery calls of a job whose child is gone."""
        if not job._accepted:  # noqa: SLF001 - Celery's
            child = job._write_to or job._scheduled_for  # noqa: SLF001
            if child is not None and not child.dead and not child._is_alive():  # noqa: SLF001
                self._pool.process_flush_queues(child)
                if job._accepted:  # noqa: SLF001
                    return  # it had begun: Celery ends it when it is at this child's own death
        self._down(job, pid)
