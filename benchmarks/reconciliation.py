"""The reconciliation: how long the books take, against the least that any such job must do over the same files.

The least is one `groupBy(task_id)` that counts and takes the latest time. Both run in one Spark session over the same Parquet
files, after a small run of each that nobody times. The lives are ordinary: most succeed at once, one in ten after a redelivery,
one in a hundred dies and is in its dead-letter queue.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from benchmarks.figures import less, more
from benchmarks.spark_side import Cost
from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.schema import EVENTS, INVENTORY
from redelivery.workers.reconciliation.session import session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.figures import Figure

__all__ = ["EVENTS_PER_LIFE", "GIB", "NOON", "events_of", "inventory_of", "reconciliation", "seconds", "write"]

NOON = 1_769_860_800_000
EVENTS_PER_LIFE = 2.1
#: Which one of a hundred lives may be published earlier than the others.
CARRIED = 51
GIB = 2**30


def reconciliation(name: str, *, events: int, rounds: int = 3) -> dict[str, Figure]:  # noqa: ARG001 - there is one side
    """Seconds of both, the best of `rounds`, and `speed_kept`: how much of the bare speed is left, 1.0 being all of it.

    What a cluster is planned with is there for each event: processor, bytes read, and bytes shuffled.
    """
    with tempfile.TemporaryDirectory(prefix="redelivery-bench-") as folder, session(input_bytes=GIB) as spark:
        places: dict[str, Any] = {name: str(Path(folder) / name) for name in ("outcomes", "inventory", "output")}
        lives = round(events / EVENTS_PER_LIFE)
        write(events_of(spark, lives), places["outcomes"])
        write(inventory_of(spark, lives), places["inventory"])
        read = spark.read.schema(EVENTS).parquet(places["outcomes"])
        for _ in range(2):
            _bare(read)
            reconcile(spark, Books(**places))
        bare = min(seconds(lambda: _bare(read)) for _ in range(rounds))
        before = Cost.now(spark)
        ours = min(seconds(lambda: reconcile(spark, Books(**places))) for _ in range(rounds))
        after, count = Cost.now(spark), read.count()
        size = sum(each.stat().st_size for each in Path(places["outcomes"]).rglob("*.parquet"))
        return {
            "speed_kept": more(bare / ours, "of the bare speed"),
            "events_per_second": more(count / ours, "events/s"),
            "bare": less(bare, "s"),
            "reconcile": less(ours, "s"),
            "peak_memory": less(after.peak / GIB, "GiB"),
            "processor": less((after.processor - before.processor) / rounds / count * 1e6, "µs/event"),
            "read": less(size / count, "bytes/event"),
            "shuffled": less((after.shuffled - before.shuffled) / rounds / count, "bytes/event"),
        }


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _bare(events: DataFrame) -> None:
    events.groupBy("task_id").agg(F.count("*"), F.max("at_ms")).write.format("noop").mode("overwrite").save()


def write(table: DataFrame, place: str) -> None:
    """Write a table as Parquet."""
    table.write.parquet(place)


def _lives(spark: SparkSession, lives: int) -> DataFrame:
    """What the events and the inventory of a life have in common."""
    task_id = F.regexp_replace(F.md5(F.col("id").cast("string")), "(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5")
    return spark.range(lives, numPartitions=4).withColumns(
        {
            "task_id": task_id,
            "start": F.lit(NOON) + F.col("id"),
            "task": F.concat(F.lit("shop.task"), F.col("id") % 20),
            "queue": F.concat(F.lit("queue"), F.col("id") % 5),
            "clock": F.lit("broker"),
            "schema_version": F.lit(1),
            "is_dead": F.col("id") % 100 == 0,
        }
    )


def events_of(spark: SparkSession, lives: int, *, carried_ms: int = 0) -> DataFrame:
    """Events in the order in which a broker records them; one life in a hundred was published `carried_ms` earlier."""
    is_again, is_dead, is_carried = F.col("id") % 10 == 0, F.col("is_dead"), F.col("id") % 100 == CARRIED

    def step(number: int, outcome: Any, **more: Any) -> Any:
        said = {"outcome": outcome, "delivery": number, "attempt": number, "reason": "", "worker": ""} | more
        return F.struct(*((value if hasattr(value, "alias") else F.lit(value)).alias(name) for name, value in said.items()))

    last = F.when(is_dead, "dead_lettered").otherwise("succeeded")
    steps = F.array(
        step(0, "published"),
        step(1, "redelivery_scheduled", worker="celery@shop-1"),
        step(2, last, worker="celery@shop-1", reason=F.when(is_dead, "exhausted").otherwise("")),
    )
    told = F.filter(steps, lambda each: is_again | (each.outcome != "redelivery_scheduled"))
    exploded = _lives(spark, lives).withColumn("step", F.explode(told)).select("*", "step.*")
    earlier = F.when(is_carried & (F.col("outcome") == "published"), carried_ms).otherwise(0)
    at_ms = F.col("start") + F.col("delivery") * 1000 - earlier
    numbered = {"at_ms": at_ms, "event_id": F.concat(at_ms, F.lit("-"), F.col("id")), "root_id": F.col("task_id")}
    return _as(exploded.withColumns(numbered).orderBy("at_ms"), EVENTS)


def inventory_of(spark: SparkSession, lives: int, *, before: bool = False) -> DataFrame:
    """The dead letters, an hour after all ended; or, `before` that, the messages of the lives that were published earlier."""
    held = F.col("id") % 100 == CARRIED if before else F.col("is_dead")
    place, seen_ms = ("queue", NOON - 1) if before else ("dead_letter", NOON + lives + 3_600_000)
    return _as(_lives(spark, lives).where(held).withColumns({"place": F.lit(place), "seen_ms": F.lit(seen_ms)}), INVENTORY)


def _as(table: DataFrame, schema: Any) -> DataFrame:
    known = set(table.columns)
    return table.select(
        *((F.col(each.name) if each.name in known else F.lit(None)).cast(each.dataType).alias(each.name) for each in schema)
    )
