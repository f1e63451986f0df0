"""The books of several apps: one export of all of them, an inventory of each; and a state that is not that of other books."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.errors import InputError
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.workers.export.commits import ending_of
from redelivery.workers.export.export import export_outcomes
from redelivery.workers.reconciliation.inputs.reading import find, read_taken
from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.spark.files import Files
from tests.support.books.recorded import record
from tests.support.books.spark_session import NOON, Histories, spark, write_lines
from tests.support.lanes import first_quick

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.servers import Server

__all__ = ["spark"]

pytestmark = pytest.mark.xdist_group("spark-days")

HOUR = 3_600_000
SHOP, MAIL = Keys(), Keys(prefix="mail:")


def _take(folder: Path, task_id: str, *, seen_ms: int = NOON + HOUR, **note: Any) -> None:
    """An inventory with one message."""
    row = {"task_id": task_id, "queue": "orders", "place": "queue", "seen_ms": seen_ms}
    write_lines(folder / "inventory.jsonl", [row])
    (folder / "_taken.json").write_text(json.dumps({"seen_ms": seen_ms, "broker": "redis://b", **note}))


def test_each_app_s_inventory_counts_and_one_that_is_missing_is_named(spark: SparkSession, server: Server, folder: Path) -> None:
    """Else all that the other app has open would be called lost: with and without a state."""
    held = folder / "inventory"
    books = Books(outcomes=str(folder / "out"), inventory=str(held), output=str(folder / "books"), as_of_ms=NOON + HOUR)
    for first, (name, keys) in enumerate((("shop", SHOP), ("mail", MAIL))):
        record(server.client, 1, first=first, outcome="published", entry_id=f"{NOON}-*", keys=keys)
        export_outcomes(server.client, keys, str(folder / "out"))
        _take(held / name, f"task-{first}", app=name, ending=ending_of(keys.outcomes))
    with_state = replace(books, state=str(folder / "state"))
    for each in (books, with_state):
        summary = reconcile(spark, each)
        assert (summary.balanced, summary.verdicts["in_flight"], summary.app) == (True, 2, "mail, shop")
    shop = str(held / "shop")
    for each in (replace(books, inventory=shop), replace(with_state, inventory=shop)):
        with pytest.raises(InputError, match=r"shop has no inventory of the app whose events _commits/2026-01-31/\S+-[0-9a-f]{8}"):
            reconcile(spark, each)


def test_of_several_inventories_the_earliest_time_and_only_common_deadlines_count(spark: SparkSession, tmp_path: Path) -> None:
    """After the first was taken, nobody looked for its app's messages; and a life does not say by whose deadline it goes."""
    orders, mails = ([{"queue": name, "seconds": 5}] for name in ("orders", "mail"))
    files = Files(spark)

    def taken() -> Any:
        return read_taken(files, str(tmp_path), find(files, str(tmp_path), "inventory"))

    _take(tmp_path / "shop", "a", app="shop", ending="", deadlines=orders, unlisted={"orders": 2, "both": 3})
    _take(tmp_path / "mail", "b", app="mail", seen_ms=NOON, ending="-0a1b2c3d", deadlines=orders, unlisted={"both": 4})
    both = taken()
    assert (both.seen_ms, both.unlisted, both.endings) == (NOON, {"orders": 2, "both": 4}, {"", "-0a1b2c3d"})
    assert [each.pattern for each in both.deadlines] == ["orders"]
    _take(tmp_path / "mail", "b", app="mail", deadlines=mails)
    assert (taken().deadlines, taken().endings) == ((), frozenset())
    _take(tmp_path / "yesterday", "a", app="shop", ending="")
    with pytest.raises(InputError, match=r"holds two inventories of one app, in \S+/shop and \S+/yesterday: move"):
        taken()


@pytest.mark.parametrize("changed", first_quick(["export", "app", "broker"]))
def test_a_state_of_other_books_is_refused_and_one_that_has_moved_is_not(spark: SparkSession, tmp_path: Path, changed: str) -> None:
    """An app may get a name, a broker an address and an export a place; a second difference means other books."""
    histories = Histories()
    histories.add("a", "published")
    books = histories.write(tmp_path, state=str(tmp_path / "state"), as_of_ms=NOON + HOUR)
    _take(tmp_path / "inventory", "a", app="shop")
    assert reconcile(spark, books).balanced
    notes: dict[str, Any] = {"app": {"app": "mail"}, "broker": {"app": "shop", "broker": "redis://c"}}
    _take(tmp_path / "inventory", "a", **notes.get(changed, {"app": "shop"}))
    if changed == "export":
        (tmp_path / "outcomes").rename(tmp_path / "moved")
        books = replace(books, outcomes=str(tmp_path / "moved"))
    assert reconcile(spark, books).balanced
    _take(tmp_path / "inventory", "x", app="staging", broker="redis://s")
    with pytest.raises(InputError, match=r"/state is the state of other books \(app .*; now app staging, broker redis://s"):
        reconcile(spark, books)
