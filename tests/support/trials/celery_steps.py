"""What a task of the trials may do in one attempt: return, raise, retry, be replaced, or die."""

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
    """Can be pickled, and cannot be built again: its `__init__` wants another number of arguments."""

    def __init__(self, one: str, two: str = "", *, three: str) -> None:
        super().__init__(one)
        self.two, self.three = two, three


class Frozen(Exception):
    """Refuses attributes in its own way, as a model of another library does."""

    def __setattr__(self, name: str, value: object) -> None:
        message = f"{name} cannot be set"
        raise TypeError(message)


class Unshowable(Exception):
    """Answers for any attribute with an error that is no `AttributeError`, so that nothing can format it."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Expected(Exception):
    """An ordinary failure of the tests."""


#: Seconds after which a gate that nobody opens ends its task: as long as a test may take.
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
    """Carry one step out."""
    step = globals().get(f"step_{verb}")
    assert step is not None, verb
    return step(task, **options)


def step_ok(_: Any, value: Any = None) -> Any:
    """Succeed with a value."""
    return value


def step_fail(_: Any, kind: str = "runtime", message: str = "no") -> None:
    """Raise an exception."""
    raise EXCEPTIONS[kind](message)


def step_retry(
    task: Any, exc: str | None = None, during: str | None = None, in_seconds: float | None = None, odd: bool = False, **options: Any
) -> Any:
    """Call `self.retry`: with an exception, while one is being handled, with an ETA, or with what cannot be serialised."""
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
    """Raise `Retry` without `self.retry`; or call a task as a function, whose `self.retry` then raises one."""
    if called:
        task.app.tasks["tests.support.trials.celery_app.add"](1, retries=1)
    if in_seconds is not None:
        options["when"] = datetime.now(UTC) + timedelta(seconds=in_seconds)
    msg = "by hand"
    raise Retry(msg, **options)


def step_reject(_: Any, *, requeue: bool = False) -> None:
    """Raise `Reject`."""
    raise Reject(WHY, requeue=requeue)


def step_ignore(_: Any) -> None:
    """Raise `Ignore`."""
    raise Ignore


def step_nap(_: Any, seconds: float, value: Any = None, late: Any = None) -> Any:
    """Take a while; with `late`, end well where the soft time limit ends it."""
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        if late is None:
            raise
        return late
    return value


def step_wait(_: Any, gate: str, value: Any = None) -> Any:
    """Wait until the gate, a file beside the notes, is there. Raises `TimeoutError` where no test opens it."""
    deadline = time.monotonic() + MAX_WAIT
    while not Path(os.environ["SHOP_RUNS"]).with_name(f"gate-{gate}").exists():
        if time.monotonic() > deadline:
            msg = f"nobody has opened the gate {gate!r}"
            raise TimeoutError(msg)
        time.sleep(0.02)  # another process's doing can only be looked for
    return value


def step_kill(_: Any) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def step_replace(task: Any, sig: Any) -> Any:
    """Replace this task."""
    return task.replace(task.app.signature(sig))


def step_add_to_chord(task: Any, sig: Any, value: Any = None) -> Any:
    """Add a task to the chord that this one belongs to."""
    task.add_to_chord(task.app.signature(sig))
    return value


def step_forward(task: Any) -> None:
    """Publish another task with this one's headers."""
    child = task.app.tasks["tests.support.trials.celery_app.play"].apply_async([["ok", {}]], headers=task.request.headers)
    note(task.request.id, "forwarded", child=child.id)


def step_big(_: Any, size: int) -> str:
    """Return so many characters."""
    return "x" * size


def step_object(_: Any) -> Any:
    """Return what no serializer of the tests can write."""
    return object()
