"""The trend: a line for each run of the books, so that a run can be compared with those before it.

It is kept in the output (`trend.json`, the oldest line first) and carried on from there: from the output that is replaced, and from
the state, which has it as well. A run over the same inputs replaces its own line, so that the same inputs give the same trend.

Enters: the lines of earlier outputs, and this run's summary and figures. Leaves: at most `MAX_RUNS` lines.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from redelivery.errors import InputError

from .figures import Figures
from .rules import DISCREPANCIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .files import Files
    from .summary import Summary

TREND: Final = "trend.json"
MAX_RUNS: Final = 60

_OF_THE_SUMMARY: Final = ("as_of_ms", "balanced", "events", "lives", "possible_repeats", "dead_letters_held")
_OF_THE_FIGURES: Final = (
    "published",
    "redriven",
    "redriven_succeeded",
    "succeeded",
    "succeeded_at_first_attempt",
    "dead_lettered",
    "redeliveries",
    "attempts_made",
    "attempts_wasted",
    "in_flight",
)

Line = dict[str, Any]


def read_trend(files: Files, output: str) -> list[Line]:
    """The lines of an earlier output; none where it has none. Raises `InputError` where the file is not ours."""
    text = files.read(f"{output.rstrip('/')}/{TREND}")
    if text is None:
        return []
    try:
        lines = json.loads(text)
        return [dict(line) | {"as_of_ms": int(line["as_of_ms"])} for line in lines]
    except (ValueError, TypeError, KeyError) as exc:
        msg = f"{output}/{TREND} is no trend of these books ({exc}): remove it, or name another output"
        raise InputError(msg) from exc


def write_trend(files: Files, lines: list[Line], folder: str) -> None:
    """Write the lines."""
    files.write(f"{folder.rstrip('/')}/{TREND}", json.dumps(lines, indent=1) + "\n")


def line_of(summary: Summary) -> Line:
    """What is remembered of a run."""
    figures = summary.figures or Figures()
    p50, p95, p99 = figures.total.get("time_to_success_ms") or (None, None, None)
    return {
        **{name: getattr(summary, name) for name in _OF_THE_SUMMARY},
        "discrepancies": sum(summary.verdicts[name] for name in DISCREPANCIES),
        "gaps": len(summary.gaps),
        **{name: figures.total.get(name, 0) for name in _OF_THE_FIGURES},
        **{f"time_to_success_p{p}_ms": None if at is None else round(at) for p, at in ((50, p50), (95, p95), (99, p99))},
    }


def merged(earlier: Iterable[Line], line: Line) -> list[Line]:
    """The lines of earlier runs and this one's, by the moments that they were counted up to."""
    by_moment = {each["as_of_ms"]: each for each in earlier if each["as_of_ms"] < line["as_of_ms"]}
    return [*[by_moment[at] for at in sorted(by_moment)][-(MAX_RUNS - 1) :], line]
