"""Few rows: how to work with tables for which the planning of a query takes longer than the query.

With few lives, most time is spent on planning, compiling, and waiting for one query after the other. So their tables are kept
without their plans, and joined by sending them whole to the other side. Their queries are planned once, and compiled only if that
saves time; queries that do not need each other run at the same time. This is for a local session only: a table that was kept so is
lost with the executor that has it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark import StorageLevel, inheritable_thread_target
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from .session import with_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

#: Up to so many rows all of this saves time.
FEW: Final = 1_000_000

#: From so many rows on queries are compiled: with 48,000 a new session takes as long either way, and a warm one less.
COMPILED: Final = 20_000


@dataclass(frozen=True, slots=True)
class Ways:
    """How to work with tables of a certain size.

    `keep` keeps a table that is used more than once. `sent` marks a table that is sent whole to where it is joined. `together` puts
    the rows of a small table into one part, so that no query over it shuffles. `done` does several works, and returns their results
    in order. `look_back` must be called before queries that search many events for a few lives.
    """

    keep: Callable[[DataFrame], DataFrame]
    sent: Callable[[DataFrame], DataFrame]
    together: Callable[[DataFrame], DataFrame]
    done: Callable[[Sequence[Callable[[], T]]], list[T]]
    look_back: Callable[[], object]


def is_local(spark: SparkSession) -> bool:
    """Whether everything runs in one process."""
    return str(spark.sparkContext.master).startswith("local")


@contextmanager
def many(keep: Callable[[DataFrame], DataFrame]) -> Iterator[Ways]:
    """The ways of many rows: Spark itself sends tables that it finds small, and one work follows the other."""
    yield Ways(keep, _as_it_is, _as_it_is, lambda works: [work() for work in works], lambda: None)


@contextmanager
def few(spark: SparkSession, rows: int) -> Iterator[Ways]:
    """The ways of so few rows; meanwhile each query is planned once, with one part for each core.

    Below `COMPILED` rows, queries are compiled only after `look_back`.
    """
    compiled = "spark.sql.codegen.wholeStage"
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism),
    }
    was_compiled = str(spark.conf.get(compiled))
    if rows < COMPILED:
        settings[compiled] = "false"
    with with_settings(spark, settings):
        done = partial(side_by_side, spark)
        yield Ways(_cut, F.broadcast, lambda table: table.coalesce(1), done, lambda: spark.conf.set(compiled, was_compiled))


def as_kept(table: DataFrame) -> DataFrame:
    """A persisted table without the plan by which it was made.

    With that plan, Spark would plan each query over it again from the input files: a minute and more for a second day's books.
    """
    spark: Any = table.sparkSession
    plan = table._jdf.queryExecution().withCachedData()  # noqa: SLF001 - Spark has no public door to it
    made = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)  # noqa: SLF001 - as above
    return ClassicDataFrame(made, spark)


def _as_it_is(table: DataFrame) -> DataFrame:
    return table


def _cut(table: DataFrame) -> DataFrame:
    """Keep a table without its plan, which Spark would plan again each time; it is freed when nothing refers to it any more."""
    return table.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK)


def side_by_side(spark: SparkSession, works: Sequence[Callable[[], T]]) -> list[T]:
    """Do all works at the same time. When all have ended, raises what the first failed one of the list raised."""
    with ThreadPoolExecutor(len(works)) as threads:
        running = [threads.submit(inheritable_thread_target(spark)(work)) for work in works]
    return [each.result() for each in running]
