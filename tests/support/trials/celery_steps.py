"""The steps of the trials' tasks: return, raise, retry, be replaced, or die."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from redelivery import DeadLetter, RedeliverAfter
from tests.support.trials.celery_notes import note

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Expected", "perform"]


class Unpicklable(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = open(os.devnull)  # noqa: SIM115, PTH123 - what pickle refuses


class Unbuildable(Exception):
    """Can be pickled, but not unpickled: its `__init__` needs other arguments."""

    def __init__(self, one: str, two: str = "", *, three: str) -> None:
        super().__init__(one)
        self.two, self.three = two, three


class Frozen(Exception):
    """Refuses attributes with `TypeError`, as models of some libraries do."""

    def __setattr__(self, name: str, value: object) -> None:
        message = f"{name} cannot be set"
        raise TypeError(message)


class Unshowable(Exception):
    """Raises `KeyError` for any attribute, so that it cannot be formatted."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Expected(Exception):
    """An ordinary failure of the tests."""


#: Seconds after which a task gives up at a closed gate: the timeout of a test.
MAX_WAIT = 300.0
WHY, IN_FLIGHT = "rejected by the task", "in flight"
EXCEPTIONS: dict[str, Callable[[str], BaseException]] = {
    "runtime": RuntimeError,
    "key": KeyError,
    "value": ValueError,
    "expected": Expected,
    "unpicklable": Unpicklable,
    "unbuildable": lambda message: Unbuildable(message, three="three"),
    "frozen": Frozen,
    "unshowable": Unshowable,
    "dead_letter": DeadLetter,
    "memory": MemoryError,
    "cancelled": asyncio.CancelledError,
    "exit": SystemExit,
    "after": lambda seconds: RedeliverAfter(float(seconds)),
}


def perform(task: Any, verb: str, options: dict[str, Any]) -> Any:
    step = globals().get(f"step_{verb}")
    assert step is not None, verb
    return step(task, **options)


def step_ok(_: Any, value: Any = None) -> Any:
    return value


def step_fail(_: Any, kind: str = "runtime", message: str = "no") -> None:
    raise EXCEPTIONS[kind](message)


def step_retry(
    task: Any, exc: str | None = None, during: str | None = None, in_seconds: float | None = None, odd: bool = False, **options: Any
) -> Any:
    """Call `self.retry`: with an exception, while handling one, with an ETA, or with arguments that cannot be serialised."""
    if exc is not None:
        options["exc"] = EXCEPTIONS[exc]("asked to retry")
    if in_seconds is not None:
        options["eta"] = datetime.now(UTC) + timedelta(seconds=in_seconds)
    else:
        options.setdefault("countdown", 0.1)
    if odd:
        options["kwargs"] = {"key": object()}
    try:
        if during is not None:
            raise EXCEPTIONS[during](IN_FLIGHT)
        return repr(type(task.retry(**options)))
    except (RuntimeError, ValueError, KeyError):
        if during is None or not str(sys.exc_info()[1]).strip("'") == IN_FLIGHT:
            raise
        return repr(type(task.retry(**options)))


def step_raise_retry(task: Any, in_seconds: float | None = None, called: bool = False, **options: Any) -> None:
    """Raise `Retry` without `self.retry`, or call a task as a function whose `self.retry` raises it."""
    if called:
        task.app.tasks["tests.support.trials.celery_app.add"](1, retries=1)
    if in_seconds is not None:
        options["when"] = datetime.now(UTC) + timedelta(seconds=in_seconds)
    msg = "by hand"
    raise Retry(msg, **options)


def step_reject(_: Any, *, requeue: bool = False) -> None:
    raise Reject(WHY, requeue=requeue)


def step_ignore(_: Any) -> None:
    raise Ignore


def step_nap(_: Any, seconds: float, value: Any = None, late: Any = None) -> Any:
    """Take a while. With `late`, return it at the soft time limit."""
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        if late is None:
            raise
        return late
    return value


def step_wait(_: Any, gate: str, value: Any = None) -> Any:
    """Wait until the gate, a file next to the notes, exists. Raises `TimeoutError` after `MAX_WAIT`."""
    deadline = time.monotonic() + MAX_WAIT
    while not Path(os.environ["SHOP_RUNS"]).with_name(f"gate-{gate}").exists():
        if time.monotonic() > deadline:
            msg = f"no test has opened the gate {gate!r}"
            raise TimeoutError(msg)
        time.sleep(0.02)  # another process can only be polled
    return value


def step_kill(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def step_replace(task: Any, sig: Any) -> Any:
    return task.replace(task.app.signature(sig))


def step_add_to_chord(task: Any, sig: Any, value: Any = None) -> Any:
    task.add_to_chord(task.app.signature(sig))
    return value


def step_forward(task: Any) -> None:
    """Publish another task with the headers of this task."""
    child = task.app.tasks["tests.support.trials.celery_app.play"].apply_async([["ok", {}]], headers=task.request.headers)
    note(task.request.id, "forwarded", child=child.id)


def step_big(_: Any, size: int) -> str:
    return "x" * size


def step_object(_: Any) -> Any:
    """Return a value that no serializer can encode."""
    return object()
