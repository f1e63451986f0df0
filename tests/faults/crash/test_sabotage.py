"""Sabotage on a live broker: messages are changed by hand, and the books say what happened.

One worker processes messages in every ordinary way. Then messages, events and a dead-letter queue are removed, a copy is added, a
dead letter is forged, and a due time is moved. All of it is exported and reconciled once.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.reconciliation.job import Books, reconcile
from tests.support.books.spark_session import Row, rows, spark
from tests.support.desk import Desk
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from redelivery.workers.reconciliation.report.summary import Summary

__all__ = ["spark"]

#: The first test starts Spark, a broker or a browser, and waits for a whole run of the job.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

DELAYED = "redelivery:delayed:due:celery"


@dataclass
class Sabotaged:
    """The task of each sabotage, the verdicts of the books on them, and the summary."""

    folder: Path
    tasks: dict[str, str] = field(default_factory=dict)
    summary: Summary | None = None

    @property
    def verdicts(self) -> dict[str, Row]:
        """The row of each sabotage's task."""
        found = {row["task_id"]: row for row in rows(self.folder, "verdicts")}
        return {name: found[task_id] for name, task_id in self.tasks.items()}


@pytest.fixture(scope="module")
def sabotaged(spark: SparkSession) -> Iterator[Sabotaged]:
    """A shop, its messages, the sabotage, and the books."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        done = Sabotaged(Path(name))
        server = Server(done.folder, binaries()["valkey"]).start()
        shop = Shop(server, done.folder, settings={"queues": {"#": {"max_delivery_attempts": 1}}})
        try:
            _work(shop, done.tasks)
            desk = Desk(server)
            for noun, place in (("inventory", "inventory"), ("outcomes", "outcomes")):
                said = desk.run(noun, "export", "--to", str(done.folder / place), "--format", "jsonl")
                assert said.exit_code in {0, 1}, said.output
            outcomes, inventory, output = (str(done.folder / name) for name in ("outcomes", "inventory", "books"))
            books = Books(outcomes=outcomes, inventory=inventory, output=output, grace_ms=0, all_lives=True)
            done.summary = reconcile(spark, books)
            yield done
        finally:
            shop.stop()
            server.stop(9)


def _work(shop: Shop, tasks: dict[str, str]) -> None:
    """Ordinary work, and then the sabotage, after the worker has stopped."""
    client = shop.server.client
    for name in ("copied", "event deleted", "end deleted", "letter made up", "untouched"):
        tasks[name] = shop.send("ok")
    tasks["letter kept"], tasks["queue dropped"] = shop.send("fails"), shop.send("fails", queue="mail")
    tasks["due time moved"] = shop.send("ok", countdown=3600)
    raws = {json.loads(raw)["headers"]["id"]: raw for raw in client.lrange("celery", 0, -1)}
    client.lpush("celery", raws[tasks["copied"]])
    worker = shop.start("-Q", "celery,mail", pool="solo")
    until(lambda: shop.outcomes_of(tasks["copied"]).count("succeeded") == 2, what="both copies")
    for name in ("event deleted", "end deleted", "letter made up", "untouched"):
        shop.ended(tasks[name], "succeeded")
    for name in ("letter kept", "queue dropped"):
        shop.ended(tasks[name], "dead_lettered")
    shop.ended(tasks["due time moved"], "deferred")
    worker.stop()
    tasks["message removed"], tasks["message left"] = shop.send("ok"), shop.send("ok")
    raws |= {json.loads(raw)["headers"]["id"]: raw for raw in client.lrange("celery", 0, -1)}
    assert client.lrem("celery", 0, raws[tasks["message removed"]]) == 1
    for name, outcome in (("event deleted", "published"), ("end deleted", "succeeded")):
        assert client.xdel("redelivery:outcomes", shop.ended(tasks[name], outcome).event_id) == 1
    letter = client.lindex("DLQ.celery", 0)
    client.lpush("DLQ.celery", letter.replace(tasks["letter kept"].encode(), tasks["letter made up"].encode()))
    assert client.delete("DLQ.mail") == 1
    [(member, _)] = client.zrange(DELAYED, 0, -1, withscores=True)
    client.zadd(DELAYED, {member: 1000})


@pytest.mark.parametrize(
    ("sabotage", "verdict"),
    [
        ("message removed", "lost"),
        ("event deleted", "orphaned"),
        ("end deleted", "lost"),
        ("copied", "duplicated"),
        ("queue dropped", "missing_dead_letter"),
        ("letter made up", "phantom_dead_letter"),
        ("due time moved", "stuck"),
        ("letter kept", "balanced"),
        ("message left", "in_flight"),
        ("untouched", "balanced"),
    ],
)
def test_each_sabotage_is_named_by_the_books(sabotaged: Sabotaged, sabotage: str, verdict: str) -> None:
    """LREM, XDEL, LPUSH, DEL and ZADD by hand; lives that were not touched have their usual verdict."""
    row = sabotaged.verdicts[sabotage]
    assert row["verdict"] == verdict, row


def test_the_books_of_a_sabotaged_broker_do_not_balance(sabotaged: Sabotaged) -> None:
    """The number of wrong lives is the number of sabotages."""
    assert sabotaged.summary is not None
    assert not sabotaged.summary.balanced
    assert sum(many for name, many in sabotaged.summary.verdicts.items() if name not in {"balanced", "in_flight"}) == 7
