"""Carrying over: lives that earlier runs left open, and lives with late events.

Lives that begin and end within one run do not need this module. Neither do plain lives (`plain.py`) of which an earlier run saw
only the publication. The others are:

- tasks that an earlier run carried over: the known part of their lives is joined with the new part;
- tasks with an event from before the end of the last run (late or repeated), or without an opening event in this run: their events
  are read again from the files of earlier runs, and counted once each, by id.

A life is *settled* when no more events are expected: it balances and no dead-letter queue should hold it, or its discrepancy was
reported. A *correction* is a settled life with another verdict now. A discrepancy of a settled life is *standing*: it is not
reported again.

Limit: if the files of earlier events are gone, late events are added to the known counts, even if they are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from redelivery.middleware.messages.events import Outcome

from ..lives.lives import KEY, fold, merged, with_queues_named
from ..spark.sql import named, one_of
from .state import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from ..spark.few_rows import Execution
    from .inputs import Inputs

#: Verdicts of lives that have not ended.
_OPEN: Final = ("in_flight", "stuck")
#: Columns from the inventory. They are valid for one run only.
_COUNTS_SEEN: Final = ("in_dead_letters", "in_flight", "ownerless", "misplaced")
_SEEN: Final = ("due_ms", "seen_ms", "place", "message")
_SAID: Final = ("said", "settled")


@dataclass(frozen=True, slots=True)
class Carried:
    """The lives of this run and of earlier runs.

    `alone` has the lives that no earlier run knew, `touched` the others, and `known` the earlier verdicts of the others, by key.
    `before` has the lives as earlier runs counted them. `late` is the number of tasks that were read again. `any_redriven` is false
    if no life of the earlier runs was opened by a redrive.
    """

    alone: DataFrame
    touched: DataFrame
    known: DataFrame
    before: DataFrame
    late: int
    any_redriven: bool


def held_schema(lives: DataFrame) -> StructType:
    """The columns of the lives in a state."""
    said = [StructField("said", StringType()), StructField("settled", BooleanType())]
    return StructType([*lives.schema.fields, *said])


def carried(fresh: DataFrame, held: DataFrame, inputs: Inputs, execution: Execution, *, are_named: bool, any_late: bool) -> Carried:
    """Join the lives of these `inputs` (`fresh`) with the lives in the state of the last run (`held`).

    `are_named` says that each fresh life has a queue. `any_late` says whether one `may_be_late`.
    """
    keep, broadcast, events, inventory = execution.keep, execution.broadcast, inputs.events, inputs.inventory
    known_tasks = broadcast(held.select("task_id"))
    late = keep(_late(fresh, known_tasks, inputs.watermark_ms)) if any_late else fresh.select("task_id").limit(0)
    count = late.count() if any_late else 0
    refolded = known = before = None
    if count:
        execution.compile_queries()
        old, complete_ms = inputs.earlier()
        # A task that was open before the oldest file cannot be counted again from its events.
        beyond = held.where(f"first_ms < {complete_ms}").select("task_id").distinct()
        late = broadcast(keep(late.join(beyond, "task_id", "left_anti")))
        old = old.join(late, "task_id", "left_semi")
        again = events.join(late, "task_id", "left_semi").unionByName(old)
        refolded = with_queues_named(fold(again, inventory.join(late, "task_id", "left_semi")))
        before = with_queues_named(fold(old, inventory.limit(0)))
        said = held.join(late, "task_id", "left_semi").select(*KEY, *_SAID)
        # The lives of a task that was not carried over were balanced.
        settled = ("coalesce(said, 'balanced') AS said", "coalesce(settled, true) AS settled")
        known = before.select(*KEY).join(said, list(KEY), "full").selectExpr(*KEY, *settled)
    rest = held if not count else held.join(late, "task_id", "left_anti")
    tasks = broadcast(rest.select("task_id"))
    parts = fresh.join(tasks, "task_id", "left_semi").unionByName(rest.drop(*_SAID))
    last = Run() if inputs.base is None else inputs.base
    whole = merged(parts) if are_named and not last.unnamed else with_queues_named(parts)
    touched = whole if refolded is None else whole.unionByName(refolded)
    all_tasks = tasks if not count else broadcast(rest.select("task_id").union(late))
    said = rest.select(*KEY, *_SAID)
    return Carried(
        alone=fresh.join(all_tasks, "task_id", "left_anti"),
        touched=touched.where("events > 0 OR place IS NOT NULL"),
        known=broadcast(said if known is None else said.unionByName(known)),
        before=rest.drop(*_SAID) if before is None else rest.drop(*_SAID).unionByName(before),
        late=count,
        any_redriven=count > 0 or last.redriven,
    )


def _late(fresh: DataFrame, known: DataFrame, watermark_ms: int | None) -> DataFrame:
    """The tasks whose earlier events must be read again. `known` has the tasks that were carried over."""
    unopened = fresh.where(_IS_UNOPENED).join(known, "task_id", "left_anti")
    return fresh.where(_is_earlier(watermark_ms)).select("task_id").union(unopened.select("task_id")).distinct()


def may_be_late(watermark_ms: int | None) -> str:
    """Whether a life of this run may also have events from the time of earlier runs; in SQL."""
    return f"(({_is_earlier(watermark_ms)}) OR ({_IS_UNOPENED}))"


def _is_earlier(watermark_ms: int | None) -> str:
    """Whether a life's first event is not later than the last event of earlier runs; in SQL."""
    return f"events > 0 AND first_ms <= {-1 if watermark_ms is None else watermark_ms}"


_IS_UNOPENED: Final = f"events > 0 AND {Outcome.PUBLISHED} + {Outcome.REDRIVEN} + {Outcome.RECEIVED} = 0"


def marked(judged: DataFrame, known: DataFrame | None) -> DataFrame:
    """Add `was` (the earlier verdict of a settled life, if it differs), `is_standing` and `is_correction`."""
    if known is None:
        return judged.selectExpr("*", "CAST(NULL AS STRING) AS was", "false AS is_standing", "false AS is_correction")
    was_settled = "coalesce(settled, false)"
    facts = {
        "was": f"CASE WHEN {was_settled} AND said != verdict THEN said END",
        "is_standing": f"{was_settled} AND said = verdict",
        "is_correction": f"{was_settled} AND said != verdict",
    }
    return judged.join(known, list(KEY), "left").selectExpr("*", *named(facts)).drop(*_SAID)


def to_hold(
    judged: DataFrame, columns: list[str], broadcast: Callable[[DataFrame], DataFrame], *, as_of_ms: int, keep_ms: int
) -> DataFrame:
    """The lives that the next run must know: all lives of every task with a life that is not settled.

    A reported life is kept for `keep_ms` after its last event, and as long as the broker has it.
    """
    is_kept = f"(verdict = 'balanced' AND last_word = '{Outcome.DEAD_LETTERED}' AND NOT was_redriven)"
    settled = f"(NOT {one_of('verdict', _OPEN)} AND NOT coalesce({is_kept}, false))"
    is_recent = f"(place IS NOT NULL OR coalesce(last_ms, {as_of_ms}) >= {as_of_ms - keep_ms})"
    tasks = broadcast(judged.where(f"NOT {settled} OR (verdict != 'balanced' AND {is_recent})").select("task_id"))
    unseen = dict.fromkeys(_COUNTS_SEEN, "0L")
    unseen |= {name: f"CAST(NULL AS {judged.schema[name].dataType.simpleString()})" for name in _SEEN}
    lives = {name: unseen.get(name, name) for name in columns}
    return judged.join(tasks, "task_id", "left_semi").selectExpr(*named(lives | {"said": "verdict", "settled": settled}))
