"""The stop of a worker whose pool has processes or threads: a signal is only noted, and the worker stops at a safe moment.

Celery does a cold shutdown inside the signal's handler, which may interrupt the main thread anywhere: while it writes a task to a
child or a frame to the broker, or while it holds a lock. The handler then uses a half-written pipe or a held lock, and the worker
may wait for ever. Here the handler's calls are only noted. Celery checks its flags between two turns of its loop, and wherever it
waits for the broker; it then closes the consumer and stops the pool, in this order:

1. The pool gets no more tasks. Its tasks go on: until they end in a warm stop; in a soft stop for `worker_soft_shutdown_timeout`
   seconds, or until the next signal.
2. A cold stop ends the running tasks; children that have not ended after `GRACE` seconds are killed.
3. A task that no child had begun goes back uncounted; a task that had begun, and was ended, is a suspect.

A third signal ends the children at once. If a library or a hook of the application blocks the main thread, the process ends itself
`LAST` seconds after the request for a cold stop (`last_resort`). Its lease then ends, and other workers take over its messages.

Limits: this is for Celery's pools of processes and threads with an event loop, in 5.6 and 5.7. Otherwise Celery alone stops the
worker, and a line says so (`stop.unknown`). Threads cannot be ended: a task in one goes on, and Python waits for it.
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
from .signal_output import note_before_output
from .threads import PoolThreads

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from celery.worker.consumer import Consumer

    from ...runtime import Runtime

#: The most seconds of one turn, and so the delay until a signal is noticed.
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
    """Whether Celery's handler of a cold shutdown, and the versions of Celery and its pool, are known."""
    return _calls() >= CALLS and known.is_known("celery", "billiard")


def _calls() -> set[str]:
    """The names that Celery's handler of a cold shutdown uses."""
    code = getattr(getattr(celerys, "on_cold_shutdown", None), "__code__", None)
    return set() if code is None else {*code.co_names}


def keep_handlers_short(consumer: Consumer, runtime: Runtime) -> None:
    """Keep signal handlers, on every pool, from calling the broker and from waiting for each other.

    If a handler waited for the broker's answer, it would receive the next messages inside the interrupted code: a task, another
    call to the broker, or code that holds a lock. Celery closes the consumer again after its loop; messages that come until then
    stay held, and are given back.

    Each handler sends `worker_shutting_down`, and looks up its receivers under a lock. The handler of a second signal then would
    wait for ever for the first handler. So the lock is replaced by one that a thread may take twice.
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
    """Replaces the methods of a worker that signal handlers call, and its pool's `stop` and `terminate`."""

    def __init__(self, consumer: Consumer, runtime: Runtime) -> None:
        self._runtime, self._hub, self._conf = runtime, consumer.hub, consumer.app.conf
        pool: Any = consumer.pool
        self._tasks = PoolThreads(pool, runtime) if runtime.shares_process else PoolProcesses(pool, consumer.hub)
        self._asked, self._asked_at, self._is_announced, self._has_ended = 0, 0.0, False, False
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.settimeout(0)
        self._wake_sender.settimeout(0)
        self._last_resort = LastResort(self._tasks.pids)
        self._is_celerys = False
        self._cancel, self._wait_softly = consumer.cancel_active_requests, consumer.controller.wait_for_soft_shutdown
        self._stop, self._terminate = pool.stop, pool.terminate
        consumer.controller.wait_for_soft_shutdown = self._note
        consumer.cancel_active_requests = self._note_again
        pool.stop, pool.terminate = self.stop, self.terminate
        note_before_output(self._note_signal)
        signals.worker_shutting_down.connect(self._wake_up, weak=False, dispatch_uid=f"redelivery:stop:{id(consumer.app)}")

    def watch(self, consumer: Consumer) -> None:
        """Let signals wake the loop of a consumer that has connected."""
        consumer.hub.add_reader(self._wake_receiver, self._awake)
        self._last_resort.begin()

    def close(self) -> None:
        """End the watch after the stop. Threads, which hold no messages, may run on; children must not outlive the worker."""
        if self._runtime.shares_process:
            self._last_resort.cancel()
        self._wake_receiver.close()
        self._wake_sender.close()

    # called by Celery, inside a signal's handler

    def _note_signal(self) -> None:
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
        with suppress(OSError):  # the socket is full, and the loop wakes anyway, or it is closed
            self._wake_sender.send(b"!")

    def _awake(self) -> None:
        with suppress(OSError):
            self._wake_receiver.recv(4096)

    # called by Celery at a safe moment

    def stop(self) -> None:
        """Stop warmly, until a signal asks for a cold stop."""
        if not _in_handler():
            self._end(self._stop)

    def terminate(self) -> None:
        """Stop cold."""
        if not self._asked:  # without a signal
            self._asked = AT_ONCE
        self._end(self._terminate)

    @property
    def _soft(self) -> float:
        return float(getattr(self._conf, "worker_soft_shutdown_timeout", 0) or 0)

    @property
    def _is_soft(self) -> bool:
        """Whether the time of the soft stop before a cold stop is not over."""
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
        """Let Celery stop a pool that has ended or is unknown. If it is unknown, Celery handles signals, too."""
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
        """Let the pool's tasks go on until they have ended, or their time is over."""
        while (not self._asked or self._is_soft) and (not self._tasks.is_over() or self._waits_when_idle()):
            if self._asked:
                state.should_terminate = None  # this stop has not ended a task that fails meanwhile
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
        self._tasks.ask_to_end()
        self._tasks.turn(TURN)


def _in_handler() -> bool:
    """Whether Celery's handler of a cold shutdown is among the callers."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - Python's own way
    while frame is not None and frame.f_code is not celerys.on_cold_shutdown.__code__:
        frame = frame.f_back
    return frame is not None
