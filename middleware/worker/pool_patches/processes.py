"""The stop of a pool of processes, which uses its pipes without the event loop, and does not join children as Celery does.

To end its pool, Celery writes a sentinel to each child, even if a task is half written there, sets the pipes blocking, and joins
the children one after the other. A child with half a task waits for the rest for ever, and Celery waits for that child. Here a
child gets its sentinel after its task is written, and its result pipe is drained before its death counts. So it is known whether
each task that a child got has begun.

Limits: Celery's own pool (`AsynPool`) in an event loop; any other pool is left to Celery (`is_known`).
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from inspect import isgenerator
from typing import TYPE_CHECKING, Any

from billiard import pool as billiards
from celery.concurrency import prefork

from ...logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ports import Deliveries

#: Seconds until children that have not ended in a cold stop are killed.
GRACE = 3.0
#: Seconds to wait for a killed child.
KILLED = 1.0
#: The attributes of Celery's pool that are used.
USED = (
    "_active_writers",
    "_cache",
    "_fileno_to_outq",
    "_join_exited_workers",
    "_pool",
    "_result_handler",
    "_state",
    "outbound_buffer",
    "process_flush_queues",
)
#: The names of `billiard.pool` that are used.
USED_OF_BILLIARD = ("RUN", "TERMINATE", "WorkersJoined")


class PoolProcesses:
    """The children of a pool. Only the main thread may use it."""

    grace = GRACE

    def __init__(self, pool: Any, hub: Any) -> None:
        self._pool, self._hub = pool, hub
        self._asked_to_end: set[int] = set()

    @property
    def inner(self) -> Any:
        """Celery's inner pool; None before the start and after the stop."""
        return self._pool._pool  # noqa: SLF001 - Celery's

    def lacks(self) -> list[str]:
        """The used attributes that this pool lacks."""
        without = [name for name in USED_OF_BILLIARD if not hasattr(billiards, name)]
        return without if self.inner is None else [*without, *(name for name in USED if not hasattr(self.inner, name))]

    def is_known(self) -> bool:
        """Whether this pool lacks nothing, and the loop has begun to read from its children."""
        inner = self.inner
        if inner is None or self.lacks():
            return False
        return "handle_event" in vars(inner._result_handler)  # noqa: SLF001 - a worker that refuses to start has no loop yet

    def is_closed(self) -> bool:
        """Whether the pool gets no more tasks."""
        return self.inner is None or self.inner._state != billiards.RUN  # noqa: SLF001

    def is_over(self) -> bool:
        """Whether no child is left."""
        return self.inner is None or not self.inner._pool  # noqa: SLF001

    def not_begun(self) -> list[Any]:
        """The jobs of the pool that no child has reported as begun."""
        return [] if self.inner is None else [job for job in list(self.inner._cache.values()) if not job._accepted]  # noqa: SLF001

    def turn(self, seconds: float) -> None:
        """Read what comes, and continue half-written tasks, as the event loop does; for `seconds` at most."""
        read = {child.outqR_fd for child in self.inner._pool}  # noqa: SLF001
        written = self._half_written()
        poll = select.poll()
        for pipe in read:
            poll.register(pipe, select.POLLIN)
        for pipe in written:
            poll.register(pipe, select.POLLOUT)
        for pipe, _ in poll.poll(round(seconds * 1000)):
            if pipe in read:
                self._read(pipe)
            else:
                with suppress(StopIteration, OSError, EOFError):  # that child is gone
                    next(written[pipe])

    def ask_to_end(self) -> None:
        """Tell each child to end after its task; a later call tells one whose task is half written now."""
        busy = self._half_written()
        for child in list(self.inner._pool):  # noqa: SLF001
            if child.pid in self._asked_to_end or child.inqW_fd in busy:
                continue
            try:
                child.inq.put(None)
            except BlockingIOError:  # its pipe is full
                continue
            except OSError:  # the child no longer reads
                log.debug("child.not_told", pid=child.pid)
            self._asked_to_end.add(child.pid)
        self._reap()

    def cut(self, cancel: Callable[[], None]) -> None:
        """End what runs with Celery's `cancel`, and each child that got a task and has not reported its begin."""
        with suppress(Exception):
            cancel()
        given = {job._write_to.pid for job in self.not_begun() if job._write_to is not None}  # noqa: SLF001
        for child in self._alive():
            if child.pid in given:
                child._controlled_termination = True  # noqa: SLF001 - Celery's: no error line
                child.terminate()

    def kill(self) -> None:
        """Kill the children that are left."""
        until = time.monotonic() + KILLED
        while not self.is_over() and time.monotonic() < until:
            for child in self._alive():
                child._controlled_termination = True  # noqa: SLF001
                os.kill(child.pid, signal.SIGKILL)
            self.turn(0.01)
            self._reap()

    def close(self, _: Callable[[], None]) -> None:
        """Forget what never began, and leave the pool in the state in which Celery's own stop, which is not called, leaves it."""
        inner, self._pool._pool = self.inner, None  # noqa: SLF001
        inner._cache.clear()  # noqa: SLF001
        inner._active_writers.clear()  # noqa: SLF001
        inner.outbound_buffer.clear()
        inner._state = billiards.TERMINATE  # noqa: SLF001
        self._pool._state = self._pool.TERMINATE  # noqa: SLF001
        if (run := getattr(prefork, "_run_ready_callbacks", None)) is not None:  # Celery 5.6 lacks it
            with suppress(Exception):
                run(self._hub)

    def pids(self) -> list[int]:
        """The children's process ids, also for another thread."""
        inner = self.inner
        return [] if inner is None else [child.pid for child in list(inner._pool)]  # noqa: SLF001

    def _alive(self) -> list[Any]:
        return [child for child in list(self.inner._pool) if child._is_alive()]  # noqa: SLF001

    def _half_written(self) -> dict[int, Any]:
        """Unfinished writes to living children, by pipe."""
        writers = self.inner._active_writers  # noqa: SLF001
        found = {}
        for job in self.not_begun():
            writer = getattr(job, "_writer", lambda: None)()
            child = job._write_to  # noqa: SLF001
            if writer is not None and writer in writers and child is not None and child._is_alive():  # noqa: SLF001
                found[child.inqW_fd] = writer
        return found

    def _read(self, pipe: int) -> None:
        """Read from this pipe. A message may come in pieces, which the loop collects."""
        reading, _ = self._hub.readers.get(pipe, (None, ()))
        try:
            if isgenerator(reading):
                next(reading, None)
            else:
                self.inner._result_handler.handle_event(pipe)  # noqa: SLF001
        except (OSError, EOFError):  # the child died while writing; Celery handles its death
            return
        except Exception:  # noqa: BLE001 - the application's callback, or invalid bytes; the others go on
            log.exception("child.unheard")

    def _reap(self) -> None:
        """Have Celery count dead children, after their result pipes are drained."""
        self.inner.process_flush_queues = self._drain
        try:
            self.inner._join_exited_workers(shutdown=True)  # noqa: SLF001
        except billiards.WorkersJoined:
            return
        except Exception:  # noqa: BLE001 - the application's callback; the others go on
            log.exception("child.unheard")

    def _drain(self, child: Any) -> None:
        poll = select.poll()
        poll.register(child.outqR_fd, select.POLLIN)
        while any(event & select.POLLIN for _, event in poll.poll(0)):
            if self.inner._fileno_to_outq.get(child.outqR_fd) is not child:  # noqa: SLF001
                return
            self._read(child.outqR_fd)


def take_back(owner: Deliveries, jobs: set[Any]) -> None:
    """Mark the messages of jobs that no child has begun, which go back uncounted and are not suspect."""
    for held in list(owner.held.values()):
        if held.request is not None and held.request.is_one_of(jobs):
            held.request.take_back()
