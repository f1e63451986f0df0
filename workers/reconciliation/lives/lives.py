"""Folding: from events and inventory to one row for each life.

The key of a life is (task id, nesting, generation, origin queue). `nesting` is Celery's: a replaced task reuses its id. Events and
inventory are folded as one table, so one shuffle by task id is enough to remove duplicate events (same event id and task id), to
fold, and to compare the lives of one task.

A life has the columns that verdicts, metrics and summary need: the count of each outcome (named after the outcome), positions
(`steps.py`) such as that of its first end, times, and its place in the broker. A row without a queue belongs to the queue of its
generation, if the generation has only one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.window import Window

from redelivery.middleware.messages.events import Outcome, Reason

from ..schema import PLACES, or_default
from ..spark.sql import grouped, named, one_of
from ..steps import CLOSING, ENDS, STEPS, number, position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY: Final = ("task_id", "nesting", "generation", "queue")

#: How often a life was opened, in SQL. All redrives count once: the next redrive records an interrupted one again.
OPENED: Final = f"({Outcome.PUBLISHED} + least({Outcome.REDRIVEN}, 1))"

#: The reason of a `received` event if a broker or another client restored the message.
RESTORED: Final = "redelivered"


def fold(events: DataFrame, inventory: DataFrame) -> DataFrame:
    """The lives of these events and this inventory, one row each."""
    rows = _of_events(events).unionByName(_of_inventory(inventory), allowMissingColumns=True)
    once = rows.repartition("task_id").dropDuplicates([*KEY, "event_id"])
    return grouped(once, KEY, _AGGREGATES)


def with_queues_named(lives: DataFrame) -> DataFrame:
    """Give lives without a queue the only queue of their generation. If it has several or none, they stay separate lives."""
    generation = Window.partitionBy("task_id", "nesting", "generation")
    named = F.nullif("queue", F.lit(""))
    only = F.when(F.min(named).over(generation) == F.max(named).over(generation), F.max(named).over(generation))
    queue = F.when(F.col("queue") == "", F.coalesce(only, F.lit(""))).otherwise(F.col("queue"))
    return merged(lives.withColumn("queue", queue))


def merged(parts: DataFrame) -> DataFrame:
    """Merge the parts of each life into one row."""
    return grouped(parts, KEY, _merges(parts))


def _of_events(events: DataFrame) -> DataFrame:
    step = number("outcome")
    facts = {name: or_default(name) for name in (*KEY, "task", "reason", "attempt", "worker", "exception", "fingerprint")}
    facts |= {"step": step, "at": position(step, or_default("delivery")), "is_repeat": _is_restored(step)}
    return events.selectExpr("event_id", "delay_ms", "at_ms", *named(facts))


def _is_restored(step: str) -> str:
    """Whether a message was delivered again without a policy: its worker died, or the broker or another client restored it."""
    lost = f"{step} = {_AGAIN} AND {or_default('reason')} = '{Reason.WORKER_LOST}'"
    restored = f"{step} = {STEPS.index(Outcome.RECEIVED)} AND {or_default('reason')} = '{RESTORED}'"
    return f"(({lost}) OR ({restored}))"


def _of_inventory(inventory: DataFrame) -> DataFrame:
    """The rows of an inventory. A task that is twice in one place is one row."""
    facts = {name: or_default(name) for name in (*KEY, "task")}
    facts |= {"event_id": "concat(char(0), place)", "is_orphan": f"place = 'unacked' AND {or_default('owner')} = ''"}
    return inventory.selectExpr("place", "due_ms", "seen_ms", "message", *named(facts))


_AGAIN: Final = STEPS.index(Outcome.REDELIVERY_SCHEDULED)
_DEAD: Final = f"step = {STEPS.index(Outcome.DEAD_LETTERED)}"
_IS_CLOSING: Final = one_of("step", (STEPS.index(each) for each in CLOSING))
_HAS_NO_TASK: Final = "(task_id IS NULL OR task_id = '')"
#: Whether an event or a row of the inventory is unusable, in SQL.
IS_UNKNOWN: Final = f"{number('outcome')} < 0"
IS_BROKEN: Final = f"({_HAS_NO_TASK} OR event_id IS NULL OR event_id = '' OR at_ms IS NULL)"
IS_MISPLACED: Final = f"({_HAS_NO_TASK} OR seen_ms IS NULL OR NOT coalesce({one_of('place', PLACES)}, false))"
_AGGREGATES: Final = {
    "events": "count_if(step IS NOT NULL)",
    **{str(outcome): f"count_if(step = {number})" for number, outcome in enumerate(STEPS)},
    "unknown": "count_if(step < 0)",
    "broken": f"count_if(step IS NOT NULL AND {IS_BROKEN})",
    "misplaced": f"count_if(step IS NULL AND {IS_MISPLACED})",
    "first_end": f"min(CASE WHEN step >= {ENDS} THEN at END)",
    "last_open": f"max(CASE WHEN step < {ENDS} THEN at END)",
    "last": "max(at)",
    "first_death": f"min(CASE WHEN {_DEAD} THEN at END)",
    "last_closing": f"max(CASE WHEN {_IS_CLOSING} THEN at END)",
    "first_ms": "min(at_ms)",
    "last_ms": "max(at_ms)",
    "ended_ms": f"min(CASE WHEN step >= {ENDS} THEN at_ms END)",
    "scheduled_ms": f"max(CASE WHEN step = {_AGAIN} THEN at_ms END)",
    "first_scheduled_ms": f"min(CASE WHEN step = {_AGAIN} THEN at_ms END)",
    "asked_ms": f"sum(CASE WHEN step = {_AGAIN} THEN delay_ms END)",
    "last_scheduled": f"max(CASE WHEN step = {_AGAIN} THEN at END)",
    "repeats": "count_if(is_repeat)",
    "attempts": "max(attempt)",
    "task": "max(task)",
    "reason": "max_by(reason, at)",
    **{f"death_{name}": f"max_by({name}, CASE WHEN {_DEAD} THEN at END)" for name in ("reason", "exception", "fingerprint")},
    "worker": "max_by(worker, at)",
    "exception": "max_by(exception, at)",
    "in_dead_letters": "count_if(place = 'dead_letter')",
    "in_flight": "count_if(place != 'dead_letter')",
    "due_ms": "min(CASE WHEN place = 'delayed' THEN due_ms END)",
    "ownerless": "count_if(is_orphan)",
    "seen_ms": "max(seen_ms)",
    "place": "max(place)",
    "message": "max(message)",
}
#: Aggregates whose parts are not added up. A life has one death, so at most one part has values for it.
_OF_PARTS: Final = {"min": "min", "max": "max", "max_by": "max"}
_OF_THE_LAST = frozenset({"reason", "worker", "exception"})


def _merges(lives: DataFrame) -> dict[str, str]:
    """Merge parts of one life: counts add up, extremes stay extremes, and the later part has the last event."""

    def merge(name: str) -> str:
        if name in _OF_THE_LAST:
            return f"max_by({name}, coalesce(last, -1))"
        whole, _, _ = _AGGREGATES[name].partition("(")
        return f"{_OF_PARTS.get(whole, 'sum')}({name})"

    return {name: merge(name) for name in lives.columns if name not in KEY}
