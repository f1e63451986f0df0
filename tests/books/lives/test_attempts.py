"""Run times in the books, the cost of failed attempts, the first release of each cause, and deadlines."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from redelivery import Redelivery, redeliver
from redelivery.settings.matching import AddressPattern
from redelivery.workers.operations.inventory.deadlines import deadlines_of
from redelivery.workers.reconciliation.figures.attempts import failures_by
from redelivery.workers.reconciliation.figures.deadlines import Deadline
from redelivery.workers.reconciliation.job import reconcile
from tests.support.books.spark_session import NOON, Histories, rows, spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.xdist_group("spark")

FAILED = {"exception": "ValueError", "fingerprint": "f1"}


def _histories() -> Histories:
    """Ninety-eight plain tasks, one that fails twice and dies, one whose child was killed, and one that an old worker ran."""
    histories = Histories()
    for number in range(98):
        ran = {"delivery": 1, "attempt": 1, "run_ms": number + 1, "release": "r2"}
        histories.add(f"plain-{number}", "published", ("succeeded", ran))
    first = {"delivery": 1, "attempt": 1, "run_ms": 2000, "release": "r1", **FAILED}
    last = {"delivery": 2, "attempt": 2, "run_ms": 3000, "release": "r2", "reason": "exhausted", **FAILED}
    histories.add("dies", "published", ("redelivery_scheduled", first), ("dead_lettered", last))
    histories.hold("dies", "dead_letter")
    lost = {"delivery": 1, "attempt": 1, "started_ms": NOON, "reason": "worker_lost", "fingerprint": "f2"}
    histories.add(
        "killed", "published", ("redelivery_scheduled", lost), ("succeeded", {"delivery": 2, "attempt": 2, "run_ms": 400})
    )
    histories.add("old", "published", ("succeeded", {"delivery": 1, "attempt": 1}))
    return histories


@pytest.mark.parametrize("all_lives", [False, True])
def test_run_times_and_what_failures_cost(spark: SparkSession, tmp_path: Path, *, all_lives: bool) -> None:
    """An event that was exported twice counts once; both ways through the books give the same."""
    histories = _histories()
    histories.events += [dict(event) for event in histories.events if event["task_id"] in {"dies", "plain-7"}]
    summary = histories.reconcile(spark, tmp_path, all_lives=all_lives)
    assert summary.balanced
    [row] = rows(tmp_path, "run_times")
    assert (row["queue"], row["task"]) == ("orders", "shop.charge")
    plain_ms = sum(range(1, 99))
    counts = {"attempts": 103, "timed": 101, "run_ms": plain_ms + 5400}
    assert {name: row[name] for name in counts} == counts
    assert {name: row[f"failed_{name}"] for name in counts} == {"attempts": 3, "timed": 2, "run_ms": 5000}
    assert row["run_p50_ms"] == pytest.approx(51, abs=1)
    assert row["run_p99_ms"] == pytest.approx(2000, rel=0.01)
    causes = {row["fingerprint"]: row for row in rows(tmp_path, "failures")}
    assert {name: causes["f1"][name] for name in ("attempts", "run_ms", "first_release")} == {
        "attempts": 2,
        "run_ms": 5000,
        "first_release": "r1",
    }
    assert {name: causes["f2"][name] for name in ("attempts", "timed", "first_release")} == {
        "attempts": 1,
        "timed": 0,
        "first_release": None,
    }
    said: dict[str, Any] = json.loads((tmp_path / "books" / "summary.json").read_text())["run_times"]
    assert (said["attempts"], said["timed"], said["failed_run_ms"]) == (103, 101, 5000)
    page = (tmp_path / "books" / "report.html").read_text()
    assert 'id="run-times"' in page
    assert 'data-cost="f1"' in page
    assert "2 attempts have no known time" in page


@pytest.mark.parametrize("releases", [("r1", "r2"), ("r2", "r1")])
def test_of_two_releases_that_failed_first_at_once_one_is_always_named(spark: SparkSession, releases: tuple[str, str]) -> None:
    """Whatever the order of the rows is, so that the same events give the same books."""
    columns = "queue string, task string, is_failed boolean, exception string, fingerprint string, release string"
    lines = [("orders", "shop.charge", True, "E", "f", release, 0, 1, 1, 5, NOON) for release in releases]
    cells = spark.createDataFrame(lines, f"{columns}, run_class int, attempts long, timed long, run_ms long, first_ms long")
    assert [row["first_release"] for row in failures_by(cells.coalesce(1)).collect()] == ["r1"]


@pytest.mark.full
def test_without_times_in_the_log_they_are_unknown(spark: SparkSession, tmp_path: Path) -> None:
    """The log of an earlier version has none: the report says so, and shows no figures."""
    histories = Histories()
    histories.add("a", "published", ("succeeded", {"delivery": 1, "attempt": 1}))
    histories.reconcile(spark, tmp_path)
    said = json.loads((tmp_path / "books" / "summary.json").read_text())["run_times"]
    assert (said["attempts"], said["timed"], said["run_ms"], said["run_p50_ms"]) == (1, 0, None, None)
    page = (tmp_path / "books" / "report.html").read_text()
    assert "Run times are unknown" in page
    assert 'id="run-times"' not in page


def test_lives_that_missed_their_deadline_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """By the first pattern that matches a task on a queue; a task that was dropped on purpose has no deadline."""
    histories = Histories()
    slow: dict[str, Any] = {"delivery": 1, "attempt": 1, "at_ms": NOON + 90_000}
    for number in range(10):
        histories.add(f"quick-{number}", "published", ("succeeded", {"delivery": 1, "attempt": 1}))
    histories.add("late", "published", ("succeeded", slow))
    histories.add("dead", "published", ("dead_lettered", {"delivery": 1, "attempt": 1, "reason": "exhausted"}))
    histories.hold("dead", "dead_letter")
    histories.add("open", "published")
    histories.hold("open", "queue")
    histories.add("revoked", "published", "revoked")
    histories.add("patient", "published", ("succeeded", slow), task="shop.report")
    histories.add("without", "published", ("succeeded", slow), queue="mail.bulk")
    books = histories.write(tmp_path)
    deadlines = [
        {"task": "shop.report", "seconds": 100},
        {"queue": "mail.#", "seconds": None},
        {"task": "shop.*", "seconds": 60.0},
    ]
    noted = {"seen_ms": NOON + 3_600_000, "file": "inventory.jsonl", "deadlines": deadlines}
    (tmp_path / "inventory" / "_taken.json").write_text(json.dumps(noted))
    reconcile(spark, books)
    found = {(row["queue"], row["task"]): (row["lives"], row["missed"]) for row in rows(tmp_path, "in_time")}
    assert found == {("orders", "shop.charge"): (13, 3), ("orders", "shop.report"): (1, 0)}
    assert json.loads((tmp_path / "books" / "summary.json").read_text())["in_time"] == {"lives": 14, "missed": 3}
    page = (tmp_path / "books" / "report.html").read_text()
    assert 'data-missed="shop.charge">3 of 13' in page


def _words(*words: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(words), min_size=1, max_size=4)


@given(pattern=_words("a", "b-c", "*", "#", "x y"), address=_words("a", "b-c", "x y", ""))
def test_a_deadline_speaks_of_what_its_pattern_matches(pattern: list[str], address: list[str]) -> None:
    """It matches as the settings do: both are compared on the same names."""
    written, name = ".".join(pattern), ".".join(address)
    expression = Deadline("queue", written, 1).expression
    assert bool(re.fullmatch(expression, f".{name}")) == AddressPattern(written).matches(name)


def test_the_inventory_notes_the_deadlines_of_the_policies() -> None:
    """The strongest first: the override, the decorator, tasks, queues; within one table the more specific, and then the later."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    settings = {
        "queues": {"#": {"deadline": 900}, "orders.*": {"deadline": 60}, "mail": {"max_age": 5}},
        "tasks": {"shop.#": {"deadline": None}},
        "override": {"queues": {"orders.eu": {"deadline": timedelta(minutes=5)}}},
    }
    install = Redelivery(app, settings)

    @app.task(name="shop.charge")
    @redeliver(deadline=30)
    def charge() -> None:
        """Never runs."""

    assert deadlines_of(install) == [
        {"queue": "orders.eu", "seconds": 300.0},
        {"task": "shop.charge", "seconds": 30.0},
        {"task": "shop.#", "seconds": None},
        {"queue": "orders.*", "seconds": 60.0},
        {"queue": "#", "seconds": 900.0},
    ]
