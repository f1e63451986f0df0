"""Judging: from lives to verdicts.

The nine verdicts are tried in the order of `RULES`, and the first that holds is the life's. A life is *old* when its last event
is at least the grace before `as_of`; it is *open* while it has not ended, or was opened more often than it ended: two
publications under one task id are two messages, and one end is not enough for both.

A life that is in the inventory alone has no event, so it is not `orphaned`: in a dead-letter queue it is a `phantom_dead_letter`,
elsewhere it is `stuck` or `in_flight`, exactly as the rules say. Its publisher did not record it, and no worker has seen it yet.

The inventory counts for what it saw: a letter that it saw before the life's last event is no phantom, and a life whose last event
came after it looked is not lost. So either may be exported first; with the inventory first, nothing can end between the two unseen.

One delivery ends once. A redelivery recorded after the end of the same delivery is somebody's copy, and the life is `resurrected`.

Limits: an owner that is gone says nothing of when it went, so that the life's last event must be older than the grace. The books
know a message by its id: a copy of it is seen when it ends, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.middleware.outcomes import Outcome
from redelivery.workers.reconciliation.steps import DELIVERY, ENDS, STEPS, outcome_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["DISCREPANCIES", "RULES", "VERDICTS", "judge"]

#: The verdicts and their rules (design, section 9), in the order in which they are tried.
RULES: Final = {
    "orphaned": "has events, but neither published, redriven nor received",
    "duplicated": "more than one end, a kept letter's one purged or discarded aside",
    "resurrected": "something happened to it after its end",
    "phantom_dead_letter": "a dead-letter queue holds it, but its last word is not dead_lettered",
    "missing_dead_letter": "its last word is dead_lettered, but no dead-letter queue holds it and it was not redriven",
    "stuck": "waits in the broker, and is overdue by more than the grace",
    "in_flight": "has not ended, and is in the broker or younger than the grace",
    "lost": "has not ended, is nowhere in the broker, and is older than the grace",
    "balanced": "opened once, ended once",
}
VERDICTS: Final = tuple(RULES)

#: The verdicts that make the books not balance.
DISCREPANCIES: Final = tuple(name for name in VERDICTS if name not in {"in_flight", "balanced"})

_OPENING = (Outcome.PUBLISHED, Outcome.REDRIVEN, Outcome.RECEIVED)


def judge(lives: DataFrame, *, as_of_ms: int, grace_ms: int, looked_ms: int | None = None, any_redriven: bool = True) -> DataFrame:
    """The lives with `verdict`, `rule`, `cause`, `age_ms` (of the last event) and `is_repeated` (its task may have run twice).

    `looked_ms` is when the inventory was taken; where nobody knows, it counts as later than all events. `any_redriven` is false
    where it is known that no life was opened by a redrive, which saves looking for one.
    """
    related = _with_later(lives) if any_redriven else lives.withColumn("was_redriven", F.lit(False))  # noqa: FBT003 - a literal
    facts = related.withColumns(
        {
            "ends": _ends(),
            "age_ms": F.lit(as_of_ms) - F.col("last_ms"),
            "last_word": outcome_of(F.col("last")),
        }
    )
    judged = facts.withColumn("verdict", _verdict(as_of_ms, grace_ms, looked_ms))
    rule = F.element_at(F.create_map(*(F.lit(word) for pair in RULES.items() for word in pair)), F.col("verdict"))
    return judged.withColumns(
        {
            "rule": rule,
            "cause": _cause(),
            "is_repeated": (F.col("repeats") > 0) | (F.col("ends") > 1),
        }
    )


def _with_later(lives: DataFrame) -> DataFrame:
    """Whether a later generation was opened: in the same queue, or in one where this task had no earlier life (it was moved).

    Only tasks that were redriven have relatives; all others pass by.
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


def _ends() -> Column:
    """How often the life ended; the one closing of a kept letter does not count."""
    ends = sum((F.col(str(each)) for each in STEPS[ENDS:]), F.lit(0))
    closed = F.col("last_closing") > F.col("first_death")
    return ends - F.when(closed, 1).otherwise(0)


def _verdict(as_of_ms: int, grace_ms: int, looked_ms: int | None) -> Column:
    count = F.col
    is_dead = F.coalesce(F.col("last_word") == str(Outcome.DEAD_LETTERED), F.lit(False))  # noqa: FBT003 - a literal
    old = F.coalesce(F.col("age_ms") >= grace_ms, F.lit(True))  # noqa: FBT003 - without an event it has no age to be young by
    is_open = (count("ends") == 0) | (count("ends") < count(Outcome.PUBLISHED) + count(Outcome.REDRIVEN))
    overdue = F.coalesce(F.col("due_ms") + grace_ms < as_of_ms, F.lit(False))  # noqa: FBT003 - a literal
    held = (count("in_flight") > 0) | (count("in_dead_letters") > 0)
    # What the broker held before the life's last event, or did not hold before it, says nothing of what came of that event.
    seen_since = F.coalesce(F.col("last_ms") <= F.col("seen_ms"), F.lit(True))  # noqa: FBT003 - a literal
    looked_since = F.lit(True) if looked_ms is None else F.coalesce(F.col("last_ms") <= looked_ms, F.lit(True))  # noqa: FBT003
    same_delivery = F.floor(F.col("last_scheduled") / DELIVERY) == F.floor(F.col("first_end") / DELIVERY)
    handed_on_after_its_end = same_delivery & (F.col("scheduled_ms") > F.col("ended_ms"))
    holds = {
        "orphaned": (count("events") > 0) & (sum((count(str(each)) for each in _OPENING), F.lit(0)) == 0),
        "duplicated": count("ends") > 1,
        "resurrected": (F.col("last_open") > F.col("first_end")) | handed_on_after_its_end,
        "phantom_dead_letter": (count("in_dead_letters") > 0) & ~is_dead & seen_since,
        "missing_dead_letter": is_dead & old & (count("in_dead_letters") == 0) & ~F.col("was_redriven") & looked_since,
        "stuck": is_open & held & seen_since & (overdue | ((count("ownerless") > 0) & old)),
        "in_flight": is_open & (held | ~old | ~looked_since),
        "lost": is_open,
    }
    verdict = F.lit("balanced")
    for name in reversed(VERDICTS[:-1]):
        verdict = F.when(holds[name], F.lit(name)).otherwise(verdict)
    return verdict


def _cause() -> Column:
    """What is known of how it came to this, in one sentence."""
    last = F.concat(
        F.lit("last heard of as "),
        "last_word",
        _if_any(" (", "reason", ")"),
        _if_any(" at attempt ", F.nullif("attempts", F.lit(0)), ""),
        _if_any(" by ", "worker", ""),
        _if_any(" after ", "exception", ""),
        F.lit(" at "),
        F.date_format(F.timestamp_millis("last_ms"), "yyyy-MM-dd HH:mm:ss.SSS"),
        F.lit(" UTC"),
    )
    place = F.concat(F.lit("the broker has it in "), F.replace("place", F.lit("_"), F.lit(" ")))
    return F.concat(
        F.coalesce(last, F.lit("no event names it")),
        F.lit("; "),
        F.coalesce(place, F.lit("the broker does not have it")),
    )


def _if_any(before: str, value: Column | str, after: str) -> Column:
    text = (F.col(value) if isinstance(value, str) else value).cast("string")
    return F.coalesce(F.concat(F.lit(before), F.nullif(text, F.lit("")), F.lit(after)), F.lit(""))
