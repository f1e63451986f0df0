"""A figure: a number with its unit, and which way it is better."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Better", "Figure", "less", "more", "percentile"]

Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    value: float
    unit: str
    better: Better

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From its JSON."""
        return cls(float(row["value"]), str(row["unit"]), row["better"])

    def to_row(self) -> dict[str, Any]:
        """Its JSON."""
        return asdict(self)


def more(value: float, unit: str) -> Figure:
    """A figure for which more is better."""
    return Figure(float(value), unit, "more")


def less(value: float, unit: str) -> Figure:
    """A figure for which less is better."""
    return Figure(float(value), unit, "less")


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest of `values` (in any order) that at least this part of them (0 to 1) does not exceed.

    Raises `ValueError` if there are none.
    """
    if not values:
        msg = "no values: there is no percentile of nothing"
        raise ValueError(msg)
    return sorted(values)[max(math.ceil(part * len(values)) - 1, 0)]
