"""Corrections of the children of Celery's process pool.

1. *The result pipe of a dead child is drained before its task is given to another child.* If a second child dies while Celery
   handles a first one's death, Celery does not read the second one's reports: a task that it had begun, or even ended, would begin
   again, and no attempt would be counted.
2. *The parent soon waits again for a child that has ended.* A child closes its files a moment before the kernel lets its parent
   wait for it. Celery tries once, and then no longer watches it: the pool has one child less for five seconds, and if the worker
   loses its connection meanwhile, the whole worker ends (`ValueError: file descriptor is None`).
3. *An idle child gets its task at once.* Celery's pool first waits for its loop to find the child's pipe writable. Here the loop
   writes only if the pipe is full, or the child has just died.
4. *The loop polls pipes only if it has to write to one.* Celery's pool polls those of all children at each turn.
5. *A child that got a task is not idle.* If the pool shrinks, Celery ends idle children, and counts a child as idle until it has
   read that the child's task has begun.

Limits: pools of processes in an event loop, in Celery 5.6 and 5.7; if a part is missing, nothing is changed.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ...known import has

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds until the next wait for a child: the first and the longest. After that Celery's own timer waits.
FIRST_WAIT, MAX_WAIT = 0.005, 2.0
#: The attributes of Celery's pool that each correction uses.
TO_DRAIN = ("on_job_process_down", "process_flush_queues")
TO_WAIT = ("_event_process_exit", "_pool", "maintain_pool")
TO_FEED = ("_active_writes", "_all_inqueues", "_busy_workers", "outbound_buffer")
TO_SHRINK = ("_cache", "_worker_active")
TO_WRITE = (*TO_FEED, "_create_write_handlers", "sched_strategy")


def correct_children(pool: Any, hub: Any) -> Callable[[], None]:
    """Correct this pool; a second call changes nothing. Call the returned function in the loop's thread to feed idle children."""
    inner: Any = getattr(pool, "_pool", None)
    if has(inner, TO_DRAIN) and inner.on_job_process_down.__module__ != __name__:
        inner.on_job_process_down = _draining(inner, inner.on_job_process_down)
    if has(inner, TO_WAIT) and inner._event_process_exit.__module__ != __name__:  # noqa: SLF001 - Celery's
        inner._event_process_exit = _waiting_again(inner, inner._event_process_exit)  # noqa: SLF001
    if has(inner, TO_WRITE) and inner._create_write_handlers.__module__ != __name__:  # noqa: SLF001
        inner._create_write_handlers = _writing_at_once(inner, inner._create_write_handlers)  # noqa: SLF001
    if has(inner, TO_SHRINK) and inner._worker_active.__module__ != __name__:  # noqa: SLF001
        inner._worker_active = _counting_given(inner, inner._worker_active)  # noqa: SLF001
    return partial(_feed, pool, hub)


def _draining(pool: Any, down: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """A replacement of what Celery calls for a job whose child is gone."""

    def on_job_process_down(job: Any, pid: int) -> None:
        if not job._accepted:  # noqa: SLF001 - Celery's
            child = job._write_to or job._scheduled_for  # noqa: SLF001
            if child is not None and not child.dead and not child._is_alive():  # noqa: SLF001
                pool.process_flush_queues(child)
                if job._accepted:  # noqa: SLF001
                    return  # it had begun: Celery ends it with this child's death
        down(job, pid)

    return on_job_process_down


def _waiting_again(pool: Any, exited: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A replacement of what Celery's loop calls when a child has closed its files."""

    def look(hub: Any, child: Any, wait: float) -> None:
        if child not in pool._pool:  # noqa: SLF001 - Celery's
            return
        if getattr(child, "_sentinel_poll", 0) is None:
            del child._sentinel_poll  # noqa: SLF001 - Celery makes a new one if there is none
        if wait <= MAX_WAIT:
            hub.call_later(wait, again, hub, child, wait * 2)

    def again(hub: Any, child: Any, wait: float) -> None:
        pool.maintain_pool()
        look(hub, child, wait)

    def event_process_exit(hub: Any, child: Any) -> None:
        exited(hub, child)
        look(hub, child, FIRST_WAIT)

    return event_process_exit


def _counting_given(inner: Any, is_active: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A replacement of what tells Celery whether a child has a task."""

    def worker_active(child: Any) -> bool:
        return is_active(child) or any(
            not job._accepted and child in {job._write_to, job._scheduled_for}  # noqa: SLF001 - Celery's
            for job in list(inner._cache.values())  # noqa: SLF001
        )

    return worker_active


def _writing_at_once(inner: Any, create: Callable[[Any], None]) -> Callable[[Any], None]:
    """A replacement of what sets up the writing to children; the loop calls `on_poll_start` before each turn."""
    from celery.concurrency.asynpool import SCHED_STRATEGY_FAIR as FAIR  # noqa: PLC0415 - other pools do not need it

    def create_write_handlers(hub: Any) -> None:
        create(hub)
        ask_loop, children, busy = inner.on_poll_start, inner._all_inqueues, inner._busy_workers  # noqa: SLF001 - Celery's

        def on_poll_start() -> None:
            _write(inner, hub)
            is_waiting = inner.outbound_buffer and (inner.sched_strategy != FAIR or len(busy) < len(children))
            if is_waiting or not children.isdisjoint(hub.writers):
                ask_loop()

        inner.on_poll_start = on_poll_start

    return create_write_handlers


def _feed(pool: Any, hub: Any) -> None:
    inner: Any = getattr(pool, "_pool", None)
    if has(inner, TO_FEED):
        _write(inner, hub)


def _write(inner: Any, hub: Any) -> None:
    """Give waiting tasks to idle children."""
    if inner.outbound_buffer:
        idle = inner._all_inqueues - inner._active_writes - inner._busy_workers  # noqa: SLF001 - Celery's
        if idle:
            with suppress(OSError):  # that child is gone: Celery will give its task to another one
                hub.consolidate_callback(list(idle)[: len(inner.outbound_buffer)])
