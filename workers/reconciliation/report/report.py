"""The report: the books of one run as one HTML page that opens offline in any browser.

The page is the template `report.html`; this module prepares its values and filters. Names, ids and messages may come from
strangers: everything that the template prints goes through `plain` and is escaped. The page has no script and loads nothing; its
own content policy forbids both.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from ..figures.figures import Figures
from ..figures.metrics import SUMS, TIMES
from ..rules import DISCREPANCIES, RULES, VERDICTS
from .pictures import KINDS, NAMES, course, drawn, over_time
from .wording import change, count, counted, duration, moment, plain, share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jinja2 import Template

    from ..figures.figures import Row
    from .summary import Line, Summary

REPORT: Final = "report.html"
#: The highest number of attempts with its own bar. Higher numbers share one.
_MAX_BARS: Final = 9
#: Longer ids, and longer parts of names, may be broken into several lines.
_LONGEST_ID, _LONGEST_PART = 40, 24
#: The run times without any attempt.
_RAN: Final[dict[str, int | None]] = {"attempts": 0, "timed": 0}


def page(summary: Summary, trend: Sequence[Line]) -> str:
    """The whole page. The last line of the trend is that of this run."""
    figures = summary.figures or Figures()
    return _template().render(
        summary=summary,
        figures=figures,
        total={name: figures.total.get(name) or 0 for name in SUMS},
        times=figures.total.get(TIMES) or (None, None, None),
        trend=trend,
        before=trend[-2] if len(trend) > 1 else {},
        wrong={name: summary.verdicts[name] for name in _by_number(summary, DISCREPANCIES)},
        found=_by_number(summary, VERDICTS),
        ended=_ended(figures.flow),
        attempts=_attempts(figures.attempts),
        ran=_RAN | figures.run_times_in_all,
        reasons=_summed((each["reason"] or "unknown", each["letters"]) for each in figures.hours),
        spans=over_time(figures.hours, until_ms=summary.as_of_ms) if figures.hours else [],
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_harmless, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"count": count, "duration": duration, "moment": moment, "name": _name, "names": _breakable, "id": _id}
    environment.filters |= {"commands": _commands, "earliest": _earliest}
    environment.globals |= {"share": share, "counted": counted, "change": change, "course": course, "drawn": _drawn}
    environment.globals |= {"verdicts": VERDICTS, "discrepancies": DISCREPANCIES, "rules": RULES}
    return environment.from_string((files(__package__) / REPORT).read_text(encoding="utf-8"))


def _harmless(value: Any) -> Any:
    return value if isinstance(value, Markup) else plain(value)


def _drawn(flow: Sequence[Row], **size: int) -> Markup:
    return Markup(drawn(flow, **size))  # noqa: S704 - `drawn` escapes all texts


def _name(verdict: str) -> str:
    return NAMES.get(verdict, verdict.replace("_", " "))


def _breakable(name: str) -> Markup:
    """A name with possible line breaks after dots and underscores, and inside long parts."""
    parts = plain(name).replace(".", ".\0").replace("_", "_\0").split("\0")
    pieces = [part[at : at + _LONGEST_PART] for part in parts for at in range(0, len(part), _LONGEST_PART)]
    return Markup("<wbr>").join(pieces)


def _id(task_id: str) -> Markup:
    """An id on one line, unless it is very long."""
    shown = plain(task_id)
    return Markup('<span class="id{}">{}</span>').format(" long" if len(shown) > _LONGEST_ID else "", shown)


def _commands(text: str) -> Markup:
    """A text whose parts between backticks become code."""
    parts = [escape(each) for each in plain(text).split("`")]
    return Markup().join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _by_number(summary: Summary, names: Iterable[str]) -> list[str]:
    """Those of the verdicts that occur, the most frequent first."""
    return sorted((name for name in names if summary.verdicts[name]), key=lambda name: -summary.verdicts[name])


def _earliest(faults: Iterable[Row]) -> Row:
    examples: list[Row] = [each["first"] for each in faults]
    return min(examples, key=lambda each: (each.get("first_ms") or 0, each["task_id"]))


def _ended(flow: Iterable[Row]) -> dict[str, int]:
    """The number of lives for each ending, in the order of the flow. Lives that were dropped on purpose are one number."""
    kinds = {"gone": "dropped on purpose", "bad": "wrong"}
    ended = _summed((kinds.get(KINDS.get(row["ending"], "gone"), str(row["ending"])), row["lives"]) for row in flow)
    order = ["succeeded", "dead_lettered", "dropped on purpose", "in_flight", "wrong"]
    return {name: ended[name] for name in order if ended.get(name)}


def _attempts(rows: Iterable[Row]) -> dict[str, tuple[int, int]]:
    """Successes and deaths by their number of attempts. Numbers above `_MAX_BARS` share one row."""
    found: dict[str, tuple[int, int]] = {}
    for each in sorted((each for each in rows if each.get("number")), key=lambda each: int(each["number"])):
        name = str(each["number"]) if each["number"] <= _MAX_BARS else f"{_MAX_BARS + 1} or more"
        good, dead = found.get(name, (0, 0))
        found[name] = good + int(each["succeeded"]), dead + int(each["dead_lettered"])
    return found


def _summed(pairs: Iterable[tuple[str, Any]]) -> dict[str, int]:
    """The sum for each name, the largest first."""
    sums: dict[str, int] = {}
    for name, number in pairs:
        sums[name] = sums.get(name, 0) + int(number)
    return dict(sorted(sums.items(), key=lambda each: -each[1]))
