"""The hand-over of a request to the pool, and whatever goes wrong there.

Celery gives the pool's place back for a task that was revoked, and for nothing else: any other exception costs a place until the
worker is started anew, and its message is held as long. Here each of them ends the message or gives it back, and the place comes
back:

- what the message itself has done (headers that cannot be pickled, or that Celery cannot read) is its death, reason `invalid`;
- what it has not (a pool that is going down, a broker or a result backend that does not answer) gives it back, uncounted, after a
  second in the delay store, so that a broken worker does not ask for it again at once;
- what a pool of threads, or the worker itself (`solo`), lets out of the task is an attempt that counts: `SystemExit` and
  `KeyboardInterrupt` are a lost worker, as they are where the pool has processes;
- a worker that is told to stop while a message waits for room in a pool of greenlets gives that message back, uncounted;
- a greenlet that was ended from outside has not succeeded, although its pool says so: whoever ended it tells what became of it.
  None begins any more once a cold shutdown does so.
"""

from __future__ import annotations

import struct
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, TaskRevokedError, WorkerShutdown, WorkerTerminate
from celery.worker import state

from ..logs import log

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..runtime import Runtime
    from .request import Egress

__all__ = ["hand_over"]

#: What the bytes of a message can make Celery, pickle or the timers raise.
BY_THE_MESSAGE = (ArithmeticError, AttributeError, LookupError, PicklingError, RecursionError, TypeError, ValueError, struct.error)
#: What Celery's pools of greenlets report of one that they have ended: no failure, no value, and, unlike any success, no run time.
ENDED = (False, None, None)
#: What stands around a request's own methods, and so refers to it: taken away as soon as the pool has it, because what refers to
#: itself is left to the garbage collector, which took a sixth of a worker's time.
OURS = ("on_success", "on_accepted")


def hand_over(request: Egress, runtime: Runtime) -> None:
    """Put ourselves around the request's `execute_using_pool`, which is the generated class's."""
    asked: Any = request
    request.is_told = True
    execute, must_start = asked.execute_using_pool, request.must_start and not runtime.shares_process
    if runtime.shares_process:
        asked.on_success = _hearing(request, asked.on_success)

    def execute_using_pool(pool: Any, **kwargs: Any) -> Any:
        del asked.execute_using_pool
        try:
            if must_start:
                runtime.start(request.message.held.tag)
            if getattr(pool, "is_green", False):
                asked.on_accepted = _unless_it_ends(request, runtime)
            result = execute(pool, **kwargs)
        except TaskRevokedError:
            raise
        except Ignore:  # another worker's by now
            state.task_ready(request)
            request.acknowledged = True
            runtime.owner.drop(request.message.held.tag)
            raise TaskRevokedError(request.id) from None
        except (WorkerShutdown, WorkerTerminate) as exc:
            _break_off(request, pool, exc)
            raise
        except Exception as exc:  # noqa: BLE001 - the message is anybody's, and so is the pool
            _end(request, pool, exc)
            raise TaskRevokedError(request.id) from None  # Celery gives the pool's place back for this exception alone
        finally:
            _uncover(request)
        if runtime.shares_process:
            request.keep_future(result)
            _listen(request, result)
        return result

    asked.execute_using_pool = execute_using_pool


def _uncover(request: Egress) -> None:
    """The pool has what it calls: take away what was put around it."""
    for name in OURS:
        request.__dict__.pop(name, None)


def _hearing(request: Egress, on_success: Any) -> Any:
    """A pool without processes tells of `SystemExit`, and of a task that it has ended, where it tells of success."""

    def hearing(result: Any, **kwargs: Any) -> None:
        if isinstance(result, ExceptionInfo):
            request.on_failure(result)
        elif result != ENDED:
            on_success(result, **kwargs)

    return hearing


def _unless_it_ends(request: Egress, runtime: Runtime) -> Any:
    """A cold shutdown makes room in a pool of greenlets by each one that it ends: what waited for that room must not begin."""
    accepted = request.on_accepted

    def on_accepted(pid: Any, time_accepted: float) -> None:
        if runtime.is_ending:
            from greenlet import GreenletExit  # noqa: PLC0415 - there with every pool of greenlets

            request.take_back()
            raise GreenletExit
        _listen_here(request)
        accepted(pid, time_accepted)

    return on_accepted


def _listen(request: Egress, result: Any) -> None:
    """Hear of what comes out of a thread, or of a greenlet, that could not report: nobody else looks there."""
    future = getattr(result, "f", None)
    if future is not None:
        future.add_done_callback(lambda done: _look_at(request, done))
    elif hasattr(result, "link_exception"):  # gevent: its loop calls this, and must not be kept waiting
        result.link_exception(lambda done: type(done).spawn(lose, request, done.exception))


def _listen_here(request: Egress) -> None:
    """The same for the greenlet that this is, where it is one of eventlet's, whose pool gives nothing back."""
    from greenlet import getcurrent  # noqa: PLC0415 - there with every pool of greenlets

    greenlet = getcurrent()
    if hasattr(greenlet, "link") and not hasattr(greenlet, "link_exception"):
        greenlet.link(_look_at_greenlet, request)


def _look_at(request: Egress, done: Future[Any]) -> None:
    """What has come out of a pool's thread: nobody else looks there."""
    if done.cancelled():
        return
    request.keep_future(None)
    exc = done.exception()
    if exc is not None:
        lose(request, exc)


def _look_at_greenlet(greenlet: Any, request: Egress) -> None:
    """What has come out of one of eventlet's; it is asked in that greenlet, and does not wait."""
    try:
        greenlet.wait()
    except Exception as exc:  # noqa: BLE001 - the task's own code
        lose(request, exc)


def _break_off(request: Egress, pool: Any, exc: BaseException) -> None:
    """The worker is told to stop in the middle of the hand-over: the task itself is ended (solo), or it was waiting for room."""
    if getattr(pool, "is_green", False) and request.time_start is None:
        request.take_back()
    else:
        lose(request, exc)


def lose(request: Egress, exc: BaseException) -> None:
    """An attempt that has begun was broken off: it counts, as a lost worker does."""
    if request.has_left:
        return
    log.error("message.broken_off", task_id=request.id, exc_info=exc)
    try:
        raise WorkerLostError(repr(exc)) from exc  # noqa: TRY301 - what is reported is an exception that was raised
    except WorkerLostError:
        request.on_failure(ExceptionInfo())


def _end(request: Egress, pool: Any, exc: Exception) -> None:
    if request.has_left:
        log.exception("hook.failed", task_id=request.id, hook="execute_using_pool")
        return
    _forget(request, pool)
    if request in state.active_requests:
        lose(request, exc)
    elif isinstance(exc, BY_THE_MESSAGE) and pool.active:
        log.exception("message.invalid", tag=request.message.held.tag, queue=request.message.held.queue)
        request.invalidate(ExceptionInfo())
    else:
        log.exception("message.set_back", task_id=request.id, queue=request.message.held.queue)
        request.set_back()


def _forget(request: Egress, pool: Any) -> None:
    """What a pool of processes remembers of a task that it never got would keep it from ending."""
    cache = getattr(getattr(pool, "_pool", None), "_cache", None)
    for result in list(cache.values()) if isinstance(cache, dict) else []:
        if getattr(result, "correlation_id", None) == request.id and getattr(result, "_payload", None) is None:
            result.discard()
