"""Carrying over: what a run knows of the lives that earlier runs left open, and of events that came too late for theirs.

Most lives begin and end within one run, and pass by here; so do those that were announced, and went as they should (`plain.py`). Of
the others:

- a task that was carried over: what is known of its lives is joined with what is new of them;
- a task with an event from before the last run's end (it came late, or a second time), or one whose opening is in no event of this
  run: all its events are read again from the files of earlier runs, and counted once each, by their ids.

A life is settled when nothing more is expected of it: it balances, and no dead-letter queue should hold it; or its discrepancy was
reported. A settled life whose verdict is another one now is a *correction*; one whose verdict is the same is *standing*: it was
reported once, and is not reported again.

Limit: events that have no file any more cannot be compared with: what comes late of such a task is added to what is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from redelivery.middleware.messages.events import Outcome

from ..lives.lives import KEY, fold, merged, with_queues_named
from ..spark.texts import named, one_of
from .state import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from ..spark.few import Ways
    from .inputs import Inputs

#: Verdicts of lives that have not ended.
_OPEN: Final = ("in_flight", "stuck")
#: What only the inventory of one run says of a life.
_COUNTS_SEEN: Final = ("in_dead_letters", "in_flight", "ownerless", "misplaced")
_SEEN: Final = ("due_ms", "seen_ms", "place", "message")
_SAID: Final = ("said", "settled")


@dataclass(frozen=True, slots=True)
class Carried:
    """`alone` are the lives that no earlier run knew, `touched` the others; `known` says what was said of those, by their keys.

    `before` holds them as earlier runs had counted them; `late` is how many tasks were read again; `any_redriven` is false where no
    life of the earlier runs was opened by a redrive.
    """

    alone: DataFrame
    touched: DataFrame
    known: DataFrame
    before: DataFrame
    late: int
    any_redriven: bool


def held_schema(lives: DataFrame) -> StructType:
    """The columns of a state's lives."""
    said = [StructField("said", StringType()), StructField("settled", BooleanType())]
    return StructType([*lives.schema.fields, *said])


def carried(fresh: DataFrame, held: DataFrame, inputs: Inputs, ways: Ways, *, are_named: bool, any_late: bool) -> Carried:
    """Join what is new with what is known.

    `fresh` are the lives of these `inputs`, each of which has a queue where they `are_named`, and of which `any_late` says whether
    one `may_be_late`; `held` are those of the last run's state.
    """
    keep, sent, events, inventory = ways.keep, ways.sent, inputs.events, inputs.inventory
    late = keep(_late(fresh, sent(held.select("task_id")), inputs.watermark_ms)) if any_late else fresh.select("task_id").limit(0)
    count = late.count() if any_late else 0
    refolded = known = before = None
    if count:
        ways.look_back()
        old, complete_ms = inputs.earlier()
        # A task that was open before the oldest file: its events cannot be counted again.
        beyond = held.where(f"first_ms < {complete_ms}").select("task_id").distinct()
        late = sent(keep(late.join(beyond, "task_id", "left_anti")))
        old = old.join(late, "task_id", "left_semi")
        again = events.join(late, "task_id", "left_semi").unionByName(old)
        refolded = with_queues_named(fold(again, inventory.join(late, "task_id", "left_semi")))
        before = with_queues_named(fold(old, inventory.limit(0)))
        said = held.join(late, "task_id", "left_semi").select(*KEY, *_SAID)
        # A life of a task that was not carried over had balanced.
        settled = ("coalesce(said, 'balanced') AS said", "coalesce(settled, true) AS settled")
        known = before.select(*KEY).join(said, list(KEY), "full").selectExpr(*KEY, *settled)
    rest = held if not count else held.join(late, "task_id", "left_anti")
    tasks = sent(rest.select("task_id"))
    parts = fresh.join(tasks, "task_id", "left_semi").unionByName(rest.drop(*_SAID))
    last = Run() if inputs.base is None else inputs.base
    whole = merged(parts) if are_named and not last.unnamed else with_queues_named(parts)
    touched = whole if refolded is None else whole.unionByName(refolded)
    all_tasks = tasks if not count else sent(rest.select("task_id").union(late))
    said = rest.select(*KEY, *_SAID)
    return Carried(
        alone=fresh.join(all_tasks, "task_id", "left_anti"),
        touched=touched.where("events > 0 OR place IS NOT NULL"),
        known=sent(said if known is None else said.unionByName(known)),
        before=rest.drop(*_SAID) if before is None else rest.drop(*_SAID).unionByName(before),
        late=count,
        any_redriven=count > 0 or last.redriven,
    )


def _late(fresh: DataFrame, known: DataFrame, watermark_ms: int | None) -> DataFrame:
    """The tasks whose earlier events must be read again; `known` are those that were carried over."""
    unopened = fresh.where(_IS_UNOPENED).join(known, "task_id", "left_anti")
    return fresh.where(_is_earlier(watermark_ms)).select("task_id").union(unopened.select("task_id")).distinct()


def may_be_late(watermark_ms: int | None) -> str:
    """Whether a life of this run may have events that earlier runs read, or should have; in SQL."""
    return f"(({_is_earlier(watermark_ms)}) OR ({_IS_UNOPENED}))"


def _is_earlier(watermark_ms: int | None) -> str:
    """Earlier runs read up to when it began."""
    return f"events > 0 AND first_ms <= {-1 if watermark_ms is None else watermark_ms}"


_IS_UNOPENED: Final = f"events > 0 AND {Outcome.PUBLISHED} + {Outcome.REDRIVEN} + {Outcome.RECEIVED} = 0"


def marked(judged: DataFrame, known: DataFrame | None) -> DataFrame:
    """The same with `was` (what was said of a settled life), `is_standing` and `is_correction`."""
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
    judged: DataFrame, columns: list[str], sent: Callable[[DataFrame], DataFrame], *, as_of_ms: int, keep_ms: int
) -> DataFrame:
    """The lives that the next run must know: all lives of every task that has one which is not settled.

    What was reported is known for `keep_ms` after its last event, and for as long as the broker has it. `sent` is as for `carried`.
    """
    is_kept = f"(verdict = 'balanced' AND last_word = '{Outcome.DEAD_LETTERED}' AND NOT was_redriven)"
    settled = f"(NOT {one_of('verdict', _OPEN)} AND NOT coalesce({is_kept}, false))"
    is_recent = f"(place IS NOT NULL OR coalesce(last_ms, {as_of_ms}) >= {as_of_ms - keep_ms})"
    tasks = sent(judged.where(f"NOT {settled} OR (verdict != 'balanced' AND {is_recent})").select("task_id"))
    unseen = dict.fromkeys(_COUNTS_SEEN, "0L")
    unseen |= {name: f"CAST(NULL AS {judged.schema[name].dataType.simpleString()})" for name in _SEEN}
    lives = {name: unseen.get(name, name) for name in columns}
    return judged.join(tasks, "task_id", "left_semi").selectExpr(*named(lives | {"said": "verdict", "settled": settled}))
