"""`@redeliver(...)`: a task's own policy, written on the task.

It stands above or below `@app.task` and `@shared_task`, with or without parentheses, and returns the decorated object. It only sets
an attribute: on the function of the task, if it has one, so that every app that registers the function finds it. Celery's lazy
tasks are not evaluated. The worker reads the attribute with `options_of`.

Raises `ConfigurationError` for what `Options` refuses, for a second `@redeliver` on a task, and for an object that is not a task.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from celery import Task
from celery.local import PromiseProxy, Proxy
from tenacity.retry import retry_base
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from redelivery.errors import ConfigurationError

from .options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redelivery.settings import PolicyFields

    from .options import Retry, Stop, Wait

#: The decorated object, which is returned unchanged. With a ParamSpec, type checkers would see a plain callable without a task's
#: `delay` (`tests/support/typing_user/` has both).
T = TypeVar("T", bound="Callable[..., Any]")

#: `functools.wraps` copies this attribute.
NOTE = "__redelivery_options__"
#: The most decorators around one function; they may refer to each other in a loop.
MAX_WRAPPERS = 32
NOTHING: Any = object()


@overload
def redeliver(task: T, /) -> T: ...


@overload
def redeliver(
    *,
    wait: Wait | None = None,
    stop: Stop | None = None,
    retry: Retry | None = None,
    **fields: Unpack[PolicyFields],
) -> Callable[[T], T]: ...


def redeliver(task: Any = NOTHING, /, **given: Any) -> Any:
    """Give a task its own policy: any field of `RedeliveryPolicy`, or tenacity's `wait`, `stop` and `retry`.

    It takes precedence over the settings' `queues` and `tasks`; `override` and what the task raises take precedence over it. The
    message waits in the broker, and each attempt is a delivery. Raises `ConfigurationError`.
    """
    options = Options.of(given)

    def decorate(decorated: T) -> T:
        _refuse_if_no_task(decorated)
        return _noted(decorated, options)

    return decorate if task is NOTHING else decorate(task)


def options_of(task: Any) -> Options | None:
    """The options of a task's decorator; None if it has none. `task` may be a Celery task or a plain function."""
    for place in _places(task):
        found = getattr(place, NOTE, None)
        if isinstance(found, Options):
            return found
    return None


def _places(task: Any) -> Iterator[Any]:
    yield task
    for place in (getattr(task, "run", None), getattr(task, "__wrapped__", None)):
        function = place
        for _ in range(MAX_WRAPPERS):
            if function is None:
                break
            yield function
            function = getattr(function, "__wrapped__", None)


def _refuse_if_no_task(task: Any) -> None:
    if issubclass(type(task), Proxy):
        return
    if isinstance(task, (wait_base, stop_base, retry_base)) or not callable(task):
        msg = f"@redeliver takes keyword arguments only, as in @redeliver(max_delivery_attempts=5) or wait=..., not {task!r}"
        raise ConfigurationError(msg)


def _noted(task: T, options: Options) -> T:
    place = _attribute_owner(task)
    if NOTE in vars(place):
        msg = f"@redeliver is on {getattr(place, '__qualname__', place)} twice: put all of it into one"
        raise ConfigurationError(msg)
    setattr(place, NOTE, options)
    return task


def _attribute_owner(task: Any) -> Any:
    """The object that gets the attribute: the function of a task, or the task. Evaluates no lazy task."""
    if issubclass(type(task), Proxy):
        task = _behind_proxy(task)
    if isinstance(task, Task) and getattr(task, "_decorated", False):
        task = task.__wrapped__
    return getattr(task, "__func__", task)


def _behind_proxy(proxy: Any) -> Any:
    if issubclass(type(proxy), PromiseProxy):
        if proxy.__evaluated__():
            return proxy._get_current_object()  # noqa: SLF001 - the task behind Celery's lazy one
        (function,) = object.__getattribute__(proxy, "_Proxy__args")
        return function
    make = object.__getattribute__(proxy, "_Proxy__local")
    function = inspect.getclosurevars(make).nonlocals.get("fun") if inspect.isfunction(make) else None
    if function is None:
        msg = "@redeliver cannot see through this lazy task: write it below @shared_task, directly on the function"
        raise ConfigurationError(msg)
    return function
