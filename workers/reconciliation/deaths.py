"""The causes of death: dead letters by what they died of, with an example of each.

One look at the lives that have died, and no other, gives `deaths_of`; from it come the table of causes, and how many died when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .texts import grouped, named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOUR_MS: Final = 3_600_000

_CAUSE: Final = ("queue", "task", "day", "reason", "fingerprint", "exception")

#: What any group of deaths adds up to, as aggregates.
TOTALS: Final = {
    "letters": "sum(letters)",
    "redriven": "sum(redriven)",
    "held": "sum(held)",
    "first_ms": "min(first_ms)",
    "last_ms": "max(last_ms)",
    "example": "min(example).task_id",
    "message": "min(example).message",
}


def deaths_of(judged: DataFrame) -> DataFrame:
    """Dead letters by cause and hour of death (`hour`: hours since the epoch).

    The example is the first that still lies in a dead-letter queue, for that one can be looked at; else the first of all.
    """
    facts = {
        "day": "to_date(timestamp_millis(first_ms))",
        "reason": "coalesce(death_reason, '')",
        "fingerprint": "coalesce(death_fingerprint, '')",
        "exception": "coalesce(death_exception, '')",
        "hour": f"CAST(floor(ended_ms / {HOUR_MS}) AS BIGINT)",
        "redriven": "CAST(was_redriven AS BIGINT)",
        "held": "CAST(in_dead_letters > 0 AS BIGINT)",
    }
    died = judged.where("dead_lettered > 0").selectExpr("queue", "task", "task_id", "ended_ms", "message", *named(facts))
    counts = {
        "letters": "count(*)",
        "redriven": "sum(redriven)",
        "held": "sum(held)",
        "first_ms": "min(ended_ms)",
        "last_ms": "max(ended_ms)",
        "example": "min(struct(held = 0 AS is_gone, ended_ms, task_id, message))",
    }
    return grouped(died, (*_CAUSE, "hour"), counts)


def causes_of(deaths: DataFrame) -> DataFrame:
    """The dead letters of each cause: how many, how many of them were redriven or still lie there (`held`), and an example."""
    return grouped(deaths, _CAUSE, TOTALS)
