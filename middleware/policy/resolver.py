"""The policies of one app: the policy for a queue and a task, and its decision about a failure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from redelivery.errors import ConfigurationError
from redelivery.lazily import cached_property
from redelivery.settings import RedeliverySettings
from redelivery.settings.general import read_general
from redelivery.settings.sources import TOP_LEVEL
from redelivery.settings.values import MAX_DURATION

from ..logs import log, redacting
from .decorator import options_of
from .strategies import StrategyFailed, decide_with_tenacity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from celery import Celery

    from redelivery.settings import RedeliveryPolicy, ResolvedPolicy

    from .decision import Decision, Failure
    from .options import Options

#: This bounds a producer's memory if the names never repeat.
MAX_BOUNDS = 10_000
#: The fields of a policy that limit how long messages live, or delay them.
TIMES = ("max_time_to_live", "respect_time_to_live", "delivery_delay")
#: The fields of a policy that choose dead-letter queues and expiry queues.
TARGETS = (
    "enabled",
    "dead_letter_queue",
    "dead_letter_queue_prefix",
    "dead_letter_queue_suffix",
    "expiry_queue",
    "auto_create_dead_letter_resources",
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a publication.

    - `is_dated`: the broker's time of publication is written into the message, because a lifetime counts from it.
    - `max_length`: the most messages in the queue, None without limit; `refuses`: publications beyond it are refused.
    """

    is_dated: bool
    max_length: int | None = None
    refuses: bool = False

    @classmethod
    def of(cls, queue: RedeliveryPolicy, task: RedeliveryPolicy) -> Self | None:
        """The bounds that follow from the policy of a queue, and of a task on it; None if there are none."""
        is_dated = task.enabled and (task.max_time_to_live is not None or task.delivery_delay > 0)
        max_length = queue.max_length if queue.enabled else None
        if not is_dated and max_length is None:
            return None
        return cls(is_dated, max_length, refuses=queue.overflow == "refuse_publish")


@dataclass(frozen=True, slots=True)
class Pace:
    """The retry budget that gives a message its slot (`docs/retry-budget.md`). The message expires at `latest_ms`."""

    queue: str
    per_second: float
    latest_ms: int | None = None

    @property
    def gap(self) -> str:
        """The milliseconds of a slot, as text for the script; a hundred years at most."""
        return repr(1000 * min(1 / self.per_second, MAX_DURATION))


def _written(conf: Mapping[str, Any]) -> Any:
    """The app's settings. Raises `ConfigurationError` for misplaced ones, which Celery accepts and nothing would read."""
    for name in TOP_LEVEL:
        if conf.get(f"redelivery_{name}") is not None:
            msg = f"app.conf: redelivery_{name} is not read: write it into the mapping redelivery, as {{'{name}': ...}}"
            raise ConfigurationError(msg)
    written = conf.get("redelivery")
    if written is None and conf.get("CELERY_REDELIVERY") is not None:
        msg = "app.conf: CELERY_REDELIVERY is read only with config_from_object(..., namespace='CELERY'): else write redelivery"
        raise ConfigurationError(msg)
    return written


class Resolver:
    """The policies of one app. `given` replaces the settings of `app.conf`; `mode` replaces the mode of either."""

    def __init__(self, app: Celery, given: Mapping[str, Any] | None, mode: str | None) -> None:
        self._app, self._given, self._mode = app, given, mode
        self._options: dict[str, Options | None] = {}
        self._bounds: dict[tuple[str, str], Bounds | None] = {}
        self._grouped, self._groups = 0, list[str]()

    @cached_property
    def settings(self) -> RedeliverySettings:
        """The settings, from the app's configuration, the environment and the TOML file. Raises `ConfigurationError`."""
        written = _written(self._app.conf)
        settings = RedeliverySettings.load(written if self._given is None else self._given)
        if settings.redact:
            redacting.add(self)
        return settings if self._mode is None else replace(settings, mode=read_general("mode", self._mode, "Redelivery"))

    @property
    def enforces(self) -> bool:
        """Whether the settings are carried out; false in `mode="observe"`."""
        return self.settings.mode == "enforce"

    def policy_for(self, queue: str, task: str | None = None) -> RedeliveryPolicy:
        """The policy for this task on this queue."""
        return self._resolved(queue, task).policy

    def _resolved(self, queue: str, task: str | None) -> ResolvedPolicy:
        options = None if task is None else self.options_of(task)
        return self.settings.policy_for(queue, task, decorator=None if options is None else options.fields)

    def targets_of(self, queue: str, which: Callable[[RedeliveryPolicy], bool] = lambda _: True) -> list[str]:
        """The queues that get this queue's dead letters and expired messages, by the policies of all tasks that are imported."""
        policies = filter(which, [self.policy_for(queue), *(self.policy_for(queue, task) for task in self._choosing_tasks())])
        targets = (find(queue) for policy in policies for find in (policy.dead_letter_queue_for, policy.expiry_queue_for))
        return sorted({target for target in targets if target is not None})

    def _choosing_tasks(self) -> Collection[str]:
        """One task of each group whose settings for `TARGETS` are the same: an app may have thousands of tasks."""
        if len(self._app.tasks) != self._grouped:
            self._grouped, groups = len(self._app.tasks), dict[str, str]()
            for task in self._app.tasks:
                found = self._resolved("", task)
                groups.setdefault(repr([(found.sources[name], getattr(found.policy, name)) for name in TARGETS]), task)
            self._groups = list(groups.values())
        return self._groups

    def is_enabled(self, task: str, queue: str | None = None) -> bool:
        """Whether redelivery is enabled for this task, which may be one of Celery's own (`celery.*`)."""
        return self.policy_for("" if queue is None else queue, task).enabled

    def options_of(self, task: str) -> Options | None:
        """The options of this task's decorator; None without a decorator, or if the app has no such task."""
        if task not in self._options:
            if task not in self._app.tasks:
                return None
            self._options[task] = options_of(self._app.tasks[task])
        return self._options[task]

    @cached_property
    def keeps_time(self) -> bool:
        """Whether any policy sets a field of `TIMES`; otherwise arrivals skip these checks."""
        decorated = (self.options_of(name) for name in self._app.tasks)
        rows = [*(row.fields for row in self.settings.rows), *(each.fields for each in decorated if each is not None)]
        return any(name in row for row in rows for name in TIMES)

    def bounds_of(self, queue: str, task: str) -> Bounds | None:
        """The limits of a publication of this task to this queue; None if there are none. Raises `ConfigurationError`."""
        if not self.enforces:
            return None
        if (queue, task) not in self._bounds:
            if len(self._bounds) >= MAX_BOUNDS:
                self._bounds.clear()
            self._bounds[queue, task] = Bounds.of(self.policy_for(queue), self.policy_for(queue, task))
        return self._bounds[queue, task]

    def pace_of(self, queue: str, latest_ms: int | None = None) -> Pace | None:
        """The pace of redeliveries to this queue; None if it has no retry budget."""
        per_second = self.policy_for(queue).redeliveries_per_second
        return None if per_second is None else Pace(queue, per_second, latest_ms)

    def judge(self, queue: str, task: str, policy: RedeliveryPolicy, failure: Failure, **asked: Any) -> Decision | None:
        """Decide about a failure or a result of this task by its strategies and its policy; None accepts the result.

        The settings' `override` for this queue replaces the strategies for the same fields. `asked` is for `decide_with_tenacity`.
        """
        options = self.options_of(task)
        if options is not None and options.has_strategy:
            options = options.under(self._resolved(queue, task).sources)
        try:
            return decide_with_tenacity(options, policy, failure, random=random, **asked)
        except StrategyFailed as failed:
            log.exception("decision.failed", task=task)
            return failed.decision
