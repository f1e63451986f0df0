"""The stop of a worker whose pool has processes or threads: a signal is only noted, and the worker stops at a safe moment.

Celery does a cold shutdown inside the signal's handler, which may interrupt the main thread anywhere: while it writes a task to a
child or a frame to the broker, or while it holds a lock. The handler then uses a half-written pipe or a held lock, and the worker
may wait for ever. Here the handler's calls only note that they were made. Celery itself looks at its flags between two turns of its
loop, and wherever it waits for the broker; it then closes the consumer and stops the pool, in this order:

1. *Tasks that were given to the pool go on*, and no more are given: to their end in a warm stop; in a soft stop for
   `worker_soft_shutdown_timeout` seconds, or until the next signal.
2. *A cold stop ends the tasks that run*; children that have not ended after `GRACE` seconds are killed.
3. *A task that no child had begun* goes back uncounted; a task that had begun, and was ended, is a suspect.

A third signal ends the children at once. If a library or a hook of the application blocks the main thread, the process ends itself
`LAST` seconds after the cold stop was asked for (`last_resort`). Its lease then ends, as after any worker's death, and other
workers take over its messages.

Limits: this is for Celery's pools of processes and threads with an event loop, in 5.6 and 5.7. In any other version Celery alone
stops the worker, and a line says so (`stop.unknown`). Threads cannot be ended: a task in one goes on, and Python waits for it.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.apps import worker as celerys
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from celery.worker import state

from ... import known
from ...logs import log
from .last_resort import LastResort
from .processes import PoolProcesses, take_back
from .signal_output import hear_first
from .threads import PoolThreads

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from celery.worker.consumer import Consumer

    from ...runtime import Runtime

#: Seconds that one turn takes at most; a signal may go unnoticed for this long.
TURN = 0.05
#: The calls in Celery's handler of a cold shutdown that reach the pool or the broker.
CALLS = {"wait_for_soft_shutdown", "cancel_active_requests", "cancel", "stop"}
CELERYS = "this version of Celery or its pool was not tested: Celery alone stops the worker, and a stop by a signal may hang"
#: The second signal ends a soft shutdown at once.
AT_ONCE = 2

logger = get_logger(__name__)


def stop_of(consumer: Consumer, runtime: Runtime) -> Stop | None:
    """The stop of this consumer's worker; None if Celery alone stops it."""
    kinds = {each.__module__ for each in type(consumer.pool).__mro__}
    has_kind = "celery.concurrency.prefork" in kinds or "celery.concurrency.thread" in kinds
    if consumer.hub is None or not runtime.enforces or not has_kind:
        return None
    if not is_known():
        lacks = ",".join(sorted(CALLS - _calls())) or "a version that is known"
        log.warning("stop.unknown", lacks=lacks, why=CELERYS)
        return None
    return Stop(consumer, runtime)


def is_known() -> bool:
    """Whether Celery's handler of a cold shutdown is a known one, and the versions of Celery and its pool are known."""
    return _calls() >= CALLS and known.is_known("celery", "billiard")


def _calls() -> set[str]:
    """The names that Celery's handler of a cold shutdown uses."""
    code = getattr(getattr(celerys, "on_cold_shutdown", None), "__code__", None)
    return set() if code is None else {*code.co_names}


def spare_the_handler(consumer: Consumer, runtime: Runtime) -> None:
    """The consumer has connected: keep signal handlers, on every pool, from calling the broker and from waiting for each other.

    If a handler waited for the broker's answer, it would receive the next messages in the middle of the code that it has
    interrupted: a task, another call to the broker, or code that holds a lock. Celery closes the consumer again when its loop has
    ended; messages that come until then stay held, and are given back.

    Each handler sends `worker_shutting_down`, and looks up its receivers under a lock. If a second signal comes at that moment, its
    handler would wait for ever for the handler that it has interrupted. So the lock becomes one that a thread may take twice.
    """
    signals.worker_shutting_down.lock = threading.RLock()
    cancel = consumer.task_consumer.cancel

    def cancel_later() -> None:
        if is_known() and _in_handler():
            runtime.is_ending = True
        else:
            cancel()

    consumer.task_consumer.cancel = cancel_later


class Stop:
    """Replaces the methods of a worker that a signal's handler calls, and its pool's `stop` and `terminate`."""

    def __init__(self, consumer: Consumer, runtime: Runtime) -> None:
        self._runtime, self._hub, self._conf = runtime, consumer.hub, consumer.app.conf
        pool: Any = consumer.pool
        self._tasks = PoolThreads(pool, runtime) if runtime.shares_process else PoolProcesses(pool, consumer.hub)
        self._asked, self._asked_at, self._is_announced, self._has_ended = 0, 0.0, False, False
        self._wakes, self._wake = socket.socketpair()
        self._wakes.settimeout(0)
        self._wake.settimeout(0)
        self._last_resort = LastResort(self._tasks.pids)
        self._is_celerys = False
        self._cancel, self._wait_softly = consumer.cancel_active_requests, consumer.controller.wait_for_soft_shutdown
        self._stop, self._terminate = pool.stop, pool.terminate
        consumer.controller.wait_for_soft_shutdown = self._note
        consumer.cancel_active_requests = self._note_again
        pool.stop, pool.terminate = self.stop, self.terminate
        hear_first(self._hear)
        signals.worker_shutting_down.connect(self._wake_up, weak=False, dispatch_uid=f"redelivery:stop:{id(consumer.app)}")

    def watch(self, consumer: Consumer) -> None:
        """The consumer has connected: a signal wakes its loop."""
        consumer.hub.add_reader(self._wakes, self._awake)
        self._last_resort.begin()

    def close(self) -> None:
        """The worker has stopped. Threads may run on, because they hold no message any more; children must not outlive it."""
        if self._runtime.shares_process:
            self._last_resort.cancel()
        self._wakes.close()
        self._wake.close()

    # called by Celery, inside a signal's handler

    def _hear(self) -> None:
        if _in_handler():
            self._note()
            self._last_resort.ask(self._soft)

    def _note(self) -> None:
        if not self._asked:
            self._asked_at = time.monotonic()
        self._wake_up()

    def _note_again(self) -> None:
        self._asked += 1
        self._wake_up()
        self._last_resort.ask(self._soft)
        if self._is_celerys:
            self._cancel()

    def _wake_up(self, **_: Any) -> None:
        with suppress(OSError):  # the socket is full, so that the loop wakes anyway; or it is closed
            self._wake.send(b"!")

    def _awake(self) -> None:
        with suppress(OSError):
            self._wakes.recv(4096)

    # called by Celery at a safe moment

    def stop(self) -> None:
        """A warm stop, which a signal may make a cold one."""
        if not _in_handler():
            self._end(self._stop)

    def terminate(self) -> None:
        """A cold stop."""
        if not self._asked:  # no signal has asked for it
            self._asked = AT_ONCE
        self._end(self._terminate)

    @property
    def _soft(self) -> float:
        return float(getattr(self._conf, "worker_soft_shutdown_timeout", 0) or 0)

    @property
    def _is_soft(self) -> bool:
        """Whether a cold stop was asked for, and the soft stop before it still has time."""
        return 0 < self._asked < AT_ONCE and time.monotonic() < self._asked_at + self._soft

    def _end(self, celerys_own: Callable[[], None]) -> None:
        tasks = self._tasks
        if self._has_ended or not tasks.is_known():
            self._end_as_celery_does(celerys_own)
            return
        self._has_ended = True
        try:
            self._let_end()
            if self._asked:
                state.should_terminate = state.should_terminate or EX_FAILURE
            if not tasks.is_over():
                self._cut()
        finally:
            tasks.kill()
            if jobs := set(tasks.not_begun()):
                take_back(self._runtime.owner, jobs)
            tasks.close(celerys_own)

    def _end_as_celery_does(self, celerys_own: Callable[[], None]) -> None:
        """Let Celery stop the pool, which has ended or is of an unknown kind. With an unknown kind, Celery handles signals, too."""
        if missing := self._tasks.lacks():
            log.warning("stop.unknown", lacks=",".join(missing), why=CELERYS)
            self._is_celerys = True
            if self._runtime.shares_process:
                self._last_resort.cancel()  # Celery waits for what runs, however long that takes
            if self._asked:
                self._wait_softly()
                self._cancel()
        celerys_own()

    def _let_end(self) -> None:
        """Let tasks that were given to the pool go on until they have ended, or their time is over."""
        while (not self._asked or self._is_soft) and (not self._tasks.is_over() or self._waits_when_idle()):
            if self._asked:
                state.should_terminate = None  # a task that fails meanwhile has failed by itself: this stop has not ended it
                self._announce()
            self._turn()
            with suppress(Exception):  # time limits, heartbeats
                self._hub.fire_timers()

    def _waits_when_idle(self) -> bool:
        return self._is_soft and bool(getattr(self._conf, "worker_enable_soft_shutdown_on_idle", False))

    def _announce(self) -> None:
        if not self._is_announced:
            self._is_announced = True
            logger.warning("Initiating Soft Shutdown, terminating in %s seconds", self._soft)

    def _cut(self) -> None:
        self._tasks.cut(self._cancel)
        until = time.monotonic() + self._tasks.grace
        while not self._tasks.is_over() and time.monotonic() < until:
            self._turn()

    def _turn(self) -> None:
        self._tasks.tell()
        self._tasks.turn(TURN)


def _in_handler() -> bool:
    """Whether the caller is Celery's handler of a cold shutdown."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - Python's own way
    while frame is not None and frame.f_code is not celerys.on_cold_shutdown.__code__:
        frame = frame.f_back
    return frame is not None
