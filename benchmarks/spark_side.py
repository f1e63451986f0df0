"""What a local Spark session has cost so far: processor and memory of its Java, and what its stages have shuffled."""

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
    """Seconds of processor, bytes that were written for shuffles, and the most memory that Java and this process ever took."""

    processor: float
    shuffled: int
    peak: int

    @classmethod
    def now(cls, spark: SparkSession) -> Self:
        """Read them."""
        java = below(os.getpid())
        return cls(sum(map(used, java)), _shuffled(spark), sum(map(peak_bytes, [os.getpid(), *java])))


def _shuffled(spark: SparkSession) -> int:
    """Bytes, by the sums that Spark itself keeps of its stages (the last thousand of them)."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - Spark has no public door to it in Python
    defaults = [getattr(store, f"stageList$default${number}")() for number in range(2, 6)]
    stages = store.stageList(None, *defaults)
    return sum(int(stages.apply(at).shuffleWriteBytes()) for at in range(stages.size()))
