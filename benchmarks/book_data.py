"""Outcome events and inventories for the benchmarks of the books, written once for each size to `.cache/books`.

The lives are ordinary: most succeed at once, one in ten after a redelivery, one in a hundred dies and is in its dead-letter queue.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from benchmarks.side import ROOT
from redelivery.workers.reconciliation.schema import EVENTS, INVENTORY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EVENTS_PER_LIFE", "NOON", "events_of", "inventory_of", "kept", "ordinary", "write"]

NOON = 1_769_860_800_000
EVENTS_PER_LIFE = 2.1
#: Lives that are sorted and written at once: ten million events.
LIVES_AT_ONCE = 4_761_905
#: In each hundred, the number of the life that may be published earlier. One life in `STAY_OPEN` then stays open.
CARRIED = 51
STAY_OPEN = 5000


def ordinary(spark: SparkSession, events: int) -> Path:
    """A folder with `events` events (`outcomes`) and their `inventory`."""
    lives = range(round(events / EVENTS_PER_LIFE))

    def written(folder: Path) -> None:
        for first in lives[::LIVES_AT_ONCE]:
            write(events_of(spark, lives[first : first + LIVES_AT_ONCE]), folder / "outcomes")
        write(inventory_of(spark, lives), folder / "inventory")

    return kept(f"ordinary-{events}", written)


def kept(name: str, written: Callable[[Path], None]) -> Path:
    """The folder of this name. If it does not exist, `written` writes it."""
    folder = ROOT / ".cache" / "books" / name
    if not folder.exists():
        unfinished = folder.with_name(f".{name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        written(unfinished)
        for checksum in unfinished.rglob("*.crc"):  # the exporter leaves no such files
            checksum.unlink()
        unfinished.rename(folder)
    return folder


def write(table: DataFrame, place: Path) -> None:
    table.write.mode("append").parquet(str(place))


def _lives(spark: SparkSession, lives: range) -> DataFrame:
    """The common columns of a life's events and inventory."""
    task_id = F.regexp_replace(F.md5(F.col("id").cast("string")), "(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5")
    return spark.range(lives.start, lives.stop, numPartitions=4).withColumns(
        {
            "task_id": task_id,
            "start": F.lit(NOON) + F.col("id"),
            "task": F.concat(F.lit("shop.task"), F.col("id") % 20),
            "queue": F.concat(F.lit("queue"), F.col("id") % 5),
            "clock": F.lit("broker"),
            "schema_version": F.lit(1),
            "is_dead": F.col("id") % 100 == 0,
            "is_carried": F.col("id") % 100 == CARRIED,
            "stays_open": F.col("id") % STAY_OPEN == CARRIED,
        }
    )


def events_of(spark: SparkSession, lives: range, *, carried_ms: int = 0) -> DataFrame:
    """Events in the order of a broker. Some lives are published `carried_ms` earlier."""
    is_again, is_dead, is_carried = F.col("id") % 10 == 0, F.col("is_dead"), F.col("is_carried")

    def step(number: int, outcome: Any, **more: Any) -> Any:
        said = {"outcome": outcome, "delivery": number, "attempt": number, "reason": "", "worker": ""} | more
        return F.struct(*((value if hasattr(value, "alias") else F.lit(value)).alias(name) for name, value in said.items()))

    last = F.when(is_dead, "dead_lettered").otherwise("succeeded")
    steps = F.array(
        step(0, "published"),
        step(1, "redelivery_scheduled", worker="celery@shop-1"),
        step(2, last, worker="celery@shop-1", reason=F.when(is_dead, "exhausted").otherwise("")),
    )
    is_open = F.lit(bool(carried_ms)) & F.col("stays_open")
    shown = F.filter(steps, lambda each: (is_again | (each.outcome != "redelivery_scheduled")) & (~is_open | (each.delivery == 0)))
    exploded = _lives(spark, lives).withColumn("step", F.explode(shown)).select("*", "step.*")
    earlier = F.when(is_carried & (F.col("outcome") == "published"), carried_ms).otherwise(0)
    at_ms = F.col("start") + F.col("delivery") * 1000 - earlier
    numbered = {"at_ms": at_ms, "event_id": F.concat(at_ms, F.lit("-"), F.col("id")), "root_id": F.col("task_id")}
    return _as(exploded.withColumns(numbered).orderBy("at_ms"), EVENTS)


def inventory_of(spark: SparkSession, lives: range, *, carried: bool = False, before: bool = False) -> DataFrame:
    """The dead letters an hour after the last end; `carried` adds the open lives; `before` takes only the lives carried over."""
    is_dead, stays_open = F.col("is_dead"), F.col("stays_open")
    held = F.col("is_carried") if before else is_dead | stays_open if carried else is_dead
    place, seen_ms = F.when(is_dead, "dead_letter").otherwise("queue"), NOON - 1 if before else NOON + lives.stop + 3_600_000
    return _as(_lives(spark, lives).where(held).withColumns({"place": place, "seen_ms": F.lit(seen_ms)}), INVENTORY)


def _as(table: DataFrame, schema: Any) -> DataFrame:
    known = set(table.columns)
    return table.select(
        *((F.col(each.name) if each.name in known else F.lit(None)).cast(each.dataType).alias(each.name) for each in schema)
    )
