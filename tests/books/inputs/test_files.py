"""File operations of the books, and paths that Spark would take for patterns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from redelivery.errors import InputError
from redelivery.workers.reconciliation.job import reconcile
from redelivery.workers.reconciliation.spark.files import Files
from tests.support.books.spark_session import NOON, Histories, rows, spark, write_lines

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.xdist_group("spark-days")


@pytest.mark.parametrize("name", ["books", "books[1]", "books{a,b}", "books*?", "bo\\oks", "bücher 100%20"])
def test_what_lies_beside_an_output_is_known_by_its_whole_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Also if the name, or that of its folder, looks like a pattern."""
    folder = tmp_path / f"in {name}"
    for each in (f".{name}.new-1", f".{name}.new-2", f".{name}.old-3", ".books1.new-4", ".booksa.new-5", "else"):
        (folder / each).mkdir(parents=True)
    (folder / "2026-01-31T12:00").mkdir()  # the colon ends a scheme where a pattern is matched
    files = Files(spark)
    assert files.beginning(files.absolute(str(folder)), f".{name}.new-") == [f".{name}.new-1", f".{name}.new-2"]
    assert files.beginning(str(tmp_path / "nowhere"), f".{name}.new-") == []


def test_a_folder_that_the_disk_does_not_rename_is_neither_copied_nor_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop would do both: a mount point would be empty then, and a folder would be put into the one that is in its place."""
    for name in ("new", "books"):
        (tmp_path / name / name).mkdir(parents=True)
    with pytest.raises(InputError, match="/new could not be renamed: Directory not empty"):
        Files(spark).rename(str(tmp_path / "new"), str(tmp_path / "books"))
    assert [each.name for name in ("new", "books") for each in (tmp_path / name).iterdir()] == ["new", "books"]


@pytest.mark.full
@pytest.mark.parametrize("name", ["books[1]", "{a,b}", "*?", "bo\\oks", "bücher 100%20", "12:00"])
def test_books_may_lie_wherever_a_file_system_lets_them(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Events, inventory, state and output are in a folder whose name looks like a pattern, beside a folder that it would match."""
    histories, elsewhere = Histories(), Histories()
    elsewhere.add("other", "published", "succeeded")
    for matched in ("books1", "a", "xy"):
        elsewhere.write(tmp_path / matched)
    folder = tmp_path / name
    histories.add("lost", "published", start_ms=NOON)
    histories.add("open", "published", start_ms=NOON + 3_600_000)
    books = histories.write(folder, state=str(folder / "state"))
    first = reconcile(spark, books)
    assert (first.verdicts["lost"], first.verdicts["in_flight"], first.lives) == (1, 1, 2)
    assert first.figures is not None
    assert [row["verdict"] for row in first.figures.faults] == ["lost"]
    end = {"event_id": "9-0", "task_id": "open", "outcome": "succeeded", "queue": "orders", "at_ms": NOON + 3_601_000}
    write_lines(folder / "outcomes" / "date=2026-01-31" / "hour=13" / "outcomes.jsonl", [end])
    second = reconcile(spark, books)
    assert (second.verdicts["balanced"], second.standing) == (1, {"lost": 1})
    assert [row["task_id"] for row in rows(folder, "verdicts")] == []
