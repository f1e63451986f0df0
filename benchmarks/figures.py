"""A figure: a number with its unit, and whether more or less is better."""

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
        return cls(float(row["value"]), str(row["unit"]), row["better"])

    def to_row(self) -> dict[str, Any]:
        return asdict(self)


def more(value: float, unit: str) -> Figure:
    """A figure for which more is better."""
    return Figure(float(value), unit, "more")


def less(value: float, unit: str) -> Figure:
    """A figure for which less is better."""
    return Figure(float(value), unit, "less")


def percentile(values: Sequence[float], part: float) -> float:
    """The nearest-rank percentile of unsorted values; `part` is from 0 to 1. Raises `ValueError` without values."""
    if not values:
        msg = "no values: there is no percentile of nothing"
        raise ValueError(msg)
    return sorted(values)[max(math.ceil(part * len(values)) - 1, 0)]
