"""Few rows: how to execute queries over tables so small that planning takes longer than the query.

With few lives, most time goes into planning, compiling, and waiting for one query after the other. So small tables are kept without
their plans, and broadcast for joins. Their queries are planned once, compiled only if that saves time, and run in parallel if they
are independent. This is for local sessions only: a table that is kept in this way is lost with its executor.
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

#: Up to this number of rows all of this saves time.
FEW: Final = 1_000_000

#: From this number of rows on queries are compiled.
COMPILED: Final = 20_000


@dataclass(frozen=True, slots=True)
class Execution:
    """How to execute queries over tables of a certain size.

    `keep` persists a table that is used more than once. `broadcast` marks a table that joins send to all executors. `coalesce` puts
    a small table into one partition, so that no query over it shuffles. `run_all` calls several functions, and returns their
    results in order. `compile_queries` must be called before queries that search many events for a few lives.
    """

    keep: Callable[[DataFrame], DataFrame]
    broadcast: Callable[[DataFrame], DataFrame]
    coalesce: Callable[[DataFrame], DataFrame]
    run_all: Callable[[Sequence[Callable[[], T]]], list[T]]
    compile_queries: Callable[[], object]


def is_local(spark: SparkSession) -> bool:
    """Whether Spark runs in one process."""
    return str(spark.sparkContext.master).startswith("local")


@contextmanager
def for_many_rows(keep: Callable[[DataFrame], DataFrame]) -> Iterator[Execution]:
    """The execution for many rows: Spark decides about broadcasts, and one function runs after the other."""
    yield Execution(keep, _unchanged, _unchanged, lambda functions: [function() for function in functions], lambda: None)


@contextmanager
def for_few_rows(spark: SparkSession, rows: int) -> Iterator[Execution]:
    """The execution for few rows. In this block each query is planned once, with one partition for each core.

    Below `COMPILED` rows, queries are compiled only after `compile_queries`.
    """
    compiled = "spark.sql.codegen.wholeStage"
    settings = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism)}
    was_compiled = str(spark.conf.get(compiled))
    if rows < COMPILED:
        settings[compiled] = "false"
    with with_settings(spark, settings):
        run_all = partial(side_by_side, spark)
        compile_queries = partial(spark.conf.set, compiled, was_compiled)
        yield Execution(_checkpoint, F.broadcast, lambda table: table.coalesce(1), run_all, compile_queries)


def as_kept(table: DataFrame) -> DataFrame:
    """A persisted table without its plan. With the plan, Spark would plan each query over the table from the input files on."""
    spark: Any = table.sparkSession
    plan = table._jdf.queryExecution().withCachedData()  # noqa: SLF001 - Spark has no public way to it
    made = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)  # noqa: SLF001 - as above
    return ClassicDataFrame(made, spark)


def _unchanged(table: DataFrame) -> DataFrame:
    return table


def _checkpoint(table: DataFrame) -> DataFrame:
    """Keep a table without its plan. It is freed when nothing refers to it any more."""
    return table.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK)


def side_by_side(spark: SparkSession, functions: Sequence[Callable[[], T]]) -> list[T]:
    """Call all functions in parallel. When all have ended, raise the error of the first in the list that failed."""
    with ThreadPoolExecutor(len(functions)) as threads:
        running = [threads.submit(inheritable_thread_target(spark)(function)) for function in functions]
    return [each.result() for each in running]
