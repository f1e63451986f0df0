"""Plain lives: separate the many lives that went as they should from those that need a closer look.

Nearly every task is published once, perhaps redelivered, and succeeds. One aggregation of numbers shows that; Spark does it in a
small hash table, without a sort. Plain tasks are counted into cells (`metrics.py`) at once. The events of all other tasks go
through `lives.py` and `verdicts.py`.

Tasks are identified by a hash of their id, a quarter of its size. Two tasks are confused only if 80 bits agree, their queue and
name agree, one was published and never ended, and the other ended and was never published.

A task is plain if all of this holds:

- it was published once and succeeded once, in one queue and under one name, in generation 0, without a replacement (`nesting`);
- its other events are redelivered, deferred or received, each at most once in a delivery: so no event was exported twice;
- its success is its last step, and the delivery that succeeded was not redelivered;
- it did not run twice: no worker died with it, and no client restored it;
- the broker does not have it, and none of its events is from the time of an earlier run;
- no earlier run left it open. Or an earlier run left only its publication (it is *announced*): then that is counted with its
  events, and `carrying.py` does not see it.

So a plain task is one balanced life; the tests compare this with the rules of `verdicts.py`. An event without a task id or an id of
its own is never plain, and `lives.py` refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from redelivery.middleware.messages.events import Outcome, Reason

from ..figures.metrics import ENDS_AS_COUNTED, MAX_ATTEMPTS, time_class
from ..schema import or_default
from ..spark.sql import grouped, named, row_of
from ..steps import STEPS
from .lives import RESTORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

#: The columns of an earlier run's lives that show whether a life was only announced: its one event is its publication.
ANNOUNCED: Final = StructType(
    [
        *(StructField(name, StringType()) for name in ("task_id", "queue", "task")),
        *(StructField(name, LongType()) for name in ("nesting", "generation", "events", str(Outcome.PUBLISHED), "last")),
        *(StructField(name, LongType()) for name in ("first_ms", "attempts")),
        StructField("settled", BooleanType()),
    ]
)
_IS_ANNOUNCED: Final = (
    f"NOT settled AND events = 1 AND {Outcome.PUBLISHED} = 1 AND last = {STEPS.index(Outcome.PUBLISHED)}"
    " AND generation = 0 AND nesting = 0 AND queue != ''"
)
#: The columns for a task that is not plain, whatever its events, in SQL.
NOTHING_TOLD: Final = (
    "task_id",
    "'' AS queue",
    "'' AS task",
    "CAST(NULL AS BIGINT) AS announced_ms",
    "CAST(NULL AS BIGINT) AS announced_attempts",
)


def announced(lives: DataFrame) -> DataFrame:
    """The tasks of lives that earlier runs left. `announced_ms` is the time of publication of an announced life, otherwise null."""
    columns = {"announced_ms": f"CASE WHEN {_IS_ANNOUNCED} THEN first_ms END", "announced_attempts": "attempts"}
    return lives.selectExpr("task_id", "queue", "task", *named(columns))


def still_open(lives: DataFrame, closed: DataFrame) -> DataFrame:
    """The lives of earlier runs, without tasks that are `closed`."""
    return lives.join(closed, F.expr(f"{ID} = id"), "left_anti")


#: The bits of `WHOSE` that come from the task's id. The other bits come from queue and task name.
OF_THE_ID: Final = (1 << 16) - 1

#: `ID`: a hash of the task's id. `NAME`: a hash of queue and task, without the bits `OF_THE_ID`. `WHOSE`: `NAME` with bits of
#: another hash of the id, which may differ for ids with the same `ID`.
ID: Final = "xxhash64(task_id)"
NAME: Final = f"(xxhash64({or_default('queue')}, {or_default('task')}) & {~OF_THE_ID}L)"
WHOSE: Final = f"({NAME} | (CAST(hash(task_id) AS BIGINT) & {OF_THE_ID}L))"


_DAY_MS: Final = 86_400_000

#: Bits for the facts of a task: its publication; for each of these outcomes one bit for each delivery in which it happened (a later
#: delivery has a higher bit); it has an event; an earlier run left it announced; any fact that no plain task has.
_PUBLISHED, _EVENT, _ANNOUNCED, _OTHER = 1, 1 << 60, 1 << 61, 1 << 62
_DELIVERIES: Final = 14
_FIRST_BIT: Final = {
    each: 1 + number * _DELIVERIES
    for number, each in enumerate((Outcome.SUCCEEDED, Outcome.REDELIVERY_SCHEDULED, Outcome.DEFERRED, Outcome.RECEIVED))
}
_STEPS: Final = (1 << 1 + len(_FIRST_BIT) * _DELIVERIES) - 1
_COUNTED: Final = tuple(each for each in _FIRST_BIT if each is not Outcome.SUCCEEDED)

#: The maximum number of tasks that are sent to all executors for a join. More are joined by a shuffle.
_MAX_KNOWN: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SortedOut:
    """The result of `sort_out`.

    `events` has the events of tasks that are not plain; `cells` and `totals` count the plain lives. `closed` has the hash (`id`) of
    each plain task that an earlier run left open: that run counted its publication, so `totals` do not. `last_seen` has the time
    (`last_ms`) of the last event of each `worker`; a query over it reads all events again. `earliest_ms` and `latest_ms` are the
    times of the first and last event.
    """

    events: DataFrame
    cells: DataFrame
    closed: DataFrame
    last_seen: DataFrame
    totals: dict[str, int]
    earliest_ms: int | None
    latest_ms: int | None


def sort_out(events: DataFrame, others: DataFrame, keep: Callable[[DataFrame], DataFrame], *, after_ms: int | None) -> SortedOut:
    """Sort the plain lives out, by reading the events twice.

    `others` has the rows of `announced`, or rows with the columns `NOTHING_TOLD`. `keep` persists a table that is used more than
    once. `after_ms` is the time up to which earlier runs have read.
    """
    sorted_out = keep(_sorted(_tasks(events, others, after_ms)))
    totals, (earliest_ms, latest_ms) = _totals(sorted_out)
    plain = sorted_out.where("is_plain")
    found = keep(_to_read_again(events, sorted_out, is_few=totals["asked"] <= _MAX_KNOWN))
    # A plain task succeeded once, so each name has one such row.
    ended = found.where(f"NOT is_asked AND outcome = '{Outcome.SUCCEEDED}'")
    names = ended.selectExpr(f"{NAME} AS name", *_defaults("queue", "task"))
    return SortedOut(
        events=found.where("is_asked").drop("is_asked"),
        cells=_cells(_merged(plain) if totals["closed"] else plain, names),
        closed=plain.where("id IS NOT NULL").select("id"),
        last_seen=grouped(events.selectExpr(*_defaults("worker"), "at_ms"), ("worker",), {"last_ms": "max(at_ms)"}),
        totals=totals,
        earliest_ms=earliest_ms,
        latest_ms=latest_ms,
    )


def _to_read_again(events: DataFrame, sorted_out: DataFrame, *, is_few: bool) -> DataFrame:
    """The events to read again: of all tasks that are not plain, and of one plain task for each `NAME`."""
    rows = sorted_out.selectExpr("is_plain", "CASE WHEN NOT is_plain THEN id END AS asked", "name", "example")
    wanted = grouped(rows, ("is_plain", "asked", "name"), {"wanted": "min(example)"})
    chosen = wanted.selectExpr("wanted", "NOT is_plain AS is_asked")
    looked = events.join(F.broadcast(chosen) if is_few else chosen, F.expr(f"{ID} = wanted"), "left")
    has_no_id = "(event_id IS NULL OR event_id = '')"
    return looked.where(f"wanted IS NOT NULL OR {has_no_id}").selectExpr(
        *events.columns, f"coalesce(is_asked, false) OR {has_no_id} AS is_asked"
    )


def _defaults(*names: str) -> list[str]:
    return named({name: or_default(name) for name in names})


def _tasks(events: DataFrame, others: DataFrame, after_ms: int | None) -> DataFrame:
    """One row of numbers for each task. The rows of `others` count as events."""
    rows = _rows(events, _bit(after_ms)).unionByName(_rows_of_others(others))
    facts = {
        "events": "count(*)",
        "bits": "bit_or(bit)",
        "whose": "min(whose)",
        "other": "max(whose)",
        "attempts": "max(attempt)",
        "first_ms": "min(at_ms)",
        "last_ms": "max(at_ms)",
        "ended_ms": "max(ended_ms)",
        "scheduled_ms": "min(scheduled_ms)",
        "asked_ms": "sum(asked_ms)",
    }
    return grouped(rows, ("id",), facts).where(f"bits & {_EVENT}L > 0")


def _rows(events: DataFrame, bit: str) -> DataFrame:
    facts = {
        "id": ID,
        "bit": f"{bit} | {_EVENT}L",
        "whose": WHOSE,
        "ended_ms": "CASE WHEN outcome = 'succeeded' THEN at_ms END",
        "scheduled_ms": "CASE WHEN outcome = 'redelivery_scheduled' THEN at_ms END",
        "asked_ms": "CASE WHEN outcome = 'redelivery_scheduled' THEN delay_ms END",
    }
    return events.selectExpr("attempt", "at_ms", *named(facts))


def _rows_of_others(others: DataFrame) -> DataFrame:
    """The rows of `others` with the columns of `_rows`: a publication that an earlier run counted, or the bit `_OTHER`."""
    facts = {
        "id": ID,
        "bit": f"CASE WHEN announced_ms IS NULL THEN {_OTHER}L ELSE {_PUBLISHED | _ANNOUNCED}L END",
        "whose": f"CASE WHEN announced_ms IS NOT NULL THEN {WHOSE} END",
        "attempt": "announced_attempts",
        "at_ms": "announced_ms",
        **dict.fromkeys(("ended_ms", "scheduled_ms", "asked_ms"), "CAST(NULL AS BIGINT)"),
    }
    return others.selectExpr(*named(facts))


def _bit(after_ms: int | None) -> str:
    """The bit of an event, in SQL."""
    delivery, reason = or_default("delivery"), or_default("reason")
    holds = {
        Outcome.SUCCEEDED: f"{delivery} > 0",
        Outcome.REDELIVERY_SCHEDULED: f"{reason} != '{Reason.WORKER_LOST}'",
        Outcome.DEFERRED: "true",
        Outcome.RECEIVED: f"{reason} != '{RESTORED}'",
    }
    counted = f"{delivery} BETWEEN 0 AND {_DELIVERIES - 1}"
    own = " ".join(
        f"WHEN outcome = '{each}' AND {each_holds} AND {counted} THEN shiftleft(1L, CAST({delivery} AS INT) + {_FIRST_BIT[each]})"
        for each, each_holds in holds.items()
    )
    bit = f"CASE WHEN outcome = '{Outcome.PUBLISHED}' AND {delivery} = 0 THEN {_PUBLISHED}L {own} ELSE {_OTHER}L END"
    is_first = f"{or_default('generation')} = 0 AND {or_default('nesting')} = 0"
    is_whole = "task_id != '' AND queue != '' AND at_ms IS NOT NULL"
    is_new = "true" if after_ms is None else f"at_ms > {after_ms}"
    return f"CASE WHEN {is_first} AND {is_whole} AND {is_new} THEN {bit} ELSE {_OTHER}L END"


def _sorted(tasks: DataFrame) -> DataFrame:
    """Plain tasks, grouped by bits and the columns of cells. A task that is not plain, or was open, has its own row with `id`."""
    marked = tasks.selectExpr("*", f"coalesce({_is_plain()}, false) AS is_plain")
    common = {
        "is_plain": "is_plain",
        "id": f"CASE WHEN NOT is_plain OR bits & {_ANNOUNCED}L > 0 THEN id END",
        "name": f"CASE WHEN is_plain THEN whose & {~OF_THE_ID}L END",
        "bits": f"CASE WHEN is_plain THEN bits & {_STEPS}L END",
        "days": f"CASE WHEN is_plain THEN CAST(floor(first_ms / {_DAY_MS}) AS INT) END",
        "attempts": f"CASE WHEN is_plain THEN least(coalesce(attempts, 0), {MAX_ATTEMPTS}) END",
        "time_class": f"CASE WHEN is_plain THEN {time_class('ended_ms - first_ms')} END",
    }
    marked = marked.selectExpr(
        *named(common),
        "id AS example",
        f"CASE WHEN bits & {_ANNOUNCED}L = 0 THEN first_ms END AS first_ms",
        "last_ms",
        f"CASE WHEN {_IS_AGAIN} THEN greatest(ended_ms - scheduled_ms, 0) END AS waited",
        f"CASE WHEN {_IS_AGAIN} THEN coalesce(asked_ms, 0) END AS asked",
    )
    counts = {
        "example": "min(example)",
        "lives": "count(*)",
        "first_ms": "min(first_ms)",
        "last_ms": "max(last_ms)",
        "delay_asked_ms": "coalesce(sum(asked), 0)",
        "delay_waited_ms": "coalesce(sum(waited), 0)",
        "delay_late_max_ms": "max(waited - asked)",
    }
    return grouped(marked, common, counts)


def _is_plain() -> str:
    succeeded, scheduled, deferred, received = map(_deliveries, _FIRST_BIT)
    return (
        f"(bit_count(bits & {_STEPS}L) = events AND bits < {_OTHER}L AND bits & {_PUBLISHED} > 0 AND bit_count({succeeded}) = 1"
        f" AND {scheduled} < {succeeded} AND {deferred} < {succeeded} * 2 AND {received} < {succeeded} * 2"
        " AND whose = other)"
    )


def _deliveries(outcome: Outcome) -> str:
    """The deliveries in which a task had this outcome, as bits."""
    return f"(shiftright(bits, {_FIRST_BIT[outcome]}) & {(1 << _DELIVERIES) - 1})"


def _deliveries_with(outcome: Outcome) -> str:
    """The number of deliveries in which a plain task had this outcome."""
    return f"bit_count({_deliveries(outcome)})"


_IS_AGAIN: Final = f"{_deliveries_with(Outcome.REDELIVERY_SCHEDULED)} > 0"


def _totals(sorted_out: DataFrame) -> tuple[dict[str, int], tuple[int | None, int | None]]:
    """Count the plain tasks and the others (`asked`), and find the first and last time, in one query."""
    sums = {"lives": "sum(CASE WHEN is_plain THEN lives END)", "events": "sum(lives * bit_count(bits))"}
    sums |= {str(each): f"sum(lives * {_deliveries_with(each)})" for each in _COUNTED}
    sums |= {"asked": "count_if(NOT is_plain)", "closed": "count_if(is_plain AND id IS NOT NULL)"}
    row = row_of(sorted_out, sums | {"earliest_ms": "min(first_ms)", "latest_ms": "max(last_ms)"})
    totals = {name: int(row[name] or 0) for name in sums}
    lives, closed = totals["lives"], totals["closed"]
    totals["events"] -= closed
    return {**totals, str(Outcome.PUBLISHED): lives - closed, str(Outcome.SUCCEEDED): lives}, (row["earliest_ms"], row["latest_ms"])


def _merged(plain: DataFrame) -> DataFrame:
    """Drop the ids, and add up rows that agree in all other keys."""
    common = ("name", "bits", "days", "attempts", "time_class")
    sums = {name: f"sum({name})" for name in ("lives", "delay_asked_ms", "delay_waited_ms")}
    return grouped(plain, common, sums | {"delay_late_max_ms": "max(delay_late_max_ms)"})


def _cells(plain: DataFrame, names: DataFrame) -> DataFrame:
    """The cells of the plain lives, with the columns of `metrics.cells_of`."""
    again = f"lives * {_deliveries_with(Outcome.REDELIVERY_SCHEDULED)}"
    counted = {
        "day": "date_from_unix_date(days)",
        "opened": f"'{Outcome.PUBLISHED}'",
        "ending": f"'{Outcome.SUCCEEDED}'",
        "died_of": "CAST(NULL AS STRING)",
        "published": "lives",
        "redriven": "0L",
        "redeliveries": again,
        **dict.fromkeys(map(str, ENDS_AS_COUNTED), "0L"),
        str(Outcome.SUCCEEDED): "lives",
        "possible_repeats": "0L",
        "delayed_lives": f"CASE WHEN {_IS_AGAIN} THEN lives ELSE 0 END",
        "attempts_made": f"{again} + lives",
        "attempts_wasted": again,
    }
    same = ("attempts", "time_class", "lives", "delay_asked_ms", "delay_waited_ms", "delay_late_max_ms")
    return plain.join(F.broadcast(names), "name").selectExpr("queue", "task", *same, *named(counted))
