"""Times in classes, so that percentiles of any group can be had from counts.

A class is 0.5 % wide, so a percentile is right to within 0.25 %, and times of any length up to a century fill fewer than 6,000
classes. Counts of classes add up, where percentiles of parts do not: one fold of the lives serves a row of the metrics, a queue and
the whole.
"""

from __future__ import annotations

import math
from typing import Final

PERCENTILES: Final = (50, 95, 99)

_WIDTH: Final = math.log(1.005)


def time_class(time_ms: str) -> str:
    """The class of a time in ms, in SQL; a negative one, which only clocks that differ can make, counts as 0."""
    return f"CAST(floor(ln(greatest({time_ms}, 0) + 1D) / {_WIDTH!r}D) AS INT)"


def percentiles(name: str, count: str) -> str:
    """The `PERCENTILES` (ms, an array) of the classes in column `name`, each counted `count` times; null where there is none."""
    shares = ", ".join(f"{each / 100!r}D" for each in PERCENTILES)
    return f"percentile(expm1(({name} + 0.5D) * {_WIDTH!r}D), array({shares}), {count})"
