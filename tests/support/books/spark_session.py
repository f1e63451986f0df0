"""A Spark session for the tests of the books, with helpers that write its inputs and read its outputs.

Import the fixture with `from tests.support.books.spark_session import spark`. These tests are in the xdist groups `spark`,
`spark-days` and `spark-announced`, each with its own session. The demo and the documents start their own Spark (`spark-apart`). So
the groups take about the same time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import dataset

from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from redelivery.workers.reconciliation.report.summary import Summary

__all__ = ["NOON", "Histories", "Row", "rows", "spark", "write_lines"]

Row = dict[str, Any]

#: 2026-01-31 12:00:00 UTC in ms: the start of the tests' histories.
NOON = 1_769_860_800_000


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. Spark's messages go to a file."""
    with session(input_bytes=0, log=tmp_path_factory.mktemp("spark") / "spark.log") as started:
        yield started


@dataclass
class Histories:
    """Hand-made histories: events and inventory rows."""

    events: list[Row] = field(default_factory=list)
    inventory: list[Row] = field(default_factory=list)

    def add(self, task_id: str, *steps: str | tuple[str, Row], start_ms: int = NOON, **common: Any) -> None:
        """Append events, one a second. A step is an outcome, or an outcome with more fields."""
        for number, step in enumerate(steps):
            outcome, more = (step, {}) if isinstance(step, str) else step
            event_id = f"{start_ms + number * 1000}-{len(self.events)}"
            event = {"event_id": event_id, "task_id": task_id, "outcome": outcome, "at_ms": start_ms + number * 1000}
            self.events.append({"queue": "orders", "task": "shop.charge"} | event | common | more)

    def hold(self, task_id: str, place: str, **more: Any) -> None:
        """Append an inventory row, one hour after noon."""
        row = {"task_id": task_id, "place": place, "queue": "orders", "task": "shop.charge", "generation": 0}
        self.inventory.append(row | {"seen_ms": NOON + 3_600_000} | more)

    def write(self, folder: Path, **options: Any) -> Books:
        """Write events and inventory as JSON lines. Returns the options of the job."""
        write_lines(folder / "outcomes" / "date=2026-01-31" / "hour=12" / "outcomes.jsonl", self.events)
        write_lines(folder / "inventory" / "inventory.jsonl", self.inventory)
        places = {name: str(folder / name) for name in ("outcomes", "inventory")}
        return Books(output=str(folder / "books"), **places | options)

    def reconcile(self, spark: SparkSession, folder: Path, **options: Any) -> Summary:
        """Write events and inventory, and run the job."""
        return reconcile(spark, self.write(folder, **options))


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def rows(folder: Path, name: str) -> list[Row]:
    read: list[Row] = dataset.dataset(folder / "books" / name).to_table().to_pylist()
    return read
