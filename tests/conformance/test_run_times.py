"""When an attempt ran, on every broker: its last event agrees with the times that the task noted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.events import Outcome
from redelivery.workers.reconciliation.job import Books, reconcile
from tests.support.books.spark_session import rows, spark
from tests.support.lanes import FULL
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.conformance.brokers import Place
    from tests.support.servers import Server

__all__ = ["spark"]

SETTINGS = {
    "queues": {"#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 2}},
    "tasks": {"tests.support.shop.naps": {"max_delivery_attempts": 1}},
    "release": "shop-7",
}
#: The run times of the tasks, in ms, used in turn.
LENGTHS = [5, 10, 20, 40]
ENDS = {Outcome.SUCCEEDED, Outcome.REDELIVERY_SCHEDULED, Outcome.DEAD_LETTERED}


def _agrees(shop: Shop, ids: Collection[str], failing: Collection[str], events: list[Any]) -> None:
    """Compare each attempt's last event with the notes of its task: one line when a run begins, and one when it ends."""
    found: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        found[event.task_id].append(event)
    noted: dict[str, list[float]] = defaultdict(list)
    for line in shop.runs():
        if "event" in line:
            noted[line["id"]].append(line["at"] * 1000)
    assert found.keys() == noted.keys() == {*ids, *failing}
    for task_id, ends in found.items():
        spans = list(zip(noted[task_id][::2], noted[task_id][1::2], strict=True))
        assert len(ends) == len(spans) == (2 if task_id in failing else 1)
        for event, (began, over) in zip(ends, spans, strict=True):
            assert event.run_ms + 1 >= over - began
            assert event.started_ms <= began + 1
            assert event.started_ms + event.run_ms <= event.at_ms + 2
            assert event.release == "shop-7"
            assert event.actor is None
        if task_id in failing:
            assert ends[-1].waited_ms is not None  # since the end of its delay


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_run_times_agree_with_the_tasks_own_account(place: Place, pool: str) -> None:
    """The time of each attempt includes what its task noted, and ends before its event. The event names the worker's release."""
    shop = place.shop(settings=SETTINGS)
    shop.start(pool=pool)
    ids = {shop.send("naps", length / 1000) for length in LENGTHS * 12}
    failing = {shop.send("fails_after", length / 1000) for length in LENGTHS * 4}

    def ended() -> list[Any]:
        return [event for event in shop.events if event.outcome in ENDS]

    until(lambda: len(ended()) >= len(ids) + 2 * len(failing), 300, "all attempts to end")
    _agrees(shop, ids, failing, ended())


@FULL
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(1800)
def test_run_times_of_ten_thousand_tasks_agree(server: Server, folder: Path, spark: SparkSession, tmp_path: Path) -> None:
    """Every run time agrees. The books have the same times, and count killed attempts without one."""
    shop = Shop(server, folder, settings=SETTINGS)
    ids = {shop.send("naps", number % 5 / 1000) for number in range(9_480)}
    failing = {shop.send("fails_after", number % 5 / 1000) for number in range(500)}
    killed = {shop.send("kills") for _ in range(20)}
    ended = len(ids) + 2 * (len(failing) + len(killed))
    try:
        shop.start()
        until(lambda: server.client.xlen("redelivery:outcomes") == 10_000 + ended, 600, "all attempts to end")
        events = [event for event in shop.events if event.outcome in ENDS]
        _agrees(shop, ids, failing, events=[event for event in events if event.task_id not in killed])
        for name in ("outcomes", "inventory"):
            command = [sys.executable, "-m", "redelivery", "-A", shop.module, name, "export", "--to", str(tmp_path / name)]
            subprocess.run(command, env=shop.environment, cwd=folder, check=True, stdin=subprocess.DEVNULL)
    finally:
        shop.stop()
    outcomes, inventory, output = (str(tmp_path / name) for name in ("outcomes", "inventory", "books"))
    assert reconcile(spark, Books(outcomes=outcomes, inventory=inventory, output=output, grace_ms=0)).balanced
    found = {row["task"].rpartition(".")[2]: row for row in rows(tmp_path, "run_times")}
    for name, tasks, attempts in (("naps", ids, 1), ("fails_after", failing, 2)):
        times = [event.run_ms for event in events if event.task_id in tasks and event.run_ms is not None]
        row = found[name]
        assert (row["attempts"], row["timed"], row["run_ms"]) == (attempts * len(tasks), attempts * len(tasks), sum(times))
        assert min(times) <= row["run_p50_ms"] <= row["run_p95_ms"] <= row["run_p99_ms"] <= max(times)
    assert (found["kills"]["attempts"], found["kills"]["timed"], found["kills"]["run_ms"]) == (40, 0, 0)
    said = json.loads((tmp_path / "books" / "summary.json").read_text())["run_times"]
    assert (said["attempts"], said["timed"]) == (ended, ended - 40)
    assert "40 attempts have no known time: killed" in (tmp_path / "books" / "report.html").read_text()


def test_what_a_task_waited_counts_from_its_eta(place: Place) -> None:
    """A task with an ETA has waited since its ETA. For a first delivery without an ETA, the message does not tell."""
    shop = place.shop(settings=SETTINGS)
    late, at_once = shop.send("naps", 0, countdown=1.5), shop.send("naps", 0)
    shop.start()
    assert shop.ended(late, "succeeded").waited_ms is not None
    assert shop.ended(at_once, "succeeded").waited_ms is None


def test_the_run_time_of_a_killed_attempt_is_not_known(place: Place) -> None:
    """If the child was lost or reached its time limit, the start is known, and the run time is not."""
    shop = place.shop(settings=SETTINGS)
    shop.start()
    poison, too_long = shop.send("kills"), shop.send("naps", 600, time_limit=1)
    died = [shop.ended(poison, "redelivery_scheduled"), shop.ended(poison, "dead_lettered"), shop.ended(too_long, "dead_lettered")]
    assert [event.run_ms for event in died] == [None, None, None]
    for event in died:
        assert event.started_ms is not None
        assert event.started_ms <= event.at_ms + 2
    assert shop.events_of(poison)[0].started_ms is None  # it has not run yet
