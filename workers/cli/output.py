"""Output: how what was read is shown, to a person as tables and to a program as JSON.

Enters: rows and values, many of them written by strangers. Leaves: text that moves no cursor: every control character, and every
invisible or direction-changing one, is shown as an escape. JSON is ASCII. Times are UTC.
"""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from redelivery.display import safe
from redelivery.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "SECONDS",
    "age",
    "counted",
    "facts",
    "lines",
    "moment",
    "plain",
    "print_json",
    "safe",
    "seconds",
    "short",
    "span",
    "table",
]

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
#: How deep a value that is shown may be nested, and what stands for what lies below.
MAX_DEPTH, TOO_DEEP = 64, "(nested too deep to be shown)"
_LATEST_MS = 253_402_300_799_999


def short(value: object, width: int) -> str:
    """The same, at most `width` characters wide."""
    text = safe(value if not isinstance(value, str) else value[: width * 4])
    return text if len(text) <= width else text[: width - 1] + "…"


def lines(text: str, indent: str = "  ") -> str:
    """Text of many lines, each harmless, indented."""
    return "\n".join(indent + safe(line) for line in text.splitlines())


def moment(ms: float | None) -> str:
    """A time, milliseconds since the epoch, in UTC to the second; `-` where there is none."""
    if ms is None or not 0 <= ms <= _LATEST_MS:
        return "-"
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def span(seconds: float) -> str:
    """A duration in its two greatest units: `3d 4h`, `2m 5s`, `0.25s`."""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds < 10:  # noqa: PLR2004 - below, tenths say something
        return f"{sign}{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    left, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return sign + " ".join(parts[:2])


def age(ms: int | None, now_ms: int) -> str:
    """How long ago a time was; `-` where there is none."""
    return "-" if ms is None else f"{span((now_ms - ms) / 1000)} ago"


def counted(number: int, one: str, many: str) -> str:
    """`1 letter`, `2 letters`."""
    return f"{number} {one if number == 1 else many}"


def seconds(text: str) -> float:
    """The seconds in `90`, `90s`, `15m`, `2h`, `3d` or `1w`. Raises `InputError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])?", text.strip())
    if match is None:
        msg = f"{text!r} is no duration: write 90s, 15m, 2h, 3d or 1w"
        raise InputError(msg)
    return float(match[1]) * _UNITS[match[2] or "s"]


class _Seconds(click.ParamType[float]):
    """A duration as click takes it."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it. Raises click's usage error."""
        try:
            return value if isinstance(value, float) else seconds(str(value))
        except InputError as exc:
            self.fail(str(exc), param, ctx)


SECONDS = _Seconds()


def table(rows: Sequence[Sequence[object]], headings: Sequence[str]) -> str:
    """Aligned columns, numbers to the right; every cell on one line."""
    cells = [[safe(cell) for cell in row] for row in rows]
    widths = [max(len(heading), *(len(row[at]) for row in cells), 0) for at, heading in enumerate(headings)]
    right = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(headings))]
    aligned = [
        [cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in zip(row, widths, right, strict=True)]
        for row in [list(headings), *cells]
    ]
    return "\n".join("  ".join(row).rstrip() for row in aligned)


def facts(values: Iterable[tuple[str, object]] | Mapping[str, object]) -> str:
    """Name and value, a line each, aligned; what is empty is left out."""
    pairs = values.items() if hasattr(values, "items") else values
    shown = [(name, safe(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in shown)


def plain(value: Any, depth: int = 0) -> Any:
    """A value that JSON has a word for, and that a reader of JSON can take: no NaN, no infinity, and not nested without end."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth >= MAX_DEPTH:
        return TOO_DEEP
    if isinstance(value, dict):
        return {name: plain(each, depth + 1) for name, each in value.items()}
    return [plain(each, depth + 1) for each in value]


def print_json(value: object, *, is_line: bool = False) -> None:
    """One JSON value, alone on stdout; `is_line` keeps it on one line."""
    click.echo(json.dumps(plain(value), indent=None if is_line else 2, default=str).replace("\x7f", "\\u007f"))
