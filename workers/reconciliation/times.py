"""Times in classes, so that percentiles of any group can be had from counts.

A class is 0.5 % wide, so a percentile is right to within 0.25 %, and times of any length up to a century fill fewer than 6,000
classes. Counts of classes add up, where percentiles of parts do not: one fold of the lives serves a row of the metrics, a queue and
the whole.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["PERCENTILES", "percentiles", "time_class"]

PERCENTILES: Final = (50, 95, 99)

_WIDTH: Final = math.log(1.005)


def time_class(time_ms: Column) -> Column:
    """The class of a time in ms; a negative one, which only clocks that differ can make, counts as 0."""
    return F.floor(F.log1p(F.greatest(time_ms, F.lit(0)).cast("double")) / F.lit(_WIDTH)).cast("int")


def percentiles(name: str, count: str) -> Column:
    """The `PERCENTILES` (ms, an array) of the classes in column `name`, each counted `count` times; null where there is none."""
    middle = F.expm1((F.col(name) + F.lit(0.5)) * F.lit(_WIDTH))
    return F.percentile(middle, [each / 100 for each in PERCENTILES], F.col(count))
