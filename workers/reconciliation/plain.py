"""Plain lives: the many that went as they should, told from the tasks that have to be looked at.

Nearly every task is published once, perhaps redelivered, and succeeds. To see that, numbers are enough: one aggregation that holds
no text, so that Spark keeps it in a small hash table and sorts nothing. What is plain is counted into cells (`metrics.py`) at once;
only the events of all other tasks go the whole way, through `lives.py` and `verdicts.py`.

Tasks are told apart by a hash of their id, which is a quarter of its size. Tasks that share it are looked at as if they were one;
but further bits, of another hash, show that they are several, and all of them go the whole way, where the ids themselves count. So
two tasks are taken for one only where 80 bits agree, and queue and name, and where one was published and never ended, and the other
ended and was never published: two that both ended make no plain one.

A task is plain when all of this holds; whatever else it is, the whole way finds out:

- it was published once and succeeded once, in one queue and under one name, in generation 0, without a replacement (`nesting`);
- besides that it was only redelivered, deferred or received, each at most once in a delivery, so that no event was exported twice
  (an event that was has the same outcome and delivery);
- its success is its last step, and no redelivery is of the delivery that succeeded;
- no worker died of it, and nobody restored it: it did not run twice;
- the broker does not have it, no earlier run left it open, and none of its events is from the time of an earlier run.

So a plain task is one life, and that life is balanced: the rules of `verdicts.py` say so too, and the tests hold the two ways to
each other.

Enters: events, and the ids of tasks that are not plain whatever their events say. Leaves: `SortedOut`. An event without a task id
is of no plain task, so that the whole way meets it, and refuses it; so is one without an id of its own, which only the second look
reads, for such ids are many and long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.middleware.outcomes import Outcome, Reason
from redelivery.workers.reconciliation.lives import RESTORED
from redelivery.workers.reconciliation.metrics import ENDS_AS_COUNTED, MOST_ATTEMPTS
from redelivery.workers.reconciliation.schema import DEFAULTS
from redelivery.workers.reconciliation.times import time_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

__all__ = ["SortedOut", "sort_out"]

_DAY_MS: Final = 86_400_000

#: Bits of what was told of a task: its publication; for each of these outcomes, one bit for each delivery in which it happened, so
#: that a later delivery is a greater number; and one for what no plain task has.
_PUBLISHED, _OTHER = 1, 1 << 62
_DELIVERIES: Final = 15
_FIRST_BIT: Final = {
    each: 1 + number * _DELIVERIES
    for number, each in enumerate((Outcome.SUCCEEDED, Outcome.REDELIVERY_SCHEDULED, Outcome.DEFERRED, Outcome.RECEIVED))
}
_COUNTED: Final = tuple(each for each in _FIRST_BIT if each is not Outcome.SUCCEEDED)

#: The bits of `_whose` that tell tasks apart whose ids have one hash; the others are the name's.
_OF_THE_ID: Final = (1 << 16) - 1

#: Up to so many tasks that are not plain are made known to all executors; more are joined by a shuffle.
_MOST_KNOWN: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SortedOut:
    """`events` are those of the tasks that are not plain, `cells` and `totals` count the plain lives.

    `heard` says when (`last_ms`) each `worker` was last heard of, in all events, which it looks at again; `latest_ms` is the latest
    time of any.
    """

    events: DataFrame
    cells: DataFrame
    heard: DataFrame
    totals: dict[str, int]
    latest_ms: int | None


def sort_out(events: DataFrame, others: DataFrame, keep: Callable[[DataFrame], DataFrame], *, after_ms: int | None) -> SortedOut:
    """Sort the plain lives out, in two looks at the events.

    `others` has the ids (`task_id`) of tasks that are not plain; `keep` keeps a table that is asked for more than once; `after_ms`
    is up to when earlier runs have read.
    """
    sorted_out = keep(_sorted(_tasks(events, after_ms), others))
    totals, latest_ms = _totals(sorted_out)
    found = keep(_found(events, sorted_out, is_few=totals["asked"] <= _MOST_KNOWN))
    names = found.where(~F.col("is_asked")).select(_or_default("queue"), _or_default("task")).distinct()
    return SortedOut(
        events=found.where("is_asked").select(*events.columns),
        cells=_cells(sorted_out.where("is_plain"), names.withColumn("name", _name())),
        heard=events.groupBy(_or_default("worker")).agg(F.max("at_ms").alias("last_ms")),
        totals=totals,
        latest_ms=latest_ms,
    )


def _found(events: DataFrame, sorted_out: DataFrame, *, is_few: bool) -> DataFrame:
    """The events that have to be looked at: those of all tasks that are not plain, and of one plain task for each hash of names."""
    wanted = sorted_out.groupBy("is_plain", "id", "name").agg(F.min("example").alias("wanted"))
    wanted = wanted.select("wanted", (~F.col("is_plain")).alias("is_asked"))
    looked = events.join(F.broadcast(wanted) if is_few else wanted, _id() == F.col("wanted"), "left")
    has_no_id = F.col("event_id").isNull() | (F.col("event_id") == "")
    return looked.where(F.col("wanted").isNotNull() | has_no_id).withColumn("is_asked", F.col("is_asked") | has_no_id)


def _id() -> Column:
    return F.xxhash64("task_id")


def _name() -> Column:
    """A hash of queue and task, without the bits that `_whose` takes."""
    return F.xxhash64(_or_default("queue"), _or_default("task")).bitwiseAND(F.lit(~_OF_THE_ID))


def _whose() -> Column:
    """The name's hash, and bits of a hash of the id that is made in another way, for else ids with one `_id` may agree here too."""
    return _name().bitwiseOR(F.hash("task_id").cast("long").bitwiseAND(F.lit(_OF_THE_ID)))


def _or_default(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(DEFAULTS[name])).alias(name)


def _tasks(events: DataFrame, after_ms: int | None) -> DataFrame:
    """One row for each task, of numbers."""
    is_again, is_success = (F.col("outcome") == str(each) for each in (Outcome.REDELIVERY_SCHEDULED, Outcome.SUCCEEDED))
    return events.groupBy(_id().alias("id")).agg(
        F.count("*").alias("events"),
        F.bit_or(_bit(after_ms)).alias("bits"),
        F.min(_whose()).alias("whose"),
        F.max(_whose()).alias("other"),
        F.max("attempt").alias("attempts"),
        F.min("at_ms").alias("first_ms"),
        F.max("at_ms").alias("last_ms"),
        F.max(F.when(is_success, F.col("at_ms"))).alias("ended_ms"),
        F.min(F.when(is_again, F.col("at_ms"))).alias("scheduled_ms"),
        F.sum(F.when(is_again, F.col("delay_ms"))).alias("asked_ms"),
    )


def _bit(after_ms: int | None) -> Column:
    """What an event says of its task, as one bit."""
    outcome, delivery, reason = F.col("outcome"), _or_default("delivery"), _or_default("reason")
    holds = {
        Outcome.RECEIVED: reason != RESTORED,
        Outcome.DEFERRED: F.lit(True),  # noqa: FBT003 - a literal
        Outcome.REDELIVERY_SCHEDULED: reason != str(Reason.WORKER_LOST),
        Outcome.SUCCEEDED: delivery > 0,
    }
    bit = F.lit(_OTHER)
    for each, each_holds in holds.items():
        own = F.call_function("shiftleft", F.lit(1).cast("long"), delivery.cast("int") + _FIRST_BIT[each])
        bit = F.when((outcome == str(each)) & each_holds & delivery.between(0, _DELIVERIES - 1), own).otherwise(bit)
    bit = F.when((outcome == str(Outcome.PUBLISHED)) & (delivery == 0), _PUBLISHED).otherwise(bit)
    is_first = (_or_default("generation") == 0) & (_or_default("nesting") == 0)
    is_whole = (F.col("task_id") != "") & (F.col("queue") != "") & F.col("at_ms").isNotNull()
    is_new = F.lit(True) if after_ms is None else F.col("at_ms") > after_ms  # noqa: FBT003 - a literal
    return F.when(is_first & is_whole & is_new, bit).otherwise(F.lit(_OTHER))


def _sorted(tasks: DataFrame, others: DataFrame) -> DataFrame:
    """Plain tasks by what the cells have in common; and each of the others by itself."""
    known = others.select(_id().alias("id"), F.lit(1).alias("known")).distinct()
    is_plain = F.coalesce(_is_plain(), F.lit(False))  # noqa: FBT003 - a literal
    facts = tasks.join(known, "id", "left").withColumn("is_plain", is_plain)
    is_again = _told(Outcome.REDELIVERY_SCHEDULED) > 0
    waited = F.when(is_again, F.greatest(F.col("ended_ms") - F.col("scheduled_ms"), F.lit(0)))
    common = {
        "id": F.when(~F.col("is_plain"), F.col("id")),
        "name": _if_plain(F.col("whose").bitwiseAND(F.lit(~_OF_THE_ID))),
        "days": _if_plain(F.floor(F.col("first_ms") / _DAY_MS).cast("int")),
        "attempts": _if_plain(F.least(F.coalesce("attempts", F.lit(0)), F.lit(MOST_ATTEMPTS))),
        "time_class": _if_plain(time_class(F.col("ended_ms") - F.col("first_ms"))),
    }
    told = facts.select(
        "is_plain",
        *(column.alias(name) for name, column in common.items()),
        F.col("id").alias("example"),
        "events",
        "last_ms",
        *(_told(each).alias(str(each)) for each in _COUNTED),
        waited.alias("waited"),
        F.when(is_again, F.coalesce("asked_ms", F.lit(0))).alias("asked"),
    )
    return told.groupBy("is_plain", *common).agg(
        F.min("example").alias("example"),
        F.count("*").alias("lives"),
        F.sum("events").alias("events"),
        F.max("last_ms").alias("last_ms"),
        *(F.sum(str(each)).alias(str(each)) for each in _COUNTED),
        F.count("waited").alias("delayed_lives"),
        F.coalesce(F.sum("asked"), F.lit(0)).alias("delay_asked_ms"),
        F.coalesce(F.sum("waited"), F.lit(0)).alias("delay_waited_ms"),
        F.max(F.col("waited") - F.col("asked")).alias("delay_late_max_ms"),
    )


def _is_plain() -> Column:
    bits = F.col("bits")
    succeeded, scheduled, deferred, received = map(_deliveries, _FIRST_BIT)
    return (
        (F.bit_count(bits) == F.col("events"))
        & (bits < _OTHER)
        & (bits.bitwiseAND(F.lit(_PUBLISHED)) > 0)
        & (F.bit_count(succeeded) == 1)
        & (scheduled < succeeded)
        & (deferred < succeeded * 2)
        & (received < succeeded * 2)
        & (F.col("whose") == F.col("other"))
        & F.col("known").isNull()
    )


def _deliveries(outcome: Outcome) -> Column:
    """The deliveries in which a task had this outcome, a bit for each."""
    return F.call_function("shiftright", F.col("bits"), F.lit(_FIRST_BIT[outcome])).bitwiseAND(F.lit((1 << _DELIVERIES) - 1))


def _told(outcome: Outcome) -> Column:
    """In how many deliveries a plain task had this outcome."""
    return F.bit_count(_deliveries(outcome))


def _if_plain(fact: Column) -> Column:
    return F.when(F.col("is_plain"), fact)


def _totals(sorted_out: DataFrame) -> tuple[dict[str, int], int | None]:
    """One look at all rows: `lives`, `events` and the outcomes of the plain ones, how many others, and the latest time of all."""
    is_plain = F.col("is_plain")
    of_plain = {"lives": F.col("lives"), "events": F.col("events")} | {str(each): F.col(each) for each in _COUNTED}
    row = sorted_out.agg(
        F.max("last_ms").alias("latest_ms"),
        F.count_if(~is_plain).alias("asked"),
        *(F.sum(F.when(is_plain, column)).alias(name) for name, column in of_plain.items()),
    ).first()
    latest_ms, *counts = (None, *[0] * (len(of_plain) + 1)) if row is None else row
    totals = {name: int(number or 0) for name, number in zip(("asked", *of_plain), counts, strict=True)}
    lives = totals["lives"]
    return {**totals, str(Outcome.PUBLISHED): lives, str(Outcome.SUCCEEDED): lives}, latest_ms


def _cells(plain: DataFrame, names: DataFrame) -> DataFrame:
    """As `cells_of` in `metrics.py` makes them."""
    lives, none = F.col("lives"), F.lit(0).cast("long")
    counted = {
        "day": F.date_from_unix_date("days"),
        "opened": F.lit(str(Outcome.PUBLISHED)),
        "ending": F.lit(str(Outcome.SUCCEEDED)),
        "died_of": F.lit(None).cast("string"),
        "published": lives,
        "redeliveries": F.col(Outcome.REDELIVERY_SCHEDULED),
        **dict.fromkeys(map(str, ENDS_AS_COUNTED), none),
        str(Outcome.SUCCEEDED): lives,
        **dict.fromkeys(("redriven", "possible_repeats"), none),
        "attempts_made": F.col(Outcome.REDELIVERY_SCHEDULED) + lives,
        "attempts_wasted": F.col(Outcome.REDELIVERY_SCHEDULED),
    }
    return plain.join(F.broadcast(names), "name").withColumns(counted)
