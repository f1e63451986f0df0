"""A worker in a thread of the test's own process, with the user's app, its tasks and settings, and a real broker.

Before the test begins it consumes, answers remote control and runs its duties. Limits: tasks run in threads of the test's process,
so a task that kills its process kills the test, and time limits have no effect (Celery has none for threads). Tasks see what the
test's thread has patched or opened (a database transaction, for example) like any other thread.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from celery import _state
from celery.exceptions import ImproperlyConfigured
from celery.utils.nodenames import anon_nodename
from celery.worker import WorkController, state
from kombu.asynchronous import set_event_loop
from redis.exceptions import RedisError

from redelivery.errors import ConfigurationError, RedeliveryError

from ..brokers.redis.transport import redis_of
from ..duties.bootstep import Duties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery import Celery

    from redelivery.middleware.runtime import Runtime

#: A worker's default options, by Celery's names.
OPTIONS: dict[str, Any] = {"pool": "threads", "concurrency": 2, "queues": None}
#: Pools that can run in the test's process.
POOLS = ("threads", "solo")
#: Seconds between two looks at the broker.
LOOK = 0.01
PROMOTED_AT_ONCE = 500


def until(condition: Callable[[], Any], timeout: float, what: Callable[[], str]) -> Any:
    """Wait until a condition has a true value, and return it. Raises `TimeoutError`, with `what`, after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            msg = f"timed out after {timeout:g} s: {what()}"
            raise TimeoutError(msg)
        time.sleep(LOOK)  # the broker gives no signal to wait for


class _Controller(WorkController):
    """Celery's worker, which also keeps the cause of its end, and reports when it consumes."""

    cause: BaseException | None = None

    def on_before_init(self, **_: Any) -> None:
        self.consumes = threading.Event()

    def on_consumer_ready(self, consumer: Any) -> None:  # noqa: ARG002 - Celery's signature
        self.consumes.set()

    def stop(self, in_sighandler: bool = False, exitcode: Any = None) -> None:
        """Called by Celery when it has caught an exception that ends a worker."""
        if exitcode:
            self.cause = sys.exc_info()[1]
        super().stop(in_sighandler, exitcode)


class RunningWorker:
    """A worker while it runs. `app` is the user's, `hostname` the worker's name, `timeout` the seconds that a wait may take."""

    def __init__(self, install: Runtime, options: Mapping[str, Any], timeout: float) -> None:
        self.app: Celery = install.app
        self.runtime = install
        self.timeout = timeout
        self.hostname = anon_nodename(prefix=f"test{uuid.uuid4().hex[:8]}-")
        self._options = _checked(options)
        self._ending = ExitStack()
        self._controller: _Controller | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        with self._ending as ending:
            ending.enter_context(_restoring_globals(self.app))
            ending.callback(self._stop)
            self._start()
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def settle(self, timeout: float | None = None) -> None:
        """Wait until each published message has ended, or waits in the delay store. Raises `TimeoutError` with the work left."""
        self.rest(timeout)

    def rest(self, timeout: float | None = None) -> int | None:
        """As `settle`; return the milliseconds until the next message of the delay store is due, None if none waits."""
        found: list[int | None] = until(self._resting, self.timeout if timeout is None else timeout, self._describe_work)
        return found[0]

    def _start(self) -> None:
        self.runtime.worker = ""
        state.should_stop = None  # set by a worker that did not stop in time
        try:
            self._controller = _Controller(
                app=self.app,
                hostname=self.hostname,
                loglevel="WARNING",
                without_heartbeat=True,
                without_mingle=True,
                without_gossip=True,
                **self._options,
            )
        except (SystemExit, ImproperlyConfigured) as exc:  # how a worker refuses its settings
            raise _refusal(exc) from None
        self._thread = threading.Thread(target=self._controller.start, name="redelivery-test-worker", daemon=True)
        self._thread.start()
        until(self._is_ready, self.timeout, lambda: "the worker does not answer remote control")
        _state._set_task_join_will_block(blocks=False)  # noqa: SLF001 - the test, unlike a task, may wait for results

    def _is_ready(self) -> bool:
        assert self._controller is not None  # noqa: S101 - just made
        assert self._thread is not None  # noqa: S101 - just made
        if not self._thread.is_alive():
            raise _refusal(self._controller.cause)
        if not self._controller.consumes.is_set():
            return False
        return bool(self.app.control.ping(destination=[self.hostname], timeout=1.0, limit=1))

    def _stop(self) -> None:
        thread = self._thread
        if thread is None:
            return
        state.should_stop = 0
        try:
            if thread.is_alive():
                self.app.control.broadcast("ping", destination=[self.hostname])  # it ends the wait for messages
        finally:
            self._join(thread)
            if thread.is_alive():
                self._end_duties()
                names = ", ".join(sorted({each.name for each in list(state.active_requests)})) or "something"
                msg = f"the worker did not stop within {self.timeout:g} s: {names} still runs; let your tasks end before the test"
                raise TimeoutError(msg)
            state.should_stop = None

    def _end_duties(self) -> None:
        """End the duties of a worker that does not stop, so that it does not renew a lease on the app's own broker."""
        assert self._controller is not None  # noqa: S101 - it runs
        for step in self._controller.consumer.steps:
            if isinstance(step, Duties):
                step.shutdown(self._controller.consumer)

    def _join(self, thread: threading.Thread) -> None:
        """Wait for the worker's end. Wake its dispatcher, which sleeps up to a second."""
        deadline = time.monotonic() + self.timeout
        while thread.is_alive() and time.monotonic() < deadline:
            with suppress(RedisError, OSError):  # a test may have ended its broker
                redis_of(self.runtime).client.publish(redis_of(self.runtime).keys.wake, "")
            thread.join(LOOK * 2)

    # the worker's work

    def _resting(self) -> list[int | None]:
        """The time until the next message is due, in a list; an empty list if there is work to do."""
        redis_of(self.runtime).stores.promote(PROMOTED_AT_ONCE)
        work, due = self._look()
        return [] if work or (due is not None and due <= 0) else [due]

    def _look(self) -> tuple[dict[str, int], int | None]:
        """How many messages wait or are held, by place, and the milliseconds until the next delayed one is due, at one instant."""
        transport = redis_of(self.runtime)
        queues = list(self.app.amqp.queues.consume_from)
        places = {name: transport.keys.list(name) for queue in queues for name in transport.keys.list_names(queue)}
        with transport.client.pipeline(transaction=True) as pipe:
            for key in places.values():
                pipe.llen(key)
            pipe.hlen(transport.keys.unacked)
            pipe.zrange(transport.keys.destinations, 0, 0, withscores=True)
            pipe.time()
            *waiting, held, earliest, now = pipe.execute()
        found = {**dict(zip(places, waiting, strict=True)), "held by the worker": held, "in its outbox": len(self.runtime.outbox)}
        due = round(earliest[0][1]) - (int(now[0]) * 1000 + int(now[1]) // 1000) if earliest else None
        return {place: int(count) for place, count in found.items() if count}, due

    def _describe_work(self) -> str:
        work, _ = self._look()
        places = ", ".join(f"{place}: {count}" for place, count in work.items()) or "messages that come back at once"
        running = ", ".join(sorted(f"{each.name}[{each.id}]" for each in list(state.active_requests)))
        return f"there is still work to do ({places}{f'; running: {running}' if running else ''})"


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    options = {**OPTIONS, **options}
    if options["pool"] not in POOLS:
        msg = (
            f"the pool of a test's worker must be {' or '.join(POOLS)}, not {options['pool']!r}: it runs in the test's own process"
        )
        raise ConfigurationError(msg)
    return options


def _refusal(cause: BaseException | None) -> RedeliveryError:
    """The error for a worker that ended before it was ready."""
    reason = cause.__context__ if isinstance(cause, SystemExit) and cause.__context__ is not None else cause
    if isinstance(reason, RedeliveryError):
        return reason
    why = f"{type(reason).__name__}: {reason}" if reason is not None else "see its log"
    return RedeliveryError(f"the worker did not start: {why}")


@contextmanager
def _restoring_globals(app: Celery) -> Iterator[None]:
    """Restore after the test what a worker changes for its whole process: Celery's default app, its event loop."""
    default, current = _state.default_app, _state._tls.current_app  # noqa: SLF001 - Celery's threads have no other way to their app
    blocks, mutex, consumed = _state._task_join_will_block, app.clock.mutex, app.amqp.queues._consume_from  # noqa: SLF001 - as above
    app.finalize()
    app.set_default()
    app.set_current()
    set_event_loop(None)
    try:
        yield
    finally:
        set_event_loop(None)
        state.reset_state()
        app.clock.mutex = mutex
        app.amqp.queues._consume_from = consumed  # noqa: SLF001 - as above
        _state._set_task_join_will_block(blocks)  # noqa: SLF001 - as above
        _state._set_current_app(current)  # noqa: SLF001 - as above
        _state.set_default_app(default)
