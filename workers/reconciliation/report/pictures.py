"""The pictures of the report: the flow of lives from their opening to their end (SVG), and the numbers of its plots.

The flow has three columns: what opened the lives, how many attempts they had, and how they ended. The thickness of a band shows its
number of lives, with a visible minimum: one lost task among a million is a red line. The picture has no script, font or reference,
and uses the colours of the page. It is drawn for a width in pixels, so that its text is as large as the page's in any window.

The template draws the plots: columns over time, and a figure over the last runs. Their scales are linear and begin at zero.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..rules import DISCREPANCIES
from .wording import count, share, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..figures.figures import Row

#: Endings in the order in which they are shown, each with its kind, which decides the colour.
KINDS: Final = {
    "succeeded": "ok",
    "in_flight": "open",
    "dead_lettered": "dead",
    "discarded": "gone",
    "purged": "gone",
    "expired": "gone",
    "revoked": "gone",
    "ignored": "gone",
    "cancelled": "gone",
    "unobserved": "gone",
    **dict.fromkeys(DISCREPANCIES, "bad"),
}
ENDINGS: Final = tuple(KINDS)
_OPENINGS: Final = ("published", "redriven", "received", "nobody")
_WAYS: Final = ("first", "more", "none")
NAMES: Final = {
    "received": "unannounced",
    "nobody": "by nobody",
    "first": "first attempt",
    "more": "redelivered",
    "none": "not attempted",
    "dead_lettered": "dead letter",
}

_MIN_THICKNESS: Final = 2.0
_LINE: Final = 19.0
_BAR: Final = 9


@dataclass(slots=True)
class _Node:
    """One node of a column, with its number of lives, and the total thickness of the bands `before` and `after` it."""

    name: str
    kind: str
    lives: int = 0
    before: float = 0
    after: float = 0
    top: float = 0
    used: dict[str, float] = field(default_factory=lambda: {"before": 0.0, "after": 0.0})

    @property
    def height(self) -> float:
        return max(self.before, self.after)

    def take(self, side: str, thickness: float) -> float:
        """Reserve space for the next band on this side. Returns its top."""
        taken = self.before if side == "before" else self.after
        at = self.top + (self.height - taken) / 2 + self.used[side]
        self.used[side] += thickness
        return at


@dataclass(frozen=True, slots=True)
class _Band:
    source: _Node
    target: _Node
    lives: int
    thickness: float
    kind: str


def drawn(flow: Sequence[Row], *, width: int, height: int = 300) -> str:
    """The picture, `width` pixels wide. `height` is the approximate total height of the bands."""
    lives = sum(int(row["lives"]) for row in flow)
    if not lives:
        return ""
    columns, bands = _laid_out(flow, height / lives)
    bottom = max(_stack(column) for column in columns)
    left, right = (172, 296) if width >= 600 else (0, 176)  # noqa: PLR2004 - a narrow picture names its openings above the bars
    places = [left, left + (width - left - right - _BAR) * 0.46, width - right - _BAR]
    top = 26
    parts = [_path(band, places, columns) for band in bands]
    parts += [_bar(node, x) for column, x in zip(columns, places, strict=True) for node in column]
    parts += _labels(columns, places, lives, is_wide=left > 0)
    heads = [("start", 0, "opened"), ("start", places[1], "attempts"), ("start", places[2], "ended")]
    parts += [f'<text class="head" x="{x:.1f}" y="{-12}" text-anchor="{anchor}">{name}</text>' for anchor, x, name in heads]
    said = "The flow of lives from what opened them to how they ended; the same numbers stand in the tables."
    return (
        f'<svg class="flow" viewBox="0 {-top} {width} {bottom + top + 4:.0f}" role="img" aria-label="{said}">'
        + "".join(parts)
        + "</svg>"
    )


def _laid_out(flow: Iterable[Row], scale: float) -> tuple[list[list[_Node]], list[_Band]]:
    """The nodes of each column and the bands between them, in drawing order."""
    halves: list[dict[tuple[str, str, str], int]] = [defaultdict(int), defaultdict(int)]
    for row in flow:
        kind = KINDS.get(row["ending"], "gone")
        halves[0][row["opened"], row["way"], "bad" if kind == "bad" else "plain"] += int(row["lives"])
        halves[1][row["way"], row["ending"], kind] += int(row["lives"])
    orders = (_OPENINGS, _WAYS, ENDINGS)
    nodes = [{name: _Node(name, KINDS.get(name, "plain")) for name in order} for order in orders]
    bands = []
    for number, half in enumerate(halves):
        for (source, target, kind), lives in sorted(half.items(), key=lambda each: _rank(each[0], orders[number : number + 2])):
            thickness = max(lives * scale, _MIN_THICKNESS)
            one, other = nodes[number].get(source), nodes[number + 1].get(target)
            if one is None or other is None:
                continue
            one.after += thickness
            other.before += thickness
            one.lives += lives if number == 0 else 0
            other.lives += lives
            bands.append(_Band(one, other, lives, thickness, kind))
    return [[node for node in column.values() if node.height] for column in nodes], bands


def _rank(band: tuple[str, str, str], orders: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """The sort key of a band. Bands are in the order of their nodes, so that few of them cross."""
    source, target, kind = band
    places = [order.index(name) if name in order else len(order) for name, order in zip((source, target), orders, strict=True)]
    return (*places, kind == "bad")


def _stack(column: Sequence[_Node]) -> float:
    """Place the nodes of a column below each other, with space for their labels. Returns where they end."""
    at = 0.0
    for node in column:
        node.top = at
        at += max(node.height + 7, _LINE)
    return at


def _path(band: _Band, places: Sequence[float], columns: Sequence[Sequence[_Node]]) -> str:
    number = 0 if band.source in columns[0] else 1
    x0, x1 = places[number] + _BAR, places[number + 1]
    y0, y1 = band.source.take("after", band.thickness), band.target.take("before", band.thickness)
    bend, t = (x0 + x1) / 2, band.thickness
    title = f"{_name(band.source)} → {_name(band.target)}: {count(band.lives)}"
    return (
        f'<path class="{band.kind}" d="M{x0:.1f},{y0:.1f}C{bend:.1f},{y0:.1f} {bend:.1f},{y1:.1f} {x1:.1f},{y1:.1f}'
        f'V{y1 + t:.1f}C{bend:.1f},{y1 + t:.1f} {bend:.1f},{y0 + t:.1f} {x0:.1f},{y0 + t:.1f}Z"><title>{title}</title></path>'
    )


def _bar(node: _Node, x: float) -> str:
    return f'<rect class="{node.kind}" x="{x:.1f}" y="{node.top:.1f}" width="{_BAR}" height="{node.height:.1f}"/>'


def _labels(columns: Sequence[Sequence[_Node]], places: Sequence[float], lives: int, *, is_wide: bool) -> list[str]:
    """Names and numbers: of the endings in columns, numbers at the right; of the others next to their bars."""
    openings, ways, endings = columns
    if is_wide:
        parts = [_text(node, 0, "") + _text(node, 162, "number", count(node.lives)) for node in openings]
        parts += [_text(node, places[1] + _BAR + 6, "over", f"{_name(node)} {count(node.lives)}") for node in ways]
    else:
        firsts = [(node, x + _BAR + 5) for column, x in zip((openings, ways), places, strict=False) for node in column]
        parts = [_text(node, x, "over") for node, x in firsts]
    x = places[2] + _BAR
    for node in endings:
        parts += [_text(node, x + 8, node.kind), _text(node, x + (216 if is_wide else 167), "number", count(node.lives))]
        if is_wide:
            parts.append(_text(node, x + 286, "number faint", shown(share(node.lives, lives))))
    return parts


def _text(node: _Node, x: float, kind: str, text: str | None = None) -> str:
    """Text next to a bar: at its middle, or near its top if the bar is long."""
    y = node.top + min(node.height / 2, 2 * _LINE) + 4
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_name(node) if text is None else text}</text>'


def _name(node: _Node) -> str:
    return shown(NAMES.get(node.name, node.name.replace("_", " ")))


_HOUR_MS: Final = 3_600_000
#: Widths of a column, in hours. The smallest width that needs at most `_MAX_COLUMNS` is used.
_WIDTHS: Final = (1, 2, 3, 6, 12, 24, 72, 168, 720, 8760)
_MAX_COLUMNS: Final = 48
_MIN_COLUMNS: Final = 12
_MAX_POINTS: Final = 30


@dataclass(frozen=True, slots=True)
class Span:
    """The count between two times in ms, without the second."""

    from_ms: int
    to_ms: int
    count: int


def over_time(hours: Sequence[Row], *, until_ms: int) -> list[Span]:
    """Put counts by hour (`hour` since the epoch, `letters`) into 12 to 48 columns of equal width, up to `until_ms` or later."""
    first = min(int(row["hour"]) for row in hours)
    last = max(*(int(row["hour"]) for row in hours), min(until_ms // _HOUR_MS, first + _WIDTHS[-1] * _MAX_COLUMNS - 1), first)
    width = next((each for each in _WIDTHS if (last // each) - (first // each) < _MAX_COLUMNS), _WIDTHS[-1])
    end = last // width
    begin = max(min(first // width, end - _MIN_COLUMNS + 1), end - _MAX_COLUMNS + 1)
    counts = dict.fromkeys(range(begin, end + 1), 0)
    for row in hours:
        counts[max(int(row["hour"]) // width, begin)] += int(row["letters"])
    return [Span(at * width * _HOUR_MS, (at + 1) * width * _HOUR_MS, number) for at, number in counts.items()]


def course(values: Sequence[Any]) -> str:
    """The points of a line through the last values, 100 wide and 20 high; empty if there are fewer than three values."""
    known = [float(each) for each in values[-_MAX_POINTS:] if each is not None]
    if len(known) < 3:  # noqa: PLR2004 - two points show no trend
        return ""
    top = max(known) or 1
    return " ".join(f"{100 * at / (len(known) - 1):.1f},{20 - 19 * value / top:.1f}" for at, value in enumerate(known))
