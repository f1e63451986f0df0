"""Counting: from judged lives to figures for people.

1. `cells_of` folds the lives into cells: lives of one queue, task, day, ending, number of attempts and so on are one cell with
   their number. Everything else is counted from the cells, which are few, so that the lives are looked at once.
2. `metrics_by` folds the cells into one row for each origin queue, task and day (UTC) on which lives were opened, so that a row
   adds up: what was opened has ended one way or another, or is open or has a discrepancy.

A life without any event has no day and is left to the verdicts. Times to success are counted in classes (`times.py`). What a delay
was asked to be and how long it was are compared over whole lives: asked is the sum of a life's redelivery delays, waited is the
time from its first redelivery to its end. So waited holds the run times of the later attempts as well: no event says when an
attempt began. An attempt is wasted when it brought no success: it was redelivered, it ended in a death, or it succeeded where
another had already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.middleware.outcomes import Outcome, Reason
from redelivery.workers.reconciliation.steps import BY_NOBODY
from redelivery.workers.reconciliation.times import PERCENTILES, percentiles, time_class
from redelivery.workers.reconciliation.verdicts import DISCREPANCIES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ENDS_AS_COUNTED", "GROUP", "MOST_ATTEMPTS", "TIMES", "cells_of", "metrics_by", "sums"]

GROUP: Final = ("queue", "task", "day")

#: The column of `sums` that holds the percentiles of the time to success, as an array.
TIMES: Final = "time_to_success_ms"

#: More attempts than this are counted as this many.
MOST_ATTEMPTS: Final = 100

#: Deaths that follow an attempt; a message may die of any other reason without having been run.
_AFTER_AN_ATTEMPT: Final = (
    Reason.EXHAUSTED,
    Reason.MAX_AGE,
    Reason.NON_RETRYABLE,
    Reason.REJECTED,
    Reason.WORKER_LOST,
    Reason.TIME_LIMIT,
)
ENDS_AS_COUNTED: Final = (
    Outcome.SUCCEEDED,
    Outcome.DEAD_LETTERED,
    Outcome.DISCARDED,
    Outcome.EXPIRED,
    Outcome.REVOKED,
    Outcome.IGNORED,
    Outcome.PURGED,
    Outcome.CANCELLED,
)
_KEYS: Final = (*GROUP, "opened", "ending", "died_of", "attempts", "time_class")


def cells_of(judged: DataFrame) -> DataFrame:
    """The cells; `opened` is an outcome or `nobody`, `ending` an outcome of a balanced life or the verdict of any other."""
    count = F.col
    is_told = count("events") > 0
    death = count("death_reason").isin(*map(str, _AFTER_AN_ATTEMPT)) & (count(Outcome.DEAD_LETTERED) > 0)
    dropped = count("reason").isin(*map(str, _AFTER_AN_ATTEMPT)) & (count(Outcome.DEAD_LETTERED) == 0)
    died = F.when(death | (dropped & (count(Outcome.DISCARDED) > 0)), 1).otherwise(0)
    ended_by_a_delivery = (count(Outcome.REDELIVERY_SCHEDULED) > 0) & (count("first_end") < BY_NOBODY)
    measured = judged.select(
        "*",
        F.when(is_told, F.to_date(F.timestamp_millis("first_ms"))).alias("day"),
        _opened().alias("opened"),
        F.when(count("verdict") == "balanced", count("last_word")).otherwise(count("verdict")).alias("ending"),
        F.when(count(Outcome.DEAD_LETTERED) > 0, count("death_reason")).alias("died_of"),
        F.when(count(Outcome.SUCCEEDED) > 0, time_class(count("ended_ms") - count("first_ms"))).alias("time_class"),
        (count(Outcome.REDELIVERY_SCHEDULED) + count(Outcome.SUCCEEDED) + died).alias("runs"),
        (count(Outcome.REDELIVERY_SCHEDULED) + F.greatest(count(Outcome.SUCCEEDED) - 1, F.lit(0)) + died).alias("wasted"),
        F.when(ended_by_a_delivery, F.coalesce("asked_ms", F.lit(0))).alias("asked"),
        F.when(ended_by_a_delivery, F.greatest(count("ended_ms") - count("first_scheduled_ms"), F.lit(0))).alias("waited"),
    )
    capped = measured.withColumn("attempts", F.least(F.coalesce("attempts", F.lit(0)), F.lit(MOST_ATTEMPTS)))
    return capped.groupBy(*_KEYS).agg(*_counts())


def metrics_by(cells: DataFrame) -> DataFrame:
    """The metrics: `dead_lettered_by_reason` and `succeeded_at_attempt` are maps to lives, times are in ms, rates from 0 to 1."""
    succeeded_at = F.when(F.col("time_class").isNotNull(), F.greatest("attempts", F.lit(1)))
    lists = {
        "dead_lettered_by_reason": _listed(F.col("died_of"), Outcome.DEAD_LETTERED),
        "succeeded_at_attempt": _listed(succeeded_at, Outcome.SUCCEEDED),
    }
    listed = (column.alias(name) for name, column in lists.items())
    rows = cells.where("day IS NOT NULL").groupBy(*GROUP).agg(*sums(), *listed)
    times = {f"time_to_success_p{each}_ms": F.round(F.get(TIMES, F.lit(at))).cast("long") for at, each in enumerate(PERCENTILES)}
    return rows.withColumns({**{name: _summed(name) for name in lists}, **times}).drop(TIMES)


def sums() -> list[Column]:
    """What any group of cells adds up to, as columns of an aggregation."""
    lives = F.col("lives")
    is_first = F.col("attempts") <= 1
    redriven = F.col("opened") == str(Outcome.REDRIVEN)
    succeeded = F.col(Outcome.SUCCEEDED)
    of_redriven = F.sum(F.when(redriven, succeeded))
    return [
        F.sum(lives).alias("lives"),
        *(F.sum(name).alias(name) for name in ("published", "redriven")),
        F.coalesce(F.sum(F.when(is_first, succeeded)), F.lit(0)).alias("succeeded_at_first_attempt"),
        F.coalesce(F.sum(F.when(~is_first, succeeded)), F.lit(0)).alias("succeeded_after_redelivery"),
        F.sum("redeliveries").alias("redeliveries"),
        *(F.sum(str(each)).alias(str(each)) for each in ENDS_AS_COUNTED),
        F.coalesce(of_redriven, F.lit(0)).alias("redriven_succeeded"),
        (of_redriven / F.sum(F.when(redriven, lives))).alias("redrive_success_rate"),
        percentiles("time_class", "lives").alias(TIMES),
        *(F.sum(name).alias(name) for name in ("delayed_lives", "delay_asked_ms", "delay_waited_ms")),
        F.max("delay_late_max_ms").alias("delay_late_max_ms"),
        F.sum("attempts_made").alias("attempts_made"),
        F.sum("attempts_wasted").alias("attempts_wasted"),
        F.coalesce(F.sum(F.when(F.col("ending") == "in_flight", lives)), F.lit(0)).alias("in_flight"),
        F.coalesce(F.sum(F.when(F.col("ending").isin(*DISCREPANCIES), lives)), F.lit(0)).alias("discrepancies"),
        F.sum("possible_repeats").alias("possible_repeats"),
    ]


def _opened() -> Column:
    """What opened the life: the first of these that it has."""
    opened = F.lit("nobody")
    for each in (Outcome.RECEIVED, Outcome.REDRIVEN, Outcome.PUBLISHED):
        opened = F.when(F.col(each) > 0, F.lit(str(each))).otherwise(opened)
    return opened


def _counts() -> list[Column]:
    """What one cell holds besides what its lives have in common."""
    return [
        F.count("*").alias("lives"),
        F.count_if(F.col(Outcome.PUBLISHED) > 0).alias("published"),
        F.count_if(F.col(Outcome.REDRIVEN) > 0).alias("redriven"),
        F.sum(Outcome.REDELIVERY_SCHEDULED).alias("redeliveries"),
        *(F.count_if(F.col(each) > 0).alias(str(each)) for each in ENDS_AS_COUNTED),
        F.count_if("is_repeated").alias("possible_repeats"),
        F.count("waited").alias("delayed_lives"),
        F.coalesce(F.sum("asked"), F.lit(0)).alias("delay_asked_ms"),
        F.coalesce(F.sum("waited"), F.lit(0)).alias("delay_waited_ms"),
        F.max(F.col("waited") - F.col("asked")).alias("delay_late_max_ms"),
        F.sum("runs").alias("attempts_made"),
        F.sum("wasted").alias("attempts_wasted"),
    ]


def _listed(key: Column, count: str) -> Column:
    """All pairs of a key and a count, as an aggregate; keys that are null are left out."""
    return F.collect_list(F.when(key.isNotNull() & (F.col(count) > 0), F.struct(key.alias("key"), F.col(count).alias("count"))))


def _summed(pairs: str) -> Column:
    """A map from each key of these pairs to the sum of its counts."""

    def entry(key: Column) -> Column:
        own = F.filter(pairs, lambda each: each.key == key)
        return F.struct(key, F.aggregate(own, F.lit(0).cast("long"), lambda total, each: total + each["count"]))

    keys = F.array_distinct(F.transform(pairs, lambda each: each.key))
    return F.map_from_entries(F.transform(F.array_sort(keys), entry))
