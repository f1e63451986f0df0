"""Attempts: how long they ran, what the failed ones cost, and in which release each cause first appeared.

The event that ends an attempt has its run time (`run_ms`) and the release of its worker. Without a run time (a killed child, an
event of an earlier version), the attempt counts with an unknown time.

Run times are counted in classes (`metrics.py`), so that there are few cells. The first count takes all events without removing
duplicates, which saves a shuffle. A task with a duplicate is never plain (`plain.py`), so the events of tasks that are not plain
are subtracted and counted again without duplicates. An event that is exported again for a later run counts in both runs.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame

from redelivery.middleware.messages.events import Outcome

from ..schema import or_default
from ..spark.sql import grouped, named, one_of
from .metrics import AFTER_AN_ATTEMPT, PERCENTILES, percentiles, time_class

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The column of `RUNS` with the percentiles of the run time, as an array.
RUN_TIMES: Final = "run_times_ms"

_KEYS: Final = ("queue", "task", "is_failed", "exception", "fingerprint", "release", "run_class")
_SUCCEEDED: Final = f"outcome = '{Outcome.SUCCEEDED}'"
_DIED: Final = f"{one_of('outcome', (Outcome.DEAD_LETTERED, Outcome.DISCARDED))} AND {one_of('reason', AFTER_AN_ATTEMPT)}"
_ENDS_AN_ATTEMPT: Final = f"({_SUCCEEDED} OR outcome = '{Outcome.REDELIVERY_SCHEDULED}' OR ({_DIED}))"

#: The sums of any group of cells, as aggregates.
RUNS: Final = {
    **{name: f"sum({name})" for name in ("attempts", "timed", "run_ms")},
    **{f"failed_{name}": f"coalesce(sum(CASE WHEN is_failed THEN {name} END), 0)" for name in ("attempts", "timed", "run_ms")},
    RUN_TIMES: percentiles("run_class", "timed"),
    "first_ms": "min(first_ms)",
    "first_release": "min(CASE WHEN release IS NOT NULL THEN struct(first_ms, release) END).release",
}


def attempts_of(events: DataFrame, asked: DataFrame | None) -> DataFrame:
    """The cells of all ended attempts. `asked` has the events of tasks that are not plain; None if `events` has only those."""
    ended = _ended(events)
    if asked is None:
        return _counted(_once(ended), 1)
    again = _ended(asked)
    parts = [_counted(ended, 1), _counted(again, -1), _counted(_once(again), 1)]
    sums = {name: f"sum({name})" for name in ("attempts", "timed", "run_ms")}
    return grouped(reduce(DataFrame.union, parts), _KEYS, {**sums, "first_ms": "min(first_ms)"}).where("attempts > 0")


def run_times_by(cells: DataFrame) -> DataFrame:
    """The run times of each queue and task, in ms."""
    rows = grouped(cells, ("queue", "task"), {name: count for name, count in RUNS.items() if not name.startswith("first_")})
    times = {f"run_p{each}_ms": f"CAST(round(get({RUN_TIMES}, {at})) AS BIGINT)" for at, each in enumerate(PERCENTILES)}
    return rows.selectExpr(*(name for name in rows.columns if name != RUN_TIMES), *named(times))


def failures_by(cells: DataFrame) -> DataFrame:
    """For each cause: the run time of its failed attempts, and the time and release of its first appearance."""
    counts = {name: RUNS[name] for name in ("attempts", "timed", "run_ms", "first_ms", "first_release")}
    return grouped(cells.where("is_failed"), ("queue", "task", "exception", "fingerprint"), counts)


def _ended(events: DataFrame) -> DataFrame:
    facts: Mapping[str, str] = {
        **{name: or_default(name) for name in ("queue", "task")},
        "is_failed": f"NOT {_SUCCEEDED}",
        **{name: f"IF({_SUCCEEDED}, '', {or_default(name)})" for name in ("exception", "fingerprint")},
        "run_class": time_class("run_ms"),
    }
    return events.where(_ENDS_AN_ATTEMPT).selectExpr("task_id", "event_id", "release", "run_ms", "at_ms", *named(facts))


def _once(ended: DataFrame) -> DataFrame:
    return ended.dropDuplicates(["task_id", "event_id"])


def _counted(ended: DataFrame, times: int) -> DataFrame:
    counts = {"attempts": "count(*)", "timed": "count(run_ms)", "run_ms": "coalesce(sum(run_ms), 0)"}
    sums = {name: f"{times} * {count}" for name, count in counts.items()}
    return grouped(ended, _KEYS, {**sums, "first_ms": "min(at_ms)"})
