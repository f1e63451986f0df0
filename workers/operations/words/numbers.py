"""Times, ages, durations and counts, as people read and write them. Times are UTC."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

from redelivery.errors import InputError
from redelivery.middleware.messages.events import LATEST_MS
from redelivery.settings.values import MAX_DURATION

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
#: The maximum nesting of a value that is shown, and the text that replaces deeper values.
MAX_DEPTH, TOO_DEEP = 64, "(nested too deep to be shown)"


def moment(ms: float | None) -> str:
    """Return a time (milliseconds since the epoch) in UTC, to the second; `-` if there is none."""
    if ms is None or not 0 <= ms <= LATEST_MS:
        return "-"
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def span(seconds: float) -> str:
    """Return a duration in its two greatest units: `3d 4h`, `2m 5s`, `0.25s`."""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds < 10:  # noqa: PLR2004 - below ten seconds, fractions matter
        return f"{sign}{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    left, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return sign + " ".join(parts[:2])


def seconds_text(seconds: float) -> str:
    """Return a duration in seconds, exact to the millisecond: `0.75 s`."""
    return f"{round(seconds, 3):.12g} s"


def duration_text(seconds: float) -> str:
    """Return a duration in seconds; from a minute on, also in its greatest unit: `600 s (10 min)`."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds_text(seconds)} ({seconds / size:.3g} {unit})"
    return seconds_text(seconds)


def age(ms: int | None, now_ms: int) -> str:
    """Return how long ago a time was; `-` if there is none."""
    if ms is None:
        return "-"
    seconds = (now_ms - ms) / 1000
    return f"{span(round(seconds) if seconds >= 1 else seconds)} ago"


def counted(number: int, one: str, many: str) -> str:
    """`1 letter`, `2 letters`."""
    return f"{number} {one if number == 1 else many}"


def seconds(text: str) -> float:
    """Parse `90`, `90s`, `15m`, `2h`, `3d` or `1w`. Returns seconds. Raises `InputError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])?", text.strip())
    if match is None:
        msg = f"{text!r} is not a duration: write 90s, 15m, 2h, 3d or 1w"
        raise InputError(msg)
    found = float(match[1]) * _UNITS[match[2] or "s"]
    if found > MAX_DURATION:
        msg = f"{text[:40]!r} is too long: at most 100 years can be written"
        raise InputError(msg)
    return found


def plain(value: Any, depth: int = 0) -> Any:
    """Make a value that every JSON parser accepts: without NaN and infinity, and not nested too deep."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth >= MAX_DEPTH:
        return TOO_DEEP
    if isinstance(value, dict):
        return {name: plain(each, depth + 1) for name, each in value.items()}
    return [plain(each, depth + 1) for each in value]


#: The slowest rate, in letters a second: one in an hour.
SLOWEST = 1 / 3600


def rate_of(text: str) -> float:
    """Parse `50`, `50/s`, `600/m` or `1000/h`. Returns letters a second. Raises `InputError`."""
    number, _, unit = text.partition("/")
    try:
        rate = float(number) / {"": 1, "s": 1, "m": 60, "h": 3600}[unit.strip()]
    except (ValueError, KeyError):
        rate = 0.0
    if not SLOWEST <= rate < math.inf:
        msg = f"{text!r} is not a rate: write 50/s, 600/m or 1000/h; the slowest is 1/h"
        raise InputError(msg)
    return rate


def share_of(text: str) -> float:
    """Parse `5%` or `0.5%`. Returns a part of 1. Raises `InputError`."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        msg = f"{text!r} is not a share: write 5% or 0.5%"
        raise InputError(msg)
    return share
