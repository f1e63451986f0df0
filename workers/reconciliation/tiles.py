"""The six figures that one looks at every day, each with its change since the run before, and its course over the last runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .plots import spark
from .wording import change, count, counted, duration, moment, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .figures import Figures
    from .trend import Line

__all__ = ["tiles"]


def tiles(figures: Figures, trend: Sequence[Line]) -> str:
    """All six; each is named by the field of the trend that it follows."""
    total = figures.total

    def number(name: str) -> int:
        return int(total.get(name) or 0)

    succeeded, made, wasted = number("succeeded"), number("attempts_made"), number("attempts_wasted")
    half, most, _ = total.get("time_to_success_ms") or (None, None, None)
    first = share(number("succeeded_at_first_attempt"), succeeded)
    dead = share(number("dead_lettered"), number("lives"))
    told = [
        ("Published", count(number("published")), f"and {count(number('redriven'))} redriven", "published"),
        ("Succeeded", count(succeeded), f"{first} at the first attempt", "succeeded"),
        ("Dead letters", count(number("dead_lettered")), f"{dead} of all lives", "dead_lettered"),
        ("Redeliveries", count(number("redeliveries")), f"of {counted(number('delayed_lives'), 'life', 'lives')}", "redeliveries"),
        ("Median to success", duration(half), f"95 % within {duration(most)}", "time_to_success_p50_ms"),
        ("Without success", share(wasted, made), f"of {counted(made, 'attempt', 'attempts')}", "attempts_wasted"),
    ]
    since = f'<p class="note">Changes are since the run as of {moment(trend[-2]["as_of_ms"])} UTC.</p>' if len(trend) > 1 else ""
    return f'<dl class="tiles">{"".join(_tile(*each, trend) for each in told)}</dl>{since}'


def _tile(name: str, value: str, note: str, line: str, trend: Sequence[Line]) -> str:
    course = [each.get(line) for each in trend]
    changed = change(course[-1], course[-2]) if len(course) > 1 else ""
    return (
        f'<div class="tile" data-figure="{line}"><dt>{name}</dt><dd>{value}</dd><p>{note}</p>'
        f'<div class="course">{spark(course)}<span>{changed}</span></div></div>'
    )
