"""All settings of an app, from all their sources, and the policy that follows from them for one queue and task.

For each setting, the last of these applies: built-in, `queues`, `tasks`, decorator, `override` (its queues, then its tasks). Within
a table the more specific pattern wins (`redelivery.settings.matching`). The sources are read as if they were one file: the TOML
file, then `app.conf.redelivery`, then the environment. If several sources have the same row, the last one wins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from redelivery.errors import ConfigurationError

from . import sources
from .general import GENERAL, GeneralSettings
from .matching import AddressPattern
from .policy import FIELDS, UNLIMITED, RedeliveryPolicy, read_fields
from .sources import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from os import PathLike

BUILT_IN, DECORATOR = "built-in", "decorator"
#: The app has few queues and tasks; this bounds the memory if messages name many others.
MAX_REMEMBERED = 10_000
#: If the result backend cannot count a chord's members, this task polls them with `retry`, which is no failure.
CHORD_UNLOCK = Row(
    sources.TASKS,
    AddressPattern("celery.chord_unlock"),
    {"max_delivery_attempts": UNLIMITED, "max_age": None},
    BUILT_IN,
)


@dataclass(frozen=True, slots=True)
class ResolvedPolicy:
    """The policy for one queue and task, and the source of each of its values."""

    queue: str
    task: str | None
    policy: RedeliveryPolicy
    sources: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RedeliverySettings(GeneralSettings):
    """The general settings as attributes, and the tables that `policy_for` uses. Build it with `load`.

    `general_sources` names the source of each general setting.
    """

    rows: tuple[Row, ...] = ()
    general_sources: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    _remembered: dict[tuple[str, str | None], tuple[Mapping[str, Any] | None, ResolvedPolicy]] = field(
        default_factory=dict,
        init=False,
        repr=False,
        compare=False,
    )

    @classmethod
    def load(
        cls,
        conf: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        toml: str | PathLike[str] | None = None,
    ) -> Self:
        """Read the TOML file, the app's mapping and the environment. Raises `ConfigurationError`.

        `conf` is `app.conf.redelivery`. If `environ` is None, the process's own environment is read. If `toml` is None, the file
        that the environment's `REDELIVERY_CONFIG` names is read.
        """
        environ = os.environ if environ is None else environ
        toml = environ.get(sources.CONFIG) if toml is None else toml
        read = [] if toml is None else [sources.toml_file(toml)]
        if conf is not None:
            read.append(sources.mapping(conf, "app.conf.redelivery"))
        read.append(sources.environment(environ))
        general, origins = _merged(GENERAL, ((each.general, each.name) for each in read))
        return cls(**general, rows=tuple(row for each in read for row in each.rows), general_sources=origins)

    def policy_for(self, queue: str, task: str | None = None, decorator: Mapping[str, Any] | None = None) -> ResolvedPolicy:
        """The policy for a task on a queue. Raises `ConfigurationError` if the merged fields contradict each other.

        `decorator` holds the fields of the task's decorator (`Options.fields`). The result is cached for this mapping object, which
        must not change afterwards.
        """
        known = self._remembered.get((queue, task))
        if known is not None and known[0] is decorator:
            return known[1]
        resolved = self._resolve(queue, task, decorator)
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[queue, task] = (decorator, resolved)
        return resolved

    def _resolve(self, queue: str, task: str | None, decorator: Mapping[str, Any] | None) -> ResolvedPolicy:
        merged, origins = _merged(FIELDS, self._layers(queue, task, decorator))
        try:
            policy = RedeliveryPolicy(**merged)
        except ConfigurationError as error:
            raise ConfigurationError(_contradiction(queue, task, str(error), origins)) from None
        return ResolvedPolicy(queue, task, policy, origins)

    def _layers(self, queue: str, task: str | None, decorator: Mapping[str, Any] | None) -> Iterator[tuple[Mapping[str, Any], str]]:
        yield from self._matching(sources.QUEUES, queue)
        yield from self._matching(sources.TASKS, task)
        if decorator is not None:
            yield read_fields(decorator, DECORATOR), DECORATOR
        yield from self._matching(sources.OVERRIDE_QUEUES, queue)
        yield from self._matching(sources.OVERRIDE_TASKS, task)

    def _matching(self, table: str, address: str | None) -> Iterator[tuple[Mapping[str, Any], str]]:
        """The rows of a table that match, the most specific last. Equally specific rows keep the order written."""
        if address is None:
            return
        matching = [row for row in (CHORD_UNLOCK, *self.rows) if row.table == table and row.pattern.matches(address)]
        for row in sorted(matching, key=lambda row: row.pattern.specificity):
            yield row.fields, str(row)


def _merged(names: Iterable[str], layers: Iterable[tuple[Mapping[str, Any], str]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of these layers, of which a later one wins, and the layer that each name has its value from."""
    merged: dict[str, Any] = {}
    origins = dict.fromkeys(names, BUILT_IN)
    for given, origin in layers:
        merged.update(given)
        origins.update(dict.fromkeys(given, origin))
    return merged, origins


def _contradiction(queue: str, task: str | None, error: str, origins: Mapping[str, str]) -> str:
    named = [
        f"{key} from {origin}" for key, origin in origins.items() if key in error.replace("(", " ").split() and origin != BUILT_IN
    ]
    subject = f"queue {queue!r}" if task is None else f"queue {queue!r}, task {task!r}"
    return f"{subject}: {error}{' [' + ', '.join(named) + ']' if named else ''}"
