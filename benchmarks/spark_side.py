"""The costs of a local Spark session: processor and memory of its Java, and shuffled bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from benchmarks.processor import below, peak_bytes, used

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Cost"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds, bytes written for shuffles, and the peak memory of Java and this process."""

    processor: float
    shuffled: int
    peak: int

    @classmethod
    def now(cls, spark: SparkSession) -> Self:
        java = below(os.getpid())
        return cls(sum(map(used, java)), _shuffled(spark), sum(map(peak_bytes, [os.getpid(), *java])))


def _shuffled(spark: SparkSession) -> int:
    """The shuffled bytes of Spark's last thousand stages."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - Spark has no public way to it in Python
    defaults = [getattr(store, f"stageList$default${number}")() for number in range(2, 6)]
    stages = store.stageList(None, *defaults)
    return sum(int(stages.apply(at).shuffleWriteBytes()) for at in range(stages.size()))
