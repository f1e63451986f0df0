"""The plots of the report that need reckoning: columns over time, and the course of a figure over the last runs.

Lengths are linear and begin at zero. The template draws them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .figures import Row

_HOUR_MS: Final = 3_600_000
#: Widths of a column, in hours: the least is taken of which so many cover the whole time.
_WIDTHS: Final = (1, 2, 3, 6, 12, 24, 72, 168, 720, 8760)
_MAX_COLUMNS: Final = 48
_FEWEST_COLUMNS: Final = 12
_MAX_POINTS: Final = 30


@dataclass(frozen=True, slots=True)
class Span:
    """How many there were from one moment (ms, included) to another."""

    from_ms: int
    to_ms: int
    count: int


def over_time(hours: Sequence[Row], *, until_ms: int) -> list[Span]:
    """Counts by hour (`hour`: since the epoch, `letters`) in columns of one width, 12 to 48 of them, up to the last moment."""
    first = min(int(row["hour"]) for row in hours)
    last = max(*(int(row["hour"]) for row in hours), min(until_ms // _HOUR_MS, first + _WIDTHS[-1] * _MAX_COLUMNS - 1), first)
    width = next((each for each in _WIDTHS if (last // each) - (first // each) < _MAX_COLUMNS), _WIDTHS[-1])
    end = last // width
    begin = max(min(first // width, end - _FEWEST_COLUMNS + 1), end - _MAX_COLUMNS + 1)
    counts = dict.fromkeys(range(begin, end + 1), 0)
    for row in hours:
        counts[max(int(row["hour"]) // width, begin)] += int(row["letters"])
    return [Span(at * width * _HOUR_MS, (at + 1) * width * _HOUR_MS, number) for at, number in counts.items()]


def course(values: Sequence[Any]) -> str:
    """The points of a line through the last values, 100 wide and 20 high; none where there are fewer than three."""
    known = [float(each) for each in values[-_MAX_POINTS:] if each is not None]
    if len(known) < 3:  # noqa: PLR2004 - two points are no course
        return ""
    top = max(known) or 1
    return " ".join(f"{100 * at / (len(known) - 1):.1f},{20 - 19 * value / top:.1f}" for at, value in enumerate(known))
