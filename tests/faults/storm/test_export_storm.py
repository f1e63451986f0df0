"""Kills over a running export: nothing is missing, nothing is trimmed too far, and the books count each event once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.storm.export_storm import CODE, Storm
from tests.support.books.object_store import SCHEME, ObjectStore
from tests.support.books.spark_session import spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.servers import Server

__all__ = ["spark"]

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.full
def test_kills_lose_nothing_and_the_books_count_each_event_once(spark: SparkSession, server: Server, folder: Path) -> None:
    """Five exporters in turn, each SIGKILLed while events are recorded; checked after each kill."""
    storm = Storm(server, str(folder / "out"), events=10_000)
    storm.rage(5)
    storm.finish()
    assert storm.kills == 5
    books = storm.books(spark, folder)
    assert (books.events, books.lives, books.balanced) == (10_000, 5_000, True)


@pytest.mark.full
def test_kills_lose_nothing_in_a_store_that_has_no_rename(
    spark: SparkSession, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects appear complete, and a copy gives them their name, as on Azure without a hierarchical namespace."""
    store = ObjectStore(folder / "store")
    monkeypatch.setattr("redelivery.workers.export.tables.resolve", store.resolve)
    code = f"from tests.support.books.object_store import install; install({str(store.folder)!r})\n{CODE}"
    storm = Storm(server, f"{SCHEME}books/out?region=here", events=6_000, code=code)
    storm.rage(3)
    storm.events += 1_000
    with storm._recording(storm.events):  # what no killed exporter can have taken: this process has something to copy
        pass
    storm.finish()
    assert store.copied > 0
    books = storm.books(spark, folder)
    assert (books.events, books.lives, books.balanced) == (7_000, 3_500, True)
