"""The report: the books of one run as one HTML page, which opens offline in any browser and is read in a minute.

The page is the template `report.html`; this module gives it what it needs besides the summary and its figures. Anybody may have
written the names, ids and messages: everything that the template prints goes through `plain` and is escaped. The page has no script
and refers to nothing outside itself; its own content policy forbids it too.
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
#: Attempts that have a bar of their own; the rest share one.
_MAX_BARS: Final = 9
#: Longer texts are broken: an id to fit on a narrow page, a part of a name to leave room for other columns.
_LONGEST_ID, _LONGEST_PART = 40, 24
#: The run times if no attempt is known.
_RAN: Final[dict[str, int | None]] = {"attempts": 0, "timed": 0}


def page(summary: Summary, trend: Sequence[Line]) -> str:
    """The whole page; the last line of the trend is this run's own."""
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
    environment.filters |= {"count": count, "duration": duration, "moment": moment, "name": _name, "names": _broken, "id": _id}
    environment.filters |= {"commands": _commands, "earliest": _earliest}
    environment.globals |= {"share": share, "counted": counted, "change": change, "course": course, "drawn": _drawn}
    environment.globals |= {"verdicts": VERDICTS, "discrepancies": DISCREPANCIES, "rules": RULES}
    return environment.from_string((files(__package__) / REPORT).read_text(encoding="utf-8"))


def _harmless(value: Any) -> Any:
    """A printed value: markup as it is, anything else as text without control characters."""
    return value if isinstance(value, Markup) else plain(value)


def _drawn(flow: Sequence[Row], **size: int) -> Markup:
    return Markup(drawn(flow, **size))  # noqa: S704 - it escapes what strangers wrote


def _name(verdict: str) -> str:
    """A verdict or an ending as people write it."""
    return NAMES.get(verdict, verdict.replace("_", " "))


def _broken(name: str) -> Markup:
    """A name that may be broken after its dots and underscores, and inside a long part; never inside a short part."""
    parts = plain(name).replace(".", ".\0").replace("_", "_\0").split("\0")
    pieces = [part[at : at + _LONGEST_PART] for part in parts for at in range(0, len(part), _LONGEST_PART)]
    return Markup("<wbr>").join(pieces)


def _id(task_id: str) -> Markup:
    """An id on one line, unless somebody made it very long."""
    shown = plain(task_id)
    return Markup('<span class="id{}">{}</span>').format(" long" if len(shown) > _LONGEST_ID else "", shown)


def _commands(text: str) -> Markup:
    """A text in which the parts between backticks are commands."""
    parts = [escape(each) for each in plain(text).split("`")]
    return Markup().join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _by_number(summary: Summary, names: Iterable[str]) -> list[str]:
    """The verdicts that any life has, the most frequent first."""
    return sorted((name for name in names if summary.verdicts[name]), key=lambda name: -summary.verdicts[name])


def _earliest(faults: Iterable[Row]) -> Row:
    """The example with the earliest first event."""
    examples: list[Row] = [each["first"] for each in faults]
    return min(examples, key=lambda each: (each.get("first_ms") or 0, each["task_id"]))


def _ended(flow: Iterable[Row]) -> dict[str, int]:
    """How many lives had each ending, in the order of the flow; those that were dropped on purpose are one number."""
    kinds = {"gone": "dropped on purpose", "bad": "wrong"}
    ended = _summed((kinds.get(KINDS.get(row["ending"], "gone"), str(row["ending"])), row["lives"]) for row in flow)
    order = ["succeeded", "dead_lettered", "dropped on purpose", "in_flight", "wrong"]
    return {name: ended[name] for name in order if ended.get(name)}


def _attempts(rows: Iterable[Row]) -> dict[str, tuple[int, int]]:
    """Successes and deaths by the number of their attempts; all large numbers are one row."""
    found: dict[str, tuple[int, int]] = {}
    for each in sorted((each for each in rows if each.get("number")), key=lambda each: int(each["number"])):
        name = str(each["number"]) if each["number"] <= _MAX_BARS else f"{_MAX_BARS + 1} or more"
        good, dead = found.get(name, (0, 0))
        found[name] = good + int(each["succeeded"]), dead + int(each["dead_lettered"])
    return found


def _summed(pairs: Iterable[tuple[str, Any]]) -> dict[str, int]:
    """The sum of each name, the greatest first."""
    sums: dict[str, int] = {}
    for name, number in pairs:
        sums[name] = sums.get(name, 0) + int(number)
    return dict(sorted(sums.items(), key=lambda each: -each[1]))
