"""Folding: from events and inventory to one row for each life.

A life is one (task id, nesting, generation, origin queue); `nesting` is Celery's, because a replaced task reuses its id. Events and
inventory are put one below the other and folded together, so that one shuffle by task id does for all: removing what was
exported twice (the same event id and task id), the fold, and whatever compares the lives of one task.

Enters: the tables of `reading.py`. Leaves: `lives`, with what the verdicts, metrics and summary need of each: how often each
outcome occurred (columns by the outcomes' names), positions (`steps.py`) of the first and last end and of the last step that was
none, times, and where the broker held it. Rows without a queue belong to the only queue that their generation has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.window import Window

from redelivery.middleware.outcomes import Outcome, Reason
from redelivery.workers.reconciliation.schema import DEFAULTS, PLACES
from redelivery.workers.reconciliation.steps import CLOSING, ENDS, STEPS, number, position

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["KEY", "RESTORED", "fold", "merged", "with_queues_named"]

KEY: Final = ("task_id", "nesting", "generation", "queue")

#: How a broker or another client that restores a message is recorded, where receiving is recorded at all.
RESTORED: Final = "redelivered"


def fold(events: DataFrame, inventory: DataFrame) -> DataFrame:
    """All lives of these events and of this inventory, one row each."""
    rows = _of_events(events).unionByName(_of_inventory(inventory), allowMissingColumns=True)
    once = rows.repartition("task_id").dropDuplicates([*KEY, "event_id"])
    return once.groupBy(*KEY).agg(*_aggregates())


def with_queues_named(lives: DataFrame) -> DataFrame:
    """Give what has no queue to the only queue of its generation; where there are several or none, it stays a life of its own."""
    generation = Window.partitionBy("task_id", "nesting", "generation")
    named = F.nullif("queue", F.lit(""))
    only = F.when(F.min(named).over(generation) == F.max(named).over(generation), F.max(named).over(generation))
    queue = F.when(F.col("queue") == "", F.coalesce(only, F.lit(""))).otherwise(F.col("queue"))
    return merged(lives.withColumn("queue", queue))


def merged(parts: DataFrame) -> DataFrame:
    """Lives of which there may be several parts, as one row each."""
    return parts.groupBy(*KEY).agg(*_merges(parts))


def _of_events(events: DataFrame) -> DataFrame:
    step = number(F.col("outcome"))
    return events.select(
        *(_or_default(name) for name in KEY),
        "event_id",
        _or_default("task"),
        _or_default("reason"),
        _or_default("attempt"),
        _or_default("worker"),
        _or_default("exception"),
        _or_default("fingerprint"),
        "delay_ms",
        "at_ms",
        step.alias("step"),
        position(step, _or_default("delivery")).alias("at"),
        (_is_restored(step)).alias("is_repeat"),
    )


def _is_restored(step: Column) -> Column:
    """Handed over again without a redelivery of ours: its worker died, or the broker or another client put it back."""
    lost = (step == STEPS.index(Outcome.REDELIVERY_SCHEDULED)) & (_or_default("reason") == str(Reason.WORKER_LOST))
    restored = (step == STEPS.index(Outcome.RECEIVED)) & (_or_default("reason") == RESTORED)
    return lost | restored


def _of_inventory(inventory: DataFrame) -> DataFrame:
    """An inventory's rows; a task that is seen in one place twice is one row."""
    owner_is_gone = (F.col("place") == "unacked") & (_or_default("owner") == "")
    return inventory.select(
        *(_or_default(name) for name in KEY),
        F.concat(F.lit("\0"), "place").alias("event_id"),
        _or_default("task"),
        "place",
        "due_ms",
        owner_is_gone.alias("is_orphan"),
        "seen_ms",
    )


def _or_default(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(DEFAULTS[name])).alias(name) if name in DEFAULTS else F.col(name)


def _is_empty(name: str) -> Column:
    return F.col(name).isNull() | (F.col(name) == "")


def _aggregates() -> list[Column]:
    step, at, place = F.col("step"), F.col("at"), F.col("place")
    is_event, is_end = step.isNotNull(), step >= ENDS
    closing = step.isin(*(STEPS.index(each) for each in CLOSING))
    known_place = F.coalesce(place.isin(*PLACES), F.lit(False))  # noqa: FBT003 - a literal
    scheduled = step == STEPS.index(Outcome.REDELIVERY_SCHEDULED)
    dead = step == STEPS.index(Outcome.DEAD_LETTERED)
    return [
        F.count_if(is_event).alias("events"),
        *(F.count_if(step == at_step).alias(str(outcome)) for at_step, outcome in enumerate(STEPS)),
        F.count_if(step < 0).alias("unknown"),
        F.count_if(is_event & (_is_empty("task_id") | _is_empty("event_id") | F.col("at_ms").isNull())).alias("broken"),
        F.count_if(~is_event & (_is_empty("task_id") | F.col("seen_ms").isNull() | ~known_place)).alias("misplaced"),
        F.min(F.when(is_end, at)).alias("first_end"),
        F.max(F.when(step < ENDS, at)).alias("last_open"),
        F.max(at).alias("last"),
        F.min(F.when(dead, at)).alias("first_death"),
        F.max(F.when(closing, at)).alias("last_closing"),
        F.min("at_ms").alias("first_ms"),
        F.max("at_ms").alias("last_ms"),
        F.min(F.when(is_end, F.col("at_ms"))).alias("ended_ms"),
        F.max(F.when(scheduled, F.col("at_ms"))).alias("scheduled_ms"),
        F.min(F.when(scheduled, F.col("at_ms"))).alias("first_scheduled_ms"),
        F.sum(F.when(scheduled, F.col("delay_ms"))).alias("asked_ms"),
        F.max(F.when(scheduled, at)).alias("last_scheduled"),
        F.count_if("is_repeat").alias("repeats"),
        F.max("attempt").alias("attempts"),
        F.max("task").alias("task"),
        F.max_by("reason", at).alias("reason"),
        F.max_by("reason", F.when(dead, at)).alias("death_reason"),
        F.max_by("exception", F.when(dead, at)).alias("death_exception"),
        F.max_by("fingerprint", F.when(dead, at)).alias("death_fingerprint"),
        F.max_by("worker", at).alias("worker"),
        F.max_by("exception", at).alias("exception"),
        F.count_if(place == "dead_letter").alias("in_dead_letters"),
        F.count_if(place != "dead_letter").alias("in_flight"),
        F.min(F.when(place == "delayed", F.col("due_ms"))).alias("due_ms"),
        F.count_if("is_orphan").alias("ownerless"),
        F.max("seen_ms").alias("seen_ms"),
        F.max("place").alias("place"),
    ]


_LEAST = frozenset({"first_end", "first_death", "first_ms", "ended_ms", "first_scheduled_ms", "due_ms"})
_GREATEST = frozenset(
    {
        "last_open",
        "last",
        "last_closing",
        "last_ms",
        "scheduled_ms",
        "last_scheduled",
        "attempts",
        "task",
        "death_reason",
        "death_exception",
        "death_fingerprint",
        "seen_ms",
        "place",
    },
)
_OF_THE_LAST = frozenset({"reason", "worker", "exception"})


def _merges(lives: DataFrame) -> list[Column]:
    """How two parts of one life become one: counts add up, extremes stay extremes, and the last word is the later part's."""

    def merge(name: str) -> Column:
        if name in _OF_THE_LAST:
            return F.max_by(name, F.coalesce("last", F.lit(-1)))
        return (F.min if name in _LEAST else F.max if name in _GREATEST else F.sum)(name)

    return [merge(name).alias(name) for name in lives.columns if name not in KEY]
