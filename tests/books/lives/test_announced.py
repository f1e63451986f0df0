"""Lives that one run left open and only published, and the next closes the short way, with the result of the full way."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.workers.reconciliation import job
from redelivery.workers.reconciliation.inputs.carrying import held_schema
from redelivery.workers.reconciliation.inputs.inputs import gather
from redelivery.workers.reconciliation.inputs.state import State
from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.lives.lives import fold
from redelivery.workers.reconciliation.lives.plain import sort_out
from redelivery.workers.reconciliation.spark.few_rows import FEW
from redelivery.workers.reconciliation.spark.files import Files
from tests.books.lives.test_oracle import random_histories
from tests.books.lives.test_plain import AGAIN, HOUR, SECOND, SUCCEEDED, twins
from tests.books.lives.test_state import parts_of
from tests.support.books.spark_session import NOON, Histories, Row, rows, spark, write_lines
from tests.support.lanes import seed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from redelivery.workers.reconciliation.inputs.inputs import Inputs
    from redelivery.workers.reconciliation.report.summary import Summary

__all__ = ["spark"]

pytestmark = [pytest.mark.xdist_group("spark-announced"), pytest.mark.timeout(1800)]

LATER = NOON + HOUR
Steps = list[Any]

#: The events of the first and of the second run, for lives that the second run closes the short way.
CLOSED: dict[str, tuple[Steps, Steps]] = {
    "ends": (["published"], [SUCCEEDED]),
    "ends-after-a-redelivery": (["published"], [AGAIN, SECOND]),
    "is-received-and-ends": (["published"], [("received", {"delivery": 1}), SUCCEEDED]),
    "was-in-a-queue-that-the-inventory-named": ([("published", {"queue": ""})], [SUCCEEDED]),
}
#: Lives that it does not close the short way, each for one reason.
OTHERS: dict[str, tuple[Steps, Steps]] = {
    "waits-still": (["published"], []),
    "is-put-off-still": (["published"], [("deferred", {"delivery": 1})]),
    "dies": (["published"], [("dead_lettered", {"delivery": 1, "reason": "exhausted"})]),
    "was-received": (["published", ("received", {"delivery": 1})], [SUCCEEDED]),
    "was-redelivered": (["published", AGAIN], [SECOND]),
    "was-published-by-a-delivery": ([("published", {"delivery": 2})], [("succeeded", {"delivery": 3})]),
    "was-published-twice": (["published", "published"], [SUCCEEDED]),
    "is-published-again": (["published"], ["published", SUCCEEDED]),
    "succeeds-twice": (["published"], [SUCCEEDED, SECOND]),
    "was-in-two-queues": (["published", ("published", {"queue": "mail"})], [SUCCEEDED]),
    "ends-in-another-queue": (["published"], [("succeeded", {"delivery": 1, "queue": "mail"})]),
    "ends-under-another-name": (["published"], [("succeeded", {"delivery": 1, "task": "shop.pack"})]),
    "is-replaced": (["published"], [("succeeded", {"delivery": 1, "nesting": 1})]),
    "was-of-another-generation": ([("published", {"generation": 1})], [("succeeded", {"delivery": 1, "generation": 1})]),
    "had-ended-long-ago": (["published"], [("succeeded", {"delivery": 1, "at_ms": NOON})]),
    "is-in-the-broker": (["published"], [SUCCEEDED]),
    "was-lost": ([("published", {"at_ms": NOON - HOUR})], [SUCCEEDED]),
}


class Days:
    """Two runs over two days in a folder of their own."""

    def __init__(self, spark: SparkSession, folder: Path, *, all_lives: bool) -> None:
        self.spark, self.folder, self.all_lives = spark, folder, all_lives
        self.places: dict[str, Any] = {name: str(folder / name) for name in ("outcomes", "inventory", "state")}

    def run(self, day: int, events: list[Row], inventory: list[Row], as_of_ms: int) -> Summary:
        """The books of a day."""
        self.arrive(day, events, inventory)
        options: dict[str, Any] = {"all_lives": self.all_lives, "as_of_ms": as_of_ms, "grace_ms": 600_000}
        books = Books(output=str(self.folder / "books"), **self.places, **options)
        return reconcile(self.spark, books)

    def arrive(self, day: int, events: list[Row], inventory: list[Row]) -> None:
        """Write them."""
        write_lines(self.folder / "outcomes" / f"date=2026-01-{30 + day}" / "hour=12" / "outcomes.jsonl", events)
        write_lines(self.folder / "inventory" / "inventory.jsonl", inventory)

    def said(self, summary: Summary) -> dict[str, Any]:
        """All outputs of a run, except lives that balance: only one of the ways lists them."""
        tables = {name: [_line(row) for row in rows(self.folder, name)] for name in ("verdicts", "metrics", "causes", "repeats")}
        tables["verdicts"] = [
            line for line in tables["verdicts"] if json.loads(line)["verdict"] != "balanced" or json.loads(line)["was"]
        ]
        state, left = self.inputs()
        held = state.lives(state.last, held_schema(fold(left.events, left.inventory)))
        tables["state"] = [_line(row.asDict()) for row in held.collect()]
        return {"summary": summary, "figures": summary.figures, **{name: sorted(lines) for name, lines in tables.items()}}

    def inputs(self) -> tuple[State, Inputs]:
        """The state, and the inputs of a next run."""
        files = Files(self.spark)
        state = State(self.spark, files, self.places["state"])
        return state, gather(self.spark, files, self.places["outcomes"], self.places["inventory"], state, {})

    def closed(self) -> tuple[set[int], int]:
        """The hashes of the tasks that a next run closes the short way, and the number of tasks that it looks at."""
        state, inputs = self.inputs()
        found = sort_out(inputs.events, inputs.known(state), lambda table: table, after_ms=inputs.watermark_ms)
        return {row["id"] for row in found.closed.collect()}, found.totals["asked"]


def _line(row: Row) -> str:
    return json.dumps(row, default=str, sort_keys=True)


def _histories(cases: dict[str, tuple[Steps, Steps]]) -> tuple[list[Row], list[Row]]:
    histories = Histories()
    for name, (first, _) in cases.items():
        histories.add(name, *first)
    middle = len(histories.events)
    for name, (_, second) in cases.items():
        histories.add(name, *second, start_ms=LATER)
    return histories.events[:middle], histories.events[middle:]


def _said_both_ways(
    both: list[Days], histories: tuple[list[Row], list[Row]], held: list[Row], last: list[Row], look: Callable[[Days], None]
) -> dict[str, Any]:
    """The outputs of the second of two days, each of `both` ways; `look` gets the inputs of the second day."""
    said = []
    for days in both:
        days.run(0, histories[0], held, NOON + HOUR // 2)
        days.arrive(1, histories[1], last)
        look(days)
        said.append(days.said(days.run(1, histories[1], last, LATER + HOUR)))
    assert said[0] == said[1]
    return said[0]


def _short_and_whole(spark: SparkSession, folder: Path) -> list[Days]:
    return [Days(spark, folder / str(all_lives), all_lives=all_lives) for all_lives in (False, True)]


@pytest.mark.full
@pytest.mark.slow
def test_only_what_was_announced_and_goes_as_it_should_is_closed_the_short_way(spark: SparkSession, tmp_path: Path) -> None:
    """A life that differs in one thing goes the full way; books and state are the same either way."""
    held, last = Histories(), Histories()
    for name in (*CLOSED, *OTHERS):
        if name != "was-lost":
            held.hold(name, "queue", seen_ms=NOON + HOUR // 2)
    for name in ("waits-still", "is-in-the-broker"):
        last.hold(name, "queue", seen_ms=LATER + HOUR)
    last.hold("is-put-off-still", "delayed", seen_ms=LATER + HOUR, due_ms=LATER + 2 * HOUR)
    last.hold("dies", "dead_letter", seen_ms=LATER + HOUR)

    def look(days: Days) -> None:
        closed, asked = days.closed()
        names = spark.createDataFrame([(name,) for name in CLOSED], "task_id string")
        assert closed == {row["id"] for row in names.selectExpr("xxhash64(task_id) AS id").collect()}
        assert asked == len([name for name, (_, steps) in OTHERS.items() if steps])

    said = _said_both_ways(_short_and_whole(spark, tmp_path), _histories(CLOSED | OTHERS), held.inventory, last.inventory, look)
    verdicts = {row["task_id"]: (row["verdict"], row["was"]) for row in map(json.loads, said["verdicts"])}
    assert verdicts["was-lost"] == ("balanced", "lost")
    assert verdicts["waits-still"] == ("in_flight", None)
    assert not verdicts.keys() & CLOSED.keys()


#: Further events of each run, if the second run closes all open lives of the first the short way.
ENDED_IN_TIME: dict[str, tuple[Steps, Steps]] = {
    "dies": ([], ["published", ("dead_lettered", {"delivery": 1, "reason": "exhausted"})]),
    "begins-and-ends": ([], ["published", SUCCEEDED]),
}
ENDED_LATE: dict[str, tuple[Steps, Steps]] = {
    "succeeds-again-long-after": (["published", SUCCEEDED], [SECOND]),
    "has-a-second-end-that-comes-late": (["published", SUCCEEDED], [("succeeded", {"delivery": 2, "at_ms": NOON + 1})]),
    "was-opened-by-nobody": ([], [SUCCEEDED]),
}


@pytest.mark.parametrize(
    ("besides", "verdicts"),
    [(ENDED_IN_TIME, []), (ENDED_LATE, ["duplicated", "duplicated", "orphaned"])],
    ids=["in-time", "late"],
)
@pytest.mark.full
@pytest.mark.slow
def test_all_that_was_open_is_closed_the_short_way(
    spark: SparkSession, tmp_path: Path, besides: dict[str, tuple[Steps, Steps]], verdicts: list[str]
) -> None:
    """Then the state's lives are not read, and files of earlier runs are read again only for late events."""
    held, last = Histories(), Histories()
    for name in CLOSED:
        held.hold(name, "queue", seen_ms=NOON + HOUR // 2)
    if besides is ENDED_IN_TIME:
        last.hold("dies", "dead_letter", seen_ms=LATER + HOUR)

    def look(days: Days) -> None:
        assert len(days.closed()[0]) == days.inputs()[1].open_before == len(CLOSED)

    said = _said_both_ways(_short_and_whole(spark, tmp_path), _histories(CLOSED | besides), held.inventory, last.inventory, look)
    assert sorted(json.loads(line)["verdict"] for line in said["verdicts"]) == verdicts


#: Things in a state that make the next run look further: the events of each run.
UNNAMED: dict[str, tuple[Steps, Steps]] = {"has-no-queue-yet": ([("published", {"queue": ""})], [SUCCEEDED])}
REDRIVEN: dict[str, tuple[Steps, Steps]] = {
    "is-redriven": (
        ["published", ("dead_lettered", {"delivery": 1, "reason": "exhausted"}), ("redriven", {"generation": 1})],
        [("succeeded", {"delivery": 1, "generation": 1})],
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("of", [UNNAMED, REDRIVEN, {}], ids=["unnamed", "redriven", "neither"])
def test_what_a_state_does_not_say_of_its_lives_is_looked_for(
    spark: SparkSession, tmp_path: Path, of: dict[str, tuple[Steps, Steps]]
) -> None:
    """The state says if a life has no queue, or was opened by a redrive; an older state without that gives the same books."""
    held, last = Histories(), Histories()
    held.hold("waits-still", "queue", seen_ms=NOON + HOUR // 2)
    last.hold("waits-still", "queue", seen_ms=LATER + HOUR)
    held.hold("has-no-queue-yet", "queue", seen_ms=NOON + HOUR // 2, queue="")
    held.hold("is-redriven", "queue", seen_ms=NOON + HOUR // 2, generation=1)
    held.inventory[:] = [row for row in held.inventory if row["task_id"] in {"waits-still", *of}]
    both = [Days(spark, tmp_path / name, all_lives=False) for name in ("says", "does-not-say")]

    def look(days: Days) -> None:
        place = days.folder / "state" / "v00000001" / "run.json"
        run = json.loads(place.read_text())
        assert (run.pop("unnamed"), run.pop("redriven")) == (of is UNNAMED, of is REDRIVEN)
        if days is both[1]:
            place.write_text(json.dumps(run))

    both_days = _histories({name: OTHERS[name] for name in ("waits-still", "dies")} | of)
    said = _said_both_ways(both, both_days, held.inventory, last.inventory, look)
    verdicts = {row["task_id"]: row["verdict"] for row in map(json.loads, said["verdicts"])}
    assert verdicts == {"waits-still": "in_flight", "dies": "missing_dead_letter"}


@pytest.mark.full
@pytest.mark.slow
def test_both_ways_say_the_same_day_by_day(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random histories, cut in two, with late and repeated events, among many that are published and end the next day.

    The same holds if there are too many lives for the ways of few: the limit of few is set to none.
    """
    chance = random.Random(seed())  # noqa: S311 - a seed makes it repeatable
    histories, waiting = random_histories(chance, 100), Histories()
    latest_ms = max(event["at_ms"] for event in histories.events)
    for number in range(150):
        steps = chance.choice([[SUCCEEDED], [AGAIN, SECOND], [("received", {"delivery": 1}), SUCCEEDED]])
        where = {"queue": chance.choice(["orders", "mail"]), "task": chance.choice(["shop.charge", "shop.pack"])}
        histories.add(f"open-{number}", "published", start_ms=NOON - chance.randint(0, 1000), **where)
        waiting.hold(f"open-{number}", "queue", seen_ms=NOON + HOUR // 2, **where)
        histories.add(f"open-{number}", *steps, start_ms=latest_ms + chance.randint(-500, HOUR // 2), **where)
    first, second = parts_of(histories.events, chance)
    said = {}
    for name, all_lives, few in (("short", False, FEW), ("whole", True, FEW), ("many", False, 0)):
        monkeypatch.setattr(job, "FEW", few)
        days = Days(spark, tmp_path / name, all_lives=all_lives)
        days.run(0, first, histories.inventory[::2] + waiting.inventory, NOON + HOUR // 2)
        days.arrive(1, second, histories.inventory)
        if name == "short":
            assert len(days.closed()[0]) > 50
        said[name] = days.said(days.run(1, second, histories.inventory, latest_ms + HOUR))
    assert said["short"] == said["whole"]
    assert said["short"] == said["many"]


@pytest.mark.full
def test_an_announced_task_is_not_closed_by_the_end_of_one_whose_id_has_its_hash(spark: SparkSession, tmp_path: Path) -> None:
    """Two ids have the same hash: one task was published and never ended; the other ended the next day, and was never published."""
    one, other = twins()
    histories = Histories()
    histories.add(one, "published")
    histories.add(other, SUCCEEDED, start_ms=LATER)
    days = Days(spark, tmp_path, all_lives=False)
    days.run(0, histories.events[:1], [], NOON + 1000)
    summary = days.run(1, histories.events[1:], [], LATER + HOUR)
    assert {row["task_id"]: row["verdict"] for row in rows(tmp_path, "verdicts")} == {one: "lost", other: "orphaned"}
    assert summary.verdicts["balanced"] == 0
