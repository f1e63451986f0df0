"""Counting: from judged lives to figures for people.

One row for each origin queue, task and day (UTC) on which lives were opened, so that a row adds up: what was opened has ended one
way or another, or is open or has a discrepancy. A life without any event has no day and is left to the verdicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.middleware.outcomes import Outcome
from redelivery.workers.reconciliation.verdicts import DISCREPANCIES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["metrics_of"]

_GROUP: Final = ("queue", "task", "day")
_ENDS_AS_COUNTED: Final = (
    Outcome.DEAD_LETTERED,
    Outcome.DISCARDED,
    Outcome.EXPIRED,
    Outcome.REVOKED,
    Outcome.IGNORED,
    Outcome.PURGED,
    Outcome.CANCELLED,
)


def metrics_of(judged: DataFrame) -> DataFrame:
    """The metrics; `dead_lettered_by_reason` is a map from reason to lives."""
    day = F.to_date(F.timestamp_millis("first_ms")).alias("day")
    lives = judged.where(F.col("events") > 0).select("*", day)
    died_of = F.when(F.col(Outcome.DEAD_LETTERED) > 0, F.col("death_reason"))
    by_reason = lives.groupBy(*_GROUP, died_of.alias("died_of")).agg(*_sums())
    names = [name for name in by_reason.columns if name not in {*_GROUP, "died_of"}]
    entry = F.when(F.col("died_of").isNotNull(), F.struct("died_of", "lives"))
    return by_reason.groupBy(*_GROUP).agg(
        *(F.sum(name).alias(name) for name in names),
        F.map_from_entries(F.collect_list(entry)).alias("dead_lettered_by_reason"),
    )


def _sums() -> list[Column]:
    succeeded = F.col(Outcome.SUCCEEDED) > 0
    return [
        F.count("*").alias("lives"),
        F.count_if(F.col(Outcome.PUBLISHED) > 0).alias("published"),
        F.count_if(F.col(Outcome.REDRIVEN) > 0).alias("redriven"),
        F.count_if(succeeded & (F.col("attempts") <= 1)).alias("succeeded_at_first_attempt"),
        F.count_if(succeeded & (F.col("attempts") > 1)).alias("succeeded_after_redelivery"),
        F.sum(Outcome.REDELIVERY_SCHEDULED).alias("redeliveries"),
        *(F.count_if(F.col(each) > 0).alias(str(each)) for each in _ENDS_AS_COUNTED),
        F.count_if(F.col("verdict") == "in_flight").alias("in_flight"),
        F.count_if(F.col("verdict").isin(*DISCREPANCIES)).alias("discrepancies"),
        F.count_if("is_repeated").alias("possible_repeats"),
    ]
