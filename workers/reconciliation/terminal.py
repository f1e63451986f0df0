"""The figures of a run in a few lines, and lives with their verdicts, for a terminal.

The lines move no cursor, whatever the names in them are. Where a screen's `width` is given, they end between two words.
"""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from .rules import RULES
from .wording import count, duration, plain, share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .figures import Figures, Row

_MOST: Final = 3
#: Columns below which a text is not made narrower.
_LEAST: Final = 40


def lines_of(figures: Figures) -> list[str]:
    """What took how long, what was for nothing, what died of what, and which queues are slow; what there is none of is left out."""
    total = figures.total
    lines = []
    if total.get("time_to_success_ms"):
        first = share(total["succeeded_at_first_attempt"], total["succeeded"])
        half, most, nearly = (duration(each) for each in total["time_to_success_ms"])
        lines.append(
            f"{first} of the successes came at the first attempt; half within {half}, 95 % within {most}, 99 % within {nearly}."
        )
    if total.get("attempts_wasted"):
        lines.append(
            f"{count(total['attempts_wasted'])} of {count(total['attempts_made'])} attempts "
            f"({share(total['attempts_wasted'], total['attempts_made'])}) brought no success."
        )
    if total.get("redriven"):
        lines.append(f"{count(total['redriven_succeeded'])} of {count(total['redriven'])} redriven succeeded.")
    lines += [_death(row) for row in figures.causes[:_MOST]]
    slow = [each for each in figures.queues if each.get("time_to_success_ms")][:_MOST]
    lines += [
        f"  {duration(row['time_to_success_ms'][1]):>9}  or less for 95 % of the successes on {plain(row['queue'])}" for row in slow
    ]
    return lines


def _death(row: Row) -> str:
    what = " ".join(plain(each) for each in (row["reason"] or "unknown", row["exception"]) if each)
    return f"  {count(row['letters']):>9}  died of {what} on {plain(row['queue'])}, such as {plain(row['example'])}"


def lives_told(lives: Iterable[Row], width: int | None = None) -> Iterator[str]:
    """For each verdict its rule and what to do, and below it the lives that have it with the cause of each."""
    for verdict, those in groupby(lives, key=lambda life: str(life["verdict"])):
        yield fitted(f"{verdict.replace('_', ' ')}: {RULES.get(verdict, '')}", width)
        of_it = list(those)
        if of_it[0]["advice"]:
            yield fitted(f"  to do: {plain(of_it[0]['advice'])}", width, 2)
        for life in of_it:
            generation = f" (generation {life['generation']})" if life["generation"] else ""
            yield f"  {plain(life['task_id'])}{generation}  {plain(life['queue'])} {plain(life['task'] or '')}".rstrip()
            yield fitted(f"    {plain(life['cause'] or '')}", width, 4)
        yield ""


def fitted(line: str, width: int | None, hang: int = 0) -> str:
    """The line as lines of at most so many columns, the later ones `hang` columns in; as it is without a width."""
    if width is None:
        return line
    given: Any = {"subsequent_indent": " " * hang, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.wrap(line, max(width, _LEAST), **given)) if line else line
