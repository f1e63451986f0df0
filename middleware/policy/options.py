"""The arguments of `@redeliver(...)`: policy fields, and tenacity's `wait`, `stop` and `retry`.

`stop` replaces `max_delivery_attempts` and `max_age` of the settings' `queues` and `tasks`. These fields in the decorator, and in
`override`, still apply. If `stop` is made from `stop_after_attempt`, its number becomes `max_delivery_attempts`, so that every part
of the worker knows the limit without calling `stop`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from tenacity import RetryCallState, stop_after_attempt, stop_all, stop_any

from redelivery.errors import ConfigurationError
from redelivery.settings import FIELDS, UNLIMITED, read_fields
from redelivery.settings.values import unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Tenacity's strategies: its own objects, or any callable.
Wait = Callable[[RetryCallState], float]
Stop = Callable[[RetryCallState], bool]
Retry = Callable[[RetryCallState], bool]
STRATEGIES = ("wait", "stop", "retry")
WHERE = "@redeliver"
#: The attributes in which tenacity's composed strategies keep their parts.
PARTS = ("retries", "stops", "strategies", "wait_funcs")
#: The fields that `wait` replaces.
DELAYS = ("redelivery_delay", "redelivery_delay_multiplier", "max_redelivery_delay", "redelivery_collision_avoidance_factor")
#: The fields that `stop` replaces.
LIMITS = ("max_delivery_attempts", "max_age")
#: Tenacity's other arguments, why they are refused, and what to do instead.
HOOKS: Mapping[str, str] = {
    "sleep": "the wait happens in the broker, and no process sleeps; give wait= alone",
    "before": "each attempt is a delivery of its own; use Celery's task_prerun signal",
    "after": "each attempt is a delivery of its own; use Celery's task_postrun signal",
    "before_sleep": "the wait happens in the broker; use Celery's task_retry signal",
    "retry_error_cls": "the task's own exception is raised after the last attempt; use an error callback (link_error)",
    "retry_error_callback": "the last attempt ends in the dead-letter queue; use an error callback (link_error)",
    "reraise": "after the last attempt the task's own exception is always raised; leave it out",
    "name": "the task's name is used; leave it out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one task's decorator.

    `fields` are policy fields with checked values, always the same mapping. `implied` names the fields that `stop` implies.
    `redelivery.middleware.policy.strategies` calls `wait`, `stop` and `retry`.
    """

    fields: Mapping[str, Any]
    implied: frozenset[str] = frozenset()
    wait: Wait | None = None
    stop: Stop | None = None
    retry: Retry | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Check the decorator's arguments. Raises `ConfigurationError`."""
        for key in given:
            if key in HOOKS:
                msg = f"{WHERE}: {key} is not for redelivery: {HOOKS[key]}"
                raise ConfigurationError(msg)
            if key not in FIELDS and key not in STRATEGIES:
                raise unknown(WHERE, key, (*FIELDS, *STRATEGIES))
        strategies = {key: given[key] for key in STRATEGIES if given.get(key) is not None}
        for key, strategy in strategies.items():
            _refuse_unusable(key, strategy)
        fields = read_fields({key: value for key, value in given.items() if key in FIELDS}, WHERE)
        if "wait" in strategies and (both := [key for key in DELAYS if key in fields]):
            msg = f"{WHERE}: wait and {both[0]} both say how long to wait: keep one"
            raise ConfigurationError(msg)
        implied = _implied(strategies["stop"]) if "stop" in strategies else {}
        implied = {key: value for key, value in implied.items() if key not in fields}
        return cls(fields=MappingProxyType({**fields, **implied}), implied=frozenset(implied), **strategies)

    @property
    def has_strategy(self) -> bool:
        """Whether there is a strategy of tenacity to call."""
        return self.wait is not None or self.stop is not None or self.retry is not None

    def under(self, sources: Mapping[str, str]) -> Options:
        """These options without the strategies whose fields the settings' `override` sets.

        `sources` names the source of each field of the merged policy.
        """
        overridden = {key for key, origin in sources.items() if origin.startswith("override.")}
        wait = None if overridden.intersection(DELAYS) else self.wait
        stop = None if overridden.intersection(LIMITS) else self.stop
        return self if wait is self.wait and stop is self.stop else replace(self, wait=wait, stop=stop)


def _refuse_unusable(key: str, strategy: Any) -> None:
    if not callable(strategy):
        hint = "; for a fixed delay write redelivery_delay=... or wait=wait_fixed(...)" if key == "wait" else ""
        rule = f"one of tenacity's {key} objects, or a callable that takes a RetryCallState"
        msg = f"{WHERE}: {key} must be {rule}, not {strategy!r}{hint}"
        raise ConfigurationError(msg)
    if isinstance(strategy, type):
        msg = f"{WHERE}: {key} is the class {strategy.__name__}, and must be an object: write {strategy.__name__}(...)"
        raise ConfigurationError(msg)
    if _is_asynchronous(strategy):
        msg = f"{WHERE}: {key} is asynchronous, and Celery's tasks are not: use what tenacity offers outside tenacity.asyncio"
        raise ConfigurationError(msg)


def _is_asynchronous(strategy: Any) -> bool:
    """Whether a strategy, or a part of it, returns a coroutine: a composed strategy would take that for true."""
    called = strategy.func if isinstance(strategy, functools.partial) else strategy
    if inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__):
        return True
    return any(_is_asynchronous(part) for name in PARTS for part in getattr(strategy, name, ()))


def _implied(stop: Stop) -> dict[str, Any]:
    most = _most_attempts(stop)
    return {"max_delivery_attempts": UNLIMITED if most is None else most, "max_age": None}


def _most_attempts(stop: Any) -> int | None:
    """The most attempts that this allows; None if only a call can tell."""
    if type(stop) is stop_after_attempt:
        most = stop.max_attempt_number
        return max(math.ceil(most), 1) if math.isfinite(most) else None
    if type(stop) not in {stop_any, stop_all}:
        return None
    parts = [_most_attempts(each) for each in stop.stops]
    known = [each for each in parts if each is not None]
    if type(stop) is stop_any:
        return min(known, default=None)
    return max(known, default=None) if len(known) == len(parts) else None
