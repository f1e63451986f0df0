"""Cached tables: the work of Spark for each query over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from redelivery.workers.reconciliation.spark.few_rows import as_kept
from tests.support.books.books_command import SUCCEEDED
from tests.support.books.spark_session import Histories, spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]

#: Jobs of Spark for a day that has lives of every kind; two of them look for broken lines in JSON that no export has written.
MOST_JOBS = 20

pytestmark = pytest.mark.xdist_group("spark-days")


def test_a_kept_table_is_read_without_how_it_was_made(spark: SparkSession) -> None:
    """Each query begins with the cached table and gives the same result; a table that is not cached is unchanged."""
    made = spark.range(10).selectExpr("id", "id % 3 AS rest")
    expected = sorted(made.join(made.selectExpr("id AS other", "rest"), "rest").collect())
    assert begins_with(as_kept(made)) == "Project"
    made.persist()
    kept = as_kept(spark.range(10).selectExpr("id", "id % 3 AS rest"))
    assert begins_with(kept) == "InMemoryRelation"
    assert sorted(kept.join(kept.selectExpr("id AS other", "rest"), "rest").collect()) == expected
    made.unpersist()
    assert sorted(kept.join(kept.selectExpr("id AS other", "rest"), "rest").collect()) == expected


def begins_with(table: DataFrame) -> str:
    """The outermost step of a table's logical plan."""
    plan = table._jdf.queryExecution().logical()
    return str(plan.getClass().getSimpleName())


def test_a_small_day_asks_spark_for_no_more_than_it_needs(spark: SparkSession, tmp_path: Path) -> None:
    """Each Spark query takes 0.1 s, however little it reads: one query more must be a deliberate change."""
    histories = Histories()
    for number in range(50):
        histories.add(f"task-{number}", "published", SUCCEEDED)
    histories.add("task-lost", "published", ("received", {"delivery": 1, "worker": "w1@shop"}))
    histories.add("task-dead", "published", ("dead_lettered", {"reason": "exhausted", "exception": "ValueError"}))
    histories.hold("task-dead", "dead_letter")
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    histories.reconcile(spark, tmp_path)
    jobs = set(tracker.getJobIdsForGroup()) - before
    assert len(jobs) <= MOST_JOBS
