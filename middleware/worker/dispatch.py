"""The dispatch of a request to the pool, and its failures.

After an exception of the dispatch, Celery frees the pool's slot only if the task was revoked. Here each exception ends the message
or gives it back, and frees the slot:

- After an error that the message causes (headers that cannot be pickled, or that Celery cannot read), it dies, reason `invalid`.
- After any other error the message is given back, uncounted, after a second in the delay store, so that a broken worker does not
  receive it again at once.
- An exception that escapes from a task in a pool of threads, or in the worker itself (`solo`), counts as an attempt: `SystemExit`
  and `KeyboardInterrupt` count as a lost worker, as in a pool of processes.
- If the worker must stop while a message waits for a slot in a pool of greenlets, it gives that message back, uncounted.
- A killed greenlet has not succeeded, although its pool reports a success: the code that killed it reports the end. While a cold
  shutdown kills greenlets, no further one begins.
"""

from __future__ import annotations

import struct
import traceback
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
    from .deliveries.held_delivery import HeldDelivery
    from .request import Egress

#: What Celery, pickle or the timers may raise because of a message's bytes.
BY_THE_MESSAGE = (ArithmeticError, AttributeError, LookupError, PicklingError, RecursionError, TypeError, ValueError, struct.error)
#: The report of Celery's pools about a killed greenlet: no failure, no value, and, unlike any success, no run time.
ENDED = (False, None, None)
#: Methods of a request with wrappers that refer to the request. The wrappers are removed when the pool has the request: only the
#: garbage collector would free an object that refers to itself, which took a sixth of a worker's time.
WRAPPED = ("on_success", "on_accepted")


def hand_over(request: Egress, delivery: HeldDelivery, runtime: Runtime) -> None:
    """Wrap the request's `execute_using_pool`, a method of the class that Celery generates."""
    wrapped: Any = request
    request.is_handed_over = True
    execute, must_start = wrapped.execute_using_pool, delivery.must_start and not runtime.shares_process
    if runtime.shares_process:
        wrapped.on_success = _watching_success(request, wrapped.on_success)

    def execute_using_pool(pool: Any, **kwargs: Any) -> Any:
        del wrapped.execute_using_pool
        try:
            if must_start:
                runtime.start(delivery.held.tag)
            if getattr(pool, "is_green", False):
                wrapped.on_accepted = _unless_ending(request, delivery, runtime)
            result = execute(pool, **kwargs)
        except TaskRevokedError:
            raise
        except (WorkerShutdown, WorkerTerminate) as exc:
            _stop_hand_over(request, delivery, pool, exc)
            raise
        except Exception as exc:  # noqa: BLE001 - any client's message, any pool
            if isinstance(exc, Ignore) and request not in state.active_requests:  # its start was refused
                delivery.settlement.give_up(request)
            else:
                _end(request, delivery, pool, exc)
            raise TaskRevokedError(request.id) from None  # the only exception for which Celery frees the pool's slot
        finally:
            _remove_wrappers(request)
        if runtime.shares_process:
            request.keep_future(result)
            _watch(request, delivery, result)
        return result

    wrapped.execute_using_pool = execute_using_pool


def _remove_wrappers(request: Egress) -> None:
    for name in WRAPPED:
        request.__dict__.pop(name, None)


def _watching_success(request: Egress, on_success: Any) -> Any:
    """Correct a pool without processes, which calls `on_success` also for `SystemExit` and for a task that it has ended."""

    def on_success_or_end(result: Any, **kwargs: Any) -> None:
        if isinstance(result, ExceptionInfo):
            request.on_failure(result)
        elif result != ENDED:
            on_success(result, **kwargs)

    return on_success_or_end


def _unless_ending(request: Egress, delivery: HeldDelivery, runtime: Runtime) -> Any:
    """Keep a task from beginning in the slot of a greenlet that a cold shutdown has ended."""
    accepted = request.on_accepted

    def on_accepted(pid: Any, time_accepted: float) -> None:
        if runtime.is_ending:
            from greenlet import GreenletExit  # noqa: PLC0415 - every pool of greenlets has it

            request.take_back()
            raise GreenletExit
        _watch_current_greenlet(request, delivery)
        accepted(pid, time_accepted)

    return on_accepted


def _watch(request: Egress, delivery: HeldDelivery, result: Any) -> None:
    """Watch for an exception that a thread or a greenlet could not report."""
    future = getattr(result, "f", None)
    if future is not None:
        future.add_done_callback(lambda done: _report_thread(request, delivery, done))
    elif hasattr(result, "link_exception"):  # gevent's loop calls this, so it must not block
        result.link_exception(lambda done: type(done).spawn(lose, request, delivery, done.exception))


def _watch_current_greenlet(request: Egress, delivery: HeldDelivery) -> None:
    """Watch the current greenlet if it is eventlet's: its pool returns nothing to watch."""
    from greenlet import getcurrent  # noqa: PLC0415 - every pool of greenlets has it

    greenlet = getcurrent()
    if hasattr(greenlet, "link") and not hasattr(greenlet, "link_exception"):
        greenlet.link(_report_greenlet, request, delivery)


def _report_thread(request: Egress, delivery: HeldDelivery, done: Future[Any]) -> None:
    if done.cancelled():
        return
    request.keep_future(None)
    exc = done.exception()
    if exc is not None:
        lose(request, delivery, exc)


def _report_greenlet(greenlet: Any, request: Egress, delivery: HeldDelivery) -> None:
    try:
        greenlet.wait()  # does not block: it has ended
    except Exception as exc:  # noqa: BLE001 - the task's own code
        lose(request, delivery, exc)


def _stop_hand_over(request: Egress, delivery: HeldDelivery, pool: Any, exc: BaseException) -> None:
    """Handle a stop during the hand-over: the task was broken off (solo), or it was waiting for a slot."""
    if getattr(pool, "is_green", False) and request.time_start is None:
        request.take_back()
    else:
        lose(request, delivery, exc)


def lose(request: Egress, delivery: HeldDelivery, exc: BaseException) -> None:
    """Count an attempt that was broken off after it began, as a lost worker."""
    if delivery.has_left:
        return
    exc = _formattable(exc)
    log.error("message.broken_off", task_id=request.id, exc_info=exc)
    try:
        raise WorkerLostError(repr(exc)) from exc  # noqa: TRY301 - the report needs an exception that was raised
    except WorkerLostError:
        request.on_failure(ExceptionInfo())


def _formattable(exc: BaseException) -> BaseException:
    """The exception, or another one if Python cannot format it (for example, its `__getattr__` raises)."""
    try:
        traceback.format_exception(exc)
    except Exception:  # noqa: BLE001 - the application's own class
        return RuntimeError(f"{type(exc).__qualname__}: it, or its context, cannot be shown")
    return exc


def _end(request: Egress, delivery: HeldDelivery, pool: Any, exc: Exception) -> None:
    if delivery.has_left:
        log.exception("hook.failed", task_id=request.id, hook="execute_using_pool")
        return
    _discard_from_cache(request, pool)
    if request in state.active_requests:
        lose(request, delivery, exc)
    elif isinstance(exc, BY_THE_MESSAGE) and pool.active:
        log.exception("message.invalid", tag=delivery.held.tag, queue=delivery.held.queue)
        delivery.invalidate(request, ExceptionInfo())
    else:
        log.exception("message.set_back", task_id=request.id, queue=delivery.held.queue)
        delivery.settlement.set_back(request)


def _discard_from_cache(request: Egress, pool: Any) -> None:
    """Remove a task that never reached the pool from the pool's cache, which must be empty for a pool of processes to end."""
    cache = getattr(getattr(pool, "_pool", None), "_cache", None)
    for result in list(cache.values()) if isinstance(cache, dict) else []:
        if getattr(result, "correlation_id", None) == request.id and getattr(result, "_payload", None) is None:
            result.discard()
