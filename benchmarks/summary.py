"""Computes medians and the spread of paired ratios from the rounds of a comparison.

A ratio belongs to one round, in which both sides ran one after the other, so other load of the machine affects both.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.figures import Better, Figure

__all__ = ["BASE", "OURS", "Ratio", "Row", "meets", "summarised"]

BASE, OURS = "plain", "redelivery"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of redelivery to the base: the median, lowest and highest of the rounds."""

    median: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a comparison. `medians` is by side. `ratio` is None if a side has no such figure above 0."""

    name: str
    unit: str
    better: Better
    medians: Mapping[str, float]
    ratio: Ratio | None


def summarised(rounds: Sequence[Mapping[str, Mapping[str, Figure]]]) -> list[Row]:
    """A row for each figure of any side, in the order of appearance. `rounds` have side → figure → number."""
    first: dict[str, Figure] = {}
    for sides in rounds:
        for figures in sides.values():
            for name, figure in figures.items():
                first.setdefault(name, figure)
    return [Row(name, figure.unit, figure.better, _medians(rounds, name), _ratio(rounds, name)) for name, figure in first.items()]


def _medians(rounds: Sequence[Mapping[str, Mapping[str, Figure]]], name: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for sides in rounds:
        for side, figures in sides.items():
            if name in figures:
                values.setdefault(side, []).append(figures[name].value)
    return {side: statistics.median(each) for side, each in values.items()}


def _ratio(rounds: Sequence[Mapping[str, Mapping[str, Figure]]], name: str) -> Ratio | None:
    pairs = [
        (each[BASE][name].value, each[OURS][name].value) for each in rounds if _has(each, BASE, name) and _has(each, OURS, name)
    ]
    ratios = [ours / base for base, ours in pairs if base > 0 and ours > 0]
    if not ratios:
        return None
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def _has(sides: Mapping[str, Mapping[str, Figure]], side: str, name: str) -> bool:
    return name in sides.get(side, {})


def meets(row: Row, aim: float) -> bool | None:
    """Whether the ratio meets the aim, or the value if there is no base. None if it was not measured."""
    value = row.ratio.median if row.ratio is not None else None if BASE in row.medians else row.medians.get(OURS)
    if value is None:
        return None
    return value >= aim if row.better == "more" else value <= aim
