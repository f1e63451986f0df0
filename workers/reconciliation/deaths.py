"""The causes of death: dead letters by what they died of, with an example of each.

One look at the lives that have died, and no other, gives `deaths_of`; from it come the table of causes, and how many died when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.middleware.outcomes import Outcome

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["HOUR_MS", "causes_of", "deaths_of", "totals"]

HOUR_MS: Final = 3_600_000

_CAUSE: Final = ("queue", "task", "day", "reason", "fingerprint", "exception")


def deaths_of(judged: DataFrame) -> DataFrame:
    """Dead letters by cause and hour of death (`hour`: hours since the epoch), with the first of each as the example."""
    named = judged.where(F.col(Outcome.DEAD_LETTERED) > 0).select(
        "queue",
        "task",
        "task_id",
        F.to_date(F.timestamp_millis("first_ms")).alias("day"),
        F.coalesce("death_reason", F.lit("")).alias("reason"),
        F.coalesce("death_fingerprint", F.lit("")).alias("fingerprint"),
        F.coalesce("death_exception", F.lit("")).alias("exception"),
        F.floor(F.col("ended_ms") / HOUR_MS).cast("long").alias("hour"),
        "ended_ms",
        F.col("was_redriven").cast("long").alias("redriven"),
    )
    return named.groupBy(*_CAUSE, "hour").agg(
        F.count("*").alias("letters"),
        F.sum("redriven").alias("redriven"),
        F.min("ended_ms").alias("first_ms"),
        F.max("ended_ms").alias("last_ms"),
        F.min(F.struct("ended_ms", "task_id")).alias("example"),
    )


def causes_of(deaths: DataFrame) -> DataFrame:
    """The letters of each cause: how many, how many of them were redriven, the first and the last (ms), and an example."""
    return deaths.groupBy(*_CAUSE).agg(*totals())


def totals() -> list[Column]:
    """What any group of deaths adds up to, as columns of an aggregation."""
    return [
        F.sum("letters").alias("letters"),
        F.sum("redriven").alias("redriven"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
        F.min("example").getField("task_id").alias("example"),
    ]
