"""Counting: from judged lives to figures for people.

1. `cells_of` groups the lives into cells: all lives with the same queue, task, day, ending, number of attempts and so on are one
   cell. Everything else is counted from the cells, which are few.
2. `metrics_by` groups the cells into one row for each origin queue, task and day (UTC) on which lives were opened.

A life without events has no day, so only the verdicts have it. Times to success are counted in classes, 0.5 % wide: counts of
classes can be added, and percentiles of parts cannot. So a percentile is right to within 0.25 %. Delays are compared over whole
lives: *asked* is the sum of a life's redelivery delays; *waited* is the time from its first redelivery to its end, with the run
times of the later attempts. An attempt is wasted if it was redelivered, ended in a death, or succeeded after an earlier success.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from redelivery.middleware.messages.events import TERMINAL, Outcome, Reason

from ..rules import DISCREPANCIES
from ..spark.sql import grouped, named, one_of
from ..steps import BY_NOBODY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PERCENTILES: Final = (50, 95, 99)

_WIDTH: Final = math.log(1.005)


def time_class(time_ms: str) -> str:
    """The class of a time in ms, in SQL. A negative time, caused by clocks that differ, counts as 0."""
    return f"CAST(floor(ln(greatest({time_ms}, 0) + 1D) / {_WIDTH!r}D) AS INT)"


def percentiles(name: str, count: str) -> str:
    """The `PERCENTILES` (ms, an array) of the classes in column `name`, each counted `count` times. Null without a class."""
    shares = ", ".join(f"{each / 100!r}D" for each in PERCENTILES)
    return f"percentile(expm1(({name} + 0.5D) * {_WIDTH!r}D), array({shares}), {count})"


GROUP: Final = ("queue", "task", "day")

#: The column of `SUMS` with the percentiles of the time to success, as an array.
TIMES: Final = "time_to_success_ms"

#: A higher number of attempts counts as this number.
MAX_ATTEMPTS: Final = 100

#: Reasons of deaths that follow an attempt. With any other reason a message may die without an attempt.
AFTER_AN_ATTEMPT: Final = (
    Reason.EXHAUSTED,
    Reason.MAX_AGE,
    Reason.NON_RETRYABLE,
    Reason.REJECTED,
    Reason.WORKER_LOST,
    Reason.TIME_LIMIT,
    Reason.RESULT_NOT_STORED,
)
#: The outcomes that end a life, in the order of their columns.
ENDS_AS_COUNTED: Final = tuple(each for each in Outcome if each in TERMINAL)
_KEYS: Final = (*GROUP, "opened", "ending", "died_of", "attempts", "time_class")

#: The event that opened a life: the first of these.
_OPENED: Final = (
    "CASE WHEN published > 0 THEN 'published' WHEN redriven > 0 THEN 'redriven' WHEN received > 0 THEN 'received' ELSE 'nobody' END"
)

#: The counts of one cell, besides the columns that its lives have in common.
_COUNTS: Final = {
    "lives": "count(*)",
    "published": "count_if(published > 0)",
    "redriven": "count_if(redriven > 0)",
    "redeliveries": "sum(redelivery_scheduled)",
    **{str(each): f"count_if({each} > 0)" for each in ENDS_AS_COUNTED},
    "possible_repeats": "count_if(is_repeated)",
    "delayed_lives": "count(waited)",
    "delay_asked_ms": "coalesce(sum(asked), 0)",
    "delay_waited_ms": "coalesce(sum(waited), 0)",
    "delay_late_max_ms": "max(waited - asked)",
    "attempts_made": "sum(runs)",
    "attempts_wasted": "sum(wasted)",
}

_OF_REDRIVEN: Final = "sum(CASE WHEN opened = 'redriven' THEN succeeded END)"
#: The sums of any group of cells, as aggregates.
SUMS: Final = {
    **{name: f"sum({name})" for name in ("lives", "published", "redriven")},
    "succeeded_at_first_attempt": "coalesce(sum(CASE WHEN attempts <= 1 THEN succeeded END), 0)",
    "succeeded_after_redelivery": "coalesce(sum(CASE WHEN attempts > 1 THEN succeeded END), 0)",
    "redeliveries": "sum(redeliveries)",
    **{str(each): f"sum({each})" for each in ENDS_AS_COUNTED},
    "redriven_succeeded": f"coalesce({_OF_REDRIVEN}, 0)",
    "redrive_success_rate": f"{_OF_REDRIVEN} / sum(CASE WHEN opened = 'redriven' THEN lives END)",
    TIMES: percentiles("time_class", "lives"),
    **{name: f"sum({name})" for name in ("delayed_lives", "delay_asked_ms", "delay_waited_ms")},
    "delay_late_max_ms": "max(delay_late_max_ms)",
    "attempts_made": "sum(attempts_made)",
    "attempts_wasted": "sum(attempts_wasted)",
    "in_flight": "coalesce(sum(CASE WHEN ending = 'in_flight' THEN lives END), 0)",
    "discrepancies": f"coalesce(sum(CASE WHEN {one_of('ending', DISCREPANCIES)} THEN lives END), 0)",
    "possible_repeats": "sum(possible_repeats)",
}


def cells_of(judged: DataFrame) -> DataFrame:
    """The cells. `opened` is an outcome or `nobody`; `ending` is the last outcome of a balanced life, or a verdict."""
    death = f"({one_of('death_reason', AFTER_AN_ATTEMPT)} AND dead_lettered > 0)"
    dropped = f"({one_of('reason', AFTER_AN_ATTEMPT)} AND dead_lettered = 0 AND discarded > 0)"
    died = f"IF({death} OR {dropped}, 1, 0)"
    ended_by_a_delivery = f"redelivery_scheduled > 0 AND first_end < {BY_NOBODY}"
    facts = {
        "day": "CASE WHEN events > 0 THEN to_date(timestamp_millis(first_ms)) END",
        "opened": _OPENED,
        "ending": "IF(verdict = 'balanced', last_word, verdict)",
        "died_of": "CASE WHEN dead_lettered > 0 THEN death_reason END",
        "attempts": f"least(coalesce(attempts, 0), {MAX_ATTEMPTS})",
        "time_class": f"CASE WHEN succeeded > 0 THEN {time_class('ended_ms - first_ms')} END",
        "runs": f"redelivery_scheduled + succeeded + {died}",
        "wasted": f"redelivery_scheduled + greatest(succeeded - 1, 0) + {died}",
        "asked": f"CASE WHEN {ended_by_a_delivery} THEN coalesce(asked_ms, 0) END",
        "waited": f"CASE WHEN {ended_by_a_delivery} THEN greatest(ended_ms - first_scheduled_ms, 0) END",
    }
    others = ("queue", "task", "published", "redriven", "redelivery_scheduled", "is_repeated", *map(str, ENDS_AS_COUNTED))
    return grouped(judged.selectExpr(*others, *named(facts)), _KEYS, _COUNTS)


def metrics_by(cells: DataFrame) -> DataFrame:
    """The table `metrics`. `dead_lettered_by_reason` and `succeeded_at_attempt` map to numbers of lives. Rates are from 0 to 1."""
    lists = {
        "dead_lettered_by_reason": _listed("died_of", "dead_lettered"),
        "succeeded_at_attempt": _listed("CASE WHEN time_class IS NOT NULL THEN greatest(attempts, 1) END", "succeeded"),
    }
    rows = grouped(cells.where("day IS NOT NULL"), GROUP, SUMS | lists)
    times = {f"time_to_success_p{each}_ms": f"CAST(round(get({TIMES}, {at})) AS BIGINT)" for at, each in enumerate(PERCENTILES)}
    kept = [name for name in rows.columns if name not in {*lists, TIMES}]
    return rows.selectExpr(*kept, *named({name: _summed(name) for name in lists}), *named(times))


def _listed(key: str, count: str) -> str:
    """All pairs of a key and a count, without null keys, as an aggregate."""
    return f"collect_list(CASE WHEN ({key}) IS NOT NULL AND {count} > 0 THEN struct({key} AS key, {count} AS count) END)"


def _summed(pairs: str) -> str:
    """A map from each key to the sum of its counts."""
    keys = f"array_sort(array_distinct(transform({pairs}, pair -> pair.key)))"
    total = f"aggregate(filter({pairs}, pair -> pair.key = each), 0L, (total, pair) -> total + pair.count)"
    return f"map_from_entries(transform({keys}, each -> struct(each, {total})))"
