"""Judging: from lives to verdicts.

The nine verdicts are tried in the order of `RULES`; the first that holds is the verdict of the life. A life is *old* if its last
event is at least the grace before `as_of`. It is *open* if it has ended less often than it was opened: two publications under one
task id are two messages. All redrives to one generation open it once, because an interrupted redrive is recorded again.

A life that is only in the inventory has no events: its publisher did not record it, and no worker has seen it. It is not
`orphaned`. In a dead-letter queue it is a `phantom_dead_letter`; otherwise it is `stuck` or `in_flight`.

The inventory is valid only for its own time: a dead letter that it saw before the life's last event is not a phantom, and a life
with an event after the inventory is not lost. So either export may come first. If the inventory comes first, no end between the two
exports is missed.

One delivery ends once. A redelivery recorded after the end of the same delivery comes from a copy: the life is `resurrected`.

Limits: the inventory does not say when an owner died, so the life's last event must be older than the grace. The books know a
message by its id, so they see a copy only when it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.middleware.messages.events import Outcome

from ..rules import RULES, VERDICTS
from ..spark.sql import named, quoted
from ..steps import DELIVERY, ENDS, STEPS, outcome_of
from .lives import OPENED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OPENING = (Outcome.PUBLISHED, Outcome.REDRIVEN, Outcome.RECEIVED)


def judge(lives: DataFrame, *, as_of_ms: int, grace_ms: int, looked_ms: int | None = None, any_redriven: bool = True) -> DataFrame:
    """Add `verdict`, `rule`, `cause`, `age_ms` (of the last event) and `is_repeated` (the task may have run twice).

    `looked_ms` is the time of the inventory; None counts as later than all events. `any_redriven=False` saves a query if no life
    was opened by a redrive.
    """
    related = _with_later(lives) if any_redriven else lives.selectExpr("*", "false AS was_redriven")
    facts = {"ends": _ENDS, "age_ms": f"{as_of_ms} - last_ms", "last_word": outcome_of("last")}
    judged = related.selectExpr("*", *named(facts)).selectExpr("*", f"{_verdict(as_of_ms, grace_ms, looked_ms)} AS verdict")
    rules = ", ".join(f"{quoted(name)}, {quoted(rule)}" for name, rule in RULES.items())
    said = {"rule": f"element_at(map({rules}), verdict)", "cause": _CAUSE, "is_repeated": "repeats > 0 OR ends > 1"}
    return judged.selectExpr("*", *named(said))


def _with_later(lives: DataFrame) -> DataFrame:
    """Add `was_redriven`: a redrive opened a later generation in the same queue, or in a queue where the task had no earlier life.

    A task without a redrive is skipped.
    """
    task = ["task_id", "nesting"]
    redriven = lives.where(F.col(Outcome.REDRIVEN) > 0).select(*task).distinct()
    relative = F.struct("generation", "queue", (F.col(Outcome.REDRIVEN) > 0).alias("redriven"))
    relatives = lives.join(redriven, task, "left_semi").groupBy(*task).agg(F.collect_list(relative).alias("relatives"))

    def is_later(other: Column) -> Column:
        def is_before(third: Column) -> Column:
            return (third.queue == other.queue) & (third.generation < other.generation)

        moved = ~F.exists("relatives", is_before)
        return other.redriven & (other.generation > F.col("generation")) & ((other.queue == F.col("queue")) | moved)

    later = F.coalesce(F.exists("relatives", is_later), F.lit(False))  # noqa: FBT003 - a literal
    return lives.join(relatives, task, "left").withColumn("was_redriven", later).drop("relatives")


def _verdict(as_of_ms: int, grace_ms: int, looked_ms: int | None) -> str:
    is_dead = f"coalesce(last_word = '{Outcome.DEAD_LETTERED}', false)"
    old = f"coalesce(age_ms >= {grace_ms}, true)"  # a life without events has no age, and counts as old
    is_open = f"(ends = 0 OR ends < {OPENED})"
    overdue = f"coalesce(due_ms + {grace_ms} < {as_of_ms}, false)"
    held = "(in_flight > 0 OR in_dead_letters > 0)"
    # An inventory from before the life's last event does not show where the message is now.
    seen_since = "coalesce(last_ms <= seen_ms, true)"
    looked_since = "true" if looked_ms is None else f"coalesce(last_ms <= {looked_ms}, true)"
    same_delivery = f"floor(last_scheduled / {DELIVERY}) = floor(first_end / {DELIVERY})"
    redelivered_after_its_end = f"({same_delivery} AND scheduled_ms > ended_ms)"
    holds = {
        "orphaned": f"events > 0 AND {' + '.join(_OPENING)} = 0",
        "duplicated": "ends > 1",
        "resurrected": f"last_open > first_end OR {redelivered_after_its_end}",
        "phantom_dead_letter": f"in_dead_letters > 0 AND NOT {is_dead} AND {seen_since}",
        "missing_dead_letter": f"{is_dead} AND {old} AND in_dead_letters = 0 AND NOT was_redriven AND {looked_since}",
        "stuck": f"{is_open} AND {held} AND {seen_since} AND ({overdue} OR (ownerless > 0 AND {old}))",
        "in_flight": f"{is_open} AND ({held} OR NOT {old} OR NOT {looked_since})",
        "lost": is_open,
    }
    tried = " ".join(f"WHEN {holds[name]} THEN '{name}'" for name in VERDICTS[:-1])
    return f"CASE {tried} ELSE 'balanced' END"


def _if_any(before: str, text: str, after: str) -> str:
    return f"coalesce(concat('{before}', nullif(CAST({text} AS STRING), ''), '{after}'), '')"


#: How often a life ended. The closing of a kept dead letter does not count.
_ENDS: Final = f"({' + '.join(map(str, STEPS[ENDS:]))} - IF(last_closing > first_death, 1, 0))"

#: The last known event, in one sentence.
_LAST: Final = ", ".join(
    (
        "'last event: '",
        "last_word",
        _if_any(" (", "reason", ")"),
        _if_any(" at attempt ", "nullif(attempts, 0)", ""),
        _if_any(" by ", "worker", ""),
        _if_any(" after ", "exception", ""),
        "' at '",
        "date_format(timestamp_millis(last_ms), 'yyyy-MM-dd HH:mm:ss.SSS')",
        "' UTC'",
    )
)
_PLACE: Final = "concat('the broker has it in ', replace(place, '_', ' '))"
_CAUSE: Final = f"concat(coalesce(concat({_LAST}), 'no event names it'), '; ', coalesce({_PLACE}, 'the broker does not have it'))"
