"""Plain lives are counted the short way, and all others are judged: together the result equals that of the full way."""

from __future__ import annotations

import json
import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.proof import prove, prove_by_day
from redelivery.workers.reconciliation.job import reconcile
from redelivery.workers.reconciliation.lives.plain import NOTHING_TOLD, sort_out
from redelivery.workers.reconciliation.rules import VERDICTS
from redelivery.workers.reconciliation.schema import EVENTS
from tests.books.lives.test_oracle import random_histories
from tests.support.books.spark_session import NOON, Histories, Row, rows, spark
from tests.support.lanes import seed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["spark"]

#: Of xxHash64 (its specification): two of its primes, its seed in Spark, and the modulus.
PRIMES, SEED, MODULUS = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F), 42, 2**64


pytestmark = [pytest.mark.xdist_group("spark-days"), pytest.mark.timeout(1800)]

HOUR = 3_600_000
HOT = 200_000
SUCCEEDED = ("succeeded", {"delivery": 1, "attempt": 1})
AGAIN = ("redelivery_scheduled", {"delivery": 1, "attempt": 1, "delay_ms": 1000})
SECOND = ("succeeded", {"delivery": 2, "attempt": 2})

#: Histories that are plain.
PLAIN: dict[str, list[Any]] = {
    "at-once": ["published", SUCCEEDED],
    "in-another-order": [SUCCEEDED, "published"],
    "after-a-redelivery": ["published", AGAIN, SECOND],
    "deferred-and-received": ["published", ("deferred", {"delivery": 1}), ("received", {"delivery": 1}), SUCCEEDED],
    "received-each-time": ["published", ("received", {"delivery": 1}), AGAIN, ("received", {"delivery": 2}), SECOND],
    "said-by-nobody": ["published", ("received", {"delivery": 1, "reason": "unannounced"}), SUCCEEDED],
    "at-the-last-delivery-that-is-counted": ["published", ("succeeded", {"delivery": 13, "attempt": 13})],
}
#: Histories that differ from plain ones in one thing.
OTHERS: dict[str, list[Any]] = {
    "published-only": ["published"],
    "succeeded-only": [SUCCEEDED],
    "published-twice": ["published", "published", SUCCEEDED],
    "succeeded-twice": ["published", SUCCEEDED, SECOND],
    "redelivered-twice-in-one-delivery": ["published", AGAIN, AGAIN, SECOND],
    "redelivered-after-its-end": ["published", SUCCEEDED, ("redelivery_scheduled", {"delivery": 2})],
    "redelivered-by-the-delivery-that-ended": ["published", SUCCEEDED, AGAIN],
    "deferred-after-its-end": ["published", SUCCEEDED, ("deferred", {"delivery": 2})],
    "received-after-its-end": ["published", SUCCEEDED, ("received", {"delivery": 2})],
    "published-by-a-delivery": [("published", {"delivery": 2}), SUCCEEDED],
    "worker-lost": ["published", (AGAIN[0], {**AGAIN[1], "reason": "worker_lost"}), SECOND],
    "restored": ["published", ("received", {"delivery": 2, "reason": "redelivered"}), SECOND],
    "ended-by-nobody": ["published", ("succeeded", {"delivery": 0})],
    "at-a-delivery-beyond-those": ["published", ("succeeded", {"delivery": 14})],
    "redelivered-beyond-those": ["published", ("redelivery_scheduled", {"delivery": 14}), ("succeeded", {"delivery": 13})],
    "at-a-delivery-beyond-all": ["published", ("redelivery_scheduled", {"delivery": 2**40}), SUCCEEDED],
    "dead": ["published", ("dead_lettered", {"delivery": 1})],
    "dead-and-succeeded": ["published", ("dead_lettered", {"delivery": 1}), SECOND],
    "revoked": ["published", ("revoked", {"delivery": 1})],
    "of-no-word": ["published", ("vanished", {"delivery": 1}), SUCCEEDED],
    "of-another-generation": [("published", {"generation": 1}), ("succeeded", {"generation": 1, "delivery": 1})],
    "replaced": ["published", ("succeeded", {"delivery": 1, "nesting": 1})],
    "of-two-queues": ["published", ("succeeded", {"delivery": 1, "queue": "mail"})],
    "of-no-queue": [("published", {"queue": ""}), ("succeeded", {"delivery": 1, "queue": ""})],
    "of-two-names": ["published", ("succeeded", {"delivery": 1, "task": "shop.pack"})],
    "without-a-time": ["published", ("succeeded", {"delivery": 1, "at_ms": None})],
    "exported-twice": ["published", SUCCEEDED],
    "in-the-broker": ["published", SUCCEEDED],
    "of-an-earlier-run": [("published", {"at_ms": NOON - HOUR}), SUCCEEDED],
}


def test_a_life_is_plain_only_where_nothing_at_all_is_odd(spark: SparkSession) -> None:
    """Each history that differs from a plain one in one thing goes the full way, with all of its events."""
    histories = Histories()
    for name, steps in (PLAIN | OTHERS).items():
        histories.add(name, *steps)
    again = [event for event in histories.events if event["task_id"] == "exported-twice"]
    lines = [tuple(event.get(name) for name in EVENTS.names) for event in [*histories.events, *again[:1]]]
    known = spark.createDataFrame([("in-the-broker",), ("of-nobody",), (None,)], "task_id string").selectExpr(*NOTHING_TOLD)
    found = sort_out(spark.createDataFrame(lines, EVENTS), known, lambda table: table, after_ms=NOON - 1)
    left = [row["task_id"] for row in found.events.select("task_id").collect()]
    assert {name: left.count(name) for name in PLAIN | OTHERS} == {
        name: len(steps) * (name in OTHERS) + (name == "exported-twice") for name, steps in (PLAIN | OTHERS).items()
    }
    assert (found.totals["lives"], found.totals["asked"]) == (len(PLAIN), len(OTHERS))
    assert found.totals["events"] == sum(len(steps) for steps in PLAIN.values())


@pytest.mark.parametrize("nothing", ["", None])
def test_an_event_without_an_id_goes_the_whole_way(spark: SparkSession, nothing: str | None) -> None:
    """Even if its task is plain otherwise and no other task must be looked at: the full way refuses it."""
    histories = Histories()
    histories.add("plain", "published", (SUCCEEDED[0], {**SUCCEEDED[1], "event_id": nothing}))
    histories.add("another", "published", SUCCEEDED)
    lines = [tuple(event.get(name) for name in EVENTS.names) for event in histories.events]
    nobody = spark.createDataFrame([], "task_id string").selectExpr(*NOTHING_TOLD)
    found = sort_out(spark.createDataFrame(lines, EVENTS), nobody, lambda it: it, after_ms=None)
    assert [(row["task_id"], row["event_id"]) for row in found.events.collect()] == [("plain", nothing)]


def test_events_without_a_task_go_the_whole_way(spark: SparkSession) -> None:
    """They belong to no plain task, whatever else they contain: the full way gets and refuses all of them."""
    steps = [(outcome, task_id) for task_id in (None, "") for outcome in ("published", "succeeded")]
    said = {"delivery": 1, "attempt": 1, "queue": "orders", "task": "shop.charge", "at_ms": NOON}
    events = [said | {"event_id": f"1-{n}", "outcome": outcome, "task_id": task_id} for n, (outcome, task_id) in enumerate(steps)]
    lines = [tuple(event.get(name) for name in EVENTS.names) for event in events]
    nobody = spark.createDataFrame([], "task_id string").selectExpr(*NOTHING_TOLD)
    found = sort_out(spark.createDataFrame(lines, EVENTS), nobody, lambda it: it, after_ms=None)
    assert (found.totals["lives"], found.totals["asked"], found.events.count()) == (0, 2, 4)


def twins() -> tuple[str, str]:
    """Two ids with one xxHash64: of 64 bytes, the first and the fifth eight of which go into one lane and cancel each other out."""
    first, second = PRIMES

    def lane(word: bytes) -> int:
        mixed = (SEED + first + second + int.from_bytes(word, "little") * second) % MODULUS
        return (mixed << 31 | mixed >> 33) * first % MODULUS

    def made(begin: bytes, end: bytes) -> str:
        return (begin + b"x" * 24 + end + b"y" * 24).decode()

    begin, end = b"0" * 8, b"P" * 8
    for twin in (b"%08d" % number for number in count(1)):
        apart = (lane(begin) - lane(twin)) * pow(second, -1, MODULUS)
        other = ((int.from_bytes(end, "little") + apart) % MODULUS).to_bytes(8, "little")
        if other.isalnum():
            return made(begin, end), made(twin, other)
    raise AssertionError


@pytest.mark.full
def test_tasks_whose_ids_share_a_hash_are_not_taken_for_one(spark: SparkSession, tmp_path: Path) -> None:
    """One was published and never ended, the other ended and was never published: as one task they would look plain."""
    one, other = twins()
    hashes = (
        spark.createDataFrame([(one, other)], "one string, other string").selectExpr("xxhash64(one)", "xxhash64(other)").first()
    )
    assert hashes is not None
    assert hashes[0] == hashes[1]
    assert one != other
    histories = Histories()
    histories.add(one, "published")
    histories.add(other, SUCCEEDED)
    histories.reconcile(spark, tmp_path, as_of_ms=NOON + HOUR)
    assert {row["task_id"]: row["verdict"] for row in rows(tmp_path, "verdicts")} == {one: "lost", other: "orphaned"}


def test_both_ways_say_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """Random histories, most of them ordinary: summary, figures and tables are equal; only the full way lists balanced lives."""
    chance = random.Random(seed())  # noqa: S311 - a seed makes it repeatable
    histories = random_histories(chance, 400)
    for number in range(300):
        steps = PLAIN[chance.choice(list(PLAIN))]
        where = {"queue": chance.choice(["orders", "mail"]), "task": chance.choice(["shop.charge", "shop.pack"])}
        histories.add(f"plain-{number}", *steps, start_ms=NOON + chance.randint(-HOUR, HOUR // 2), **where)
    said = {}
    for name, all_lives in (("short", False), ("whole", True)):
        summary = histories.reconcile(spark, tmp_path, all_lives=all_lives, as_of_ms=NOON + HOUR)
        tables = {table: _lines(tmp_path, table) for table in ("verdicts", "metrics", "causes", "repeats")}
        said[name] = (summary, summary.figures, tables)
    listed = said["whole"][2]["verdicts"]
    said["whole"][2]["verdicts"] = [line for line in listed if json.loads(line)["verdict"] != "balanced"]
    assert said["short"] == said["whole"]
    assert len(listed) > len(said["whole"][2]["verdicts"]) + 300
    assert min(said["short"][0].verdicts[name] for name in VERDICTS) > 0


def _lines(folder: Path, name: str) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows(folder, name))


@pytest.mark.full
def test_planted_faults_are_found_the_short_way(spark: SparkSession, tmp_path: Path) -> None:
    """Recall and precision are 1.0 for each verdict, with events twice, late, by wrong clocks and in any order."""
    found = prove(spark, tmp_path, tasks=1500, rates=0.008, seed=11, all_lives=False)
    assert set(found) == set(VERDICTS)
    assert {name: (score.recall, score.precision) for name, score in found.items()} == dict.fromkeys(VERDICTS, (1.0, 1.0))


@pytest.mark.full
@pytest.mark.slow
def test_two_daily_runs_find_what_was_planted_as_one_run_does(spark: SparkSession, tmp_path: Path) -> None:
    """With lives that are open at the first run's end, late and repeated events in the second, and corrected lives."""
    found, (first, second) = prove_by_day(spark, tmp_path, tasks=1500, rates=0.008, seed=12)
    assert set(found) == set(VERDICTS)
    assert {name: (score.recall, score.precision) for name, score in found.items()} == dict.fromkeys(VERDICTS, (1.0, 1.0))
    read = parquet.read_table(tmp_path / "outcomes", columns=["event_id"], partitioning=None)["event_id"].to_pylist()
    assert first.events + second.events == len(set(read)) < len(read)
    assert min(first.events, second.events, second.corrections) > 0


@pytest.mark.full
@pytest.mark.slow
def test_a_task_with_hundreds_of_thousands_of_events_holds_nothing_up(spark: SparkSession, tmp_path: Path) -> None:
    """One task has nearly all events, and one queue has all tasks: it is one life with cut evidence, and other lives are judged."""
    histories = Histories()
    histories.add("hot", "published")
    for number in range(200):
        histories.add(f"neighbour-{number}", "published", SUCCEEDED)
    again = {"task_id": "hot", "outcome": "redelivery_scheduled", "queue": "orders", "task": "shop.charge"}
    books = histories.write(tmp_path, as_of_ms=NOON + HOUR)
    many = [again | {"event_id": f"hot-{n}", "delivery": n, "attempt": n, "at_ms": NOON + n} for n in range(1, HOT)]
    parquet.write_table(_table(many), tmp_path / "outcomes" / "hot.parquet")
    summary = reconcile(spark, books)
    assert (summary.events, summary.lives) == (HOT + 400, 201)
    assert {name: count for name, count in summary.verdicts.items() if count} == {"lost": 1, "balanced": 200}
    (row,) = rows(tmp_path, "verdicts")
    assert (row["task_id"], row["events"]) == ("hot", HOT)
    assert [step["delivery"] for step in row["history"]] == list(range(HOT - 100, HOT))


def _table(events: list[Row]) -> pa.Table:
    numbers = {"delivery", "attempt", "at_ms"}
    names = ("task_id", "outcome", "event_id", "queue", "task", *sorted(numbers))
    return pa.table({name: pa.array([row.get(name) for row in events], pa.int64() if name in numbers else None) for name in names})
