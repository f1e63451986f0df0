"""The books on every broker: the export and the inventory prove where every task ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.ports import Capability
from redelivery.workers.reconciliation.job import Books, reconcile
from tests.conformance.brokers import letter
from tests.support.books.spark_session import spark
from tests.support.desk import LETTERS as LETTERS_OF_DESK
from tests.support.desk import task_message
from tests.support.running import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.conformance.brokers import Place
    from tests.support.running import Shop

__all__ = ["spark"]

#: Only one test process has Spark, which is slow on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800), pytest.mark.needs(Capability.OUTCOME_LOG)]
LETTERS = "DLQ.celery"


def judged(spark: SparkSession, folder: Path) -> dict[str, int]:
    """The verdicts of the books on the exported events, without a grace. Verdicts without a life are left out."""
    where = {name: str(folder / name) for name in ("outcomes", "inventory", "books")}
    books = Books(outcomes=where["outcomes"], inventory=where["inventory"], output=where["books"], grace_ms=0)
    return {name: count for name, count in reconcile(spark, books).verdicts.items() if count}


def test_the_books_balance_and_a_letter_that_vanished_is_named(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    """After successes, redeliveries, deaths, a redrive, a purge and a delay, all other lives balance or wait."""
    shop = place.shop()
    shop.start(pool="threads", concurrency=2)
    succeeding = [*(shop.send("ok") for _ in range(5)), shop.send("fails", 1)]
    dying = [shop.send("fails") for _ in range(4)]
    waiting = shop.send("ok", countdown=3600)
    ends = {**dict.fromkeys(succeeding, "succeeded"), **dict.fromkeys(dying, "dead_lettered"), waiting: "deferred"}
    for task_id, outcome in ends.items():
        shop.ended(task_id, outcome)
    _operate(place, shop, dying, tmp_path)
    until(lambda: not {name for name in shop.leftovers() if name != "delayed"}, what="the worker to hold nothing")

    command, inventory = place.command, ("inventory", "export", "--to", str(tmp_path / "inventory"))
    assert command(shop.app, *inventory)["places"] == {"queue": 0, "unacked": 0, "delayed": 1, "dead_letter": 2}
    place.lose(LETTERS)
    assert command(shop.app, *inventory)["places"] == {"queue": 0, "unacked": 0, "delayed": 1, "dead_letter": 1}
    for is_rest in (False, True):
        written = command(shop.app, "outcomes", "export", "--to", str(tmp_path / "outcomes"))["events"]
        assert bool(written) is not is_rest
    assert judged(spark, tmp_path) == {"balanced": 10, "in_flight": 1, "missing_dead_letter": 1}


def _operate(place: Place, shop: Shop, dying: list[str], folder: Path) -> None:
    """Edit and redrive one dead letter; purge another."""
    until(lambda: {row["task_id"] for row in place.command(shop.app, "dlq", "show", LETTERS)} == set(dying), what="the letters")
    mended = folder / "mended.json"
    mended.write_text(json.dumps({"args": [0]}))
    place.command(shop.app, "dlq", "redrive", LETTERS, "--id", dying[0], "--with", str(mended))
    shop.ended(dying[0], "succeeded")
    place.command(shop.app, "dlq", "purge", LETTERS, "--id", dying[1], "--yes")


def test_what_is_recorded_can_be_watched_without_being_taken_from_the_log(place: Place, tmp_path: Path) -> None:
    """`outcomes tail` shows the newest events each time, and a later export finds all of them."""
    desk = place.desk()
    place.put(*(letter(task_message(f"task-{number}")) for number in range(5)))
    desk.json("dlq", "purge", LETTERS_OF_DESK, "--all", "--yes")
    for _ in range(2):
        done = desk.run("outcomes", "tail", "--limit", "3", "--json")
        assert [json.loads(line)["task_id"] for line in done.stdout.splitlines()] == ["task-2", "task-3", "task-4"]
    done = desk.json("outcomes", "export", "--to", str(tmp_path), "--format", "jsonl")
    assert done["events"] == 5
    (file,) = tmp_path.rglob("outcomes-*.jsonl")
    assert [json.loads(line)["task_id"] for line in file.read_text().splitlines()] == [f"task-{number}" for number in range(5)]
    assert desk.run("outcomes", "tail", "--json").stdout == ""


def test_an_export_that_cannot_write_leaves_the_log_as_it_is(place: Place, tmp_path: Path) -> None:
    """If the destination is a file, the exit code is 2, and the next export has every event."""
    desk = place.desk()
    place.put(*(letter(task_message(f"task-{number}")) for number in range(3)))
    desk.json("dlq", "purge", LETTERS_OF_DESK, "--all", "--yes")
    (tmp_path / "file").touch()
    done = desk.run("outcomes", "export", "--to", str(tmp_path / "file"))
    assert done.exit_code == 2, done.output
    assert desk.json("outcomes", "export", "--to", str(tmp_path / "folder"))["events"] == 3
