"""How the report and the terminal write words and numbers, and a run's figures and lives as lines for a terminal.

Texts may come from strangers: control, invisible and direction-changing characters are escaped. The result of `shown` is also safe
in HTML, in content and in a quoted attribute.
"""

from __future__ import annotations

import html
import textwrap
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from redelivery.display import safe
from redelivery.middleware.messages.events import LATEST_MS

from ..rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..figures.figures import Figures, Row

_MAX_LENGTH = 400
#: The text for a missing value.
_MINUS: Final = "\N{MINUS SIGN}"
NONE: Final = "\N{EN DASH}"


def shown(value: object) -> str:
    """Text for HTML, cut after 400 characters."""
    return html.escape(plain(value))


def plain(value: object) -> str:
    """Text for a terminal, cut after 400 characters."""
    text = str(value)
    return safe(text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…")


def count(number: float | None) -> str:
    """`12,345`; a dash for None."""
    return NONE if number is None else f"{number:,.0f}"


def counted(number: int, one: str, many: str) -> str:
    """`1 life`, `2 lives`."""
    return f"{number:,} {one if number == 1 else many}"


def share(part: float | None, whole: float | None) -> str:
    """A share in per cent, to about two digits. 0 and 100 are shown only if they are exact."""
    if not whole or part is None:
        return NONE
    percent = 100 * part / whole
    if percent in {0, 100}:
        return f"{percent:.0f} %"
    if percent < 0.01:  # noqa: PLR2004 - for a smaller share, read the counts
        return "< 0.01 %"
    if percent > 99.99:  # noqa: PLR2004 - as above
        return "> 99.99 %"
    if percent > 99:  # noqa: PLR2004 - here the distance from 100 matters
        return f"{percent:.2f} %"
    return f"{float(f'{percent:.2g}'):.{2 if percent < 1 else 1 if percent < 10 else 0}f} %"  # noqa: PLR2004 - two digits


def duration(ms: float | None) -> str:
    """A time in a fitting unit, to three digits: `7 ms`, `1.25 s`, `4.5 min`, `3 h`, `2.1 d`; a dash for None."""
    if ms is None:
        return NONE
    for unit, size, until in (("ms", 1, 1000), ("s", 1000, 120_000), ("min", 60_000, 3_600_000), ("h", 3_600_000, 172_800_000)):
        if abs(ms) < until:
            return f"{_digits(ms / size)} {unit}"
    return f"{_digits(ms / 86_400_000)} d"


def _digits(number: float) -> str:
    """A number with three significant digits; from 100 on a whole number."""
    written = f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"  # noqa: PLR2004 - three digits
    return f"{float(written):g}"


def moment(ms: float | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """A time (ms since the epoch) in UTC; a dash for None."""
    if ms is None or not 0 <= ms <= LATEST_MS:
        return NONE
    return f"{datetime.fromtimestamp(ms / 1000, UTC):{form}}"


def change(now: float | None, before: float | None) -> str:
    """The change in per cent, or as a factor from 2 on; empty if there is nothing to compare."""
    if now is None or before is None or (before == 0 and now != 0):
        return "" if not now else "new"
    if now == before:
        return "as before"
    ratio = now / before
    if ratio >= 2:  # noqa: PLR2004 - from twice on, factors are easier to read
        return f"\N{MULTIPLICATION SIGN}{_digits(ratio)}"
    percent = 100 * abs(ratio - 1)
    return f"{'+' if ratio > 1 else _MINUS}{percent:.{0 if percent >= 10 else 1}f} %"  # noqa: PLR2004 - two digits


#: The maximum number of causes and of slow queues in the lines.
_MAX_LINES: Final = 3
_MIN_WIDTH: Final = 40


def lines_of(figures: Figures) -> list[str]:
    """Lines about times to success, wasted attempts, causes of death and slow queues. Lines without a figure are left out."""
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
    lines += [_death(row) for row in figures.causes[:_MAX_LINES]]
    slow = [each for each in figures.queues if each.get("time_to_success_ms")][:_MAX_LINES]
    lines += [
        f"  {duration(row['time_to_success_ms'][1]):>9}  or less for 95 % of the successes on {plain(row['queue'])}" for row in slow
    ]
    return lines


def _death(row: Row) -> str:
    reason = plain(row["reason"] or "unknown")
    how = f"died of {plain(row['exception'])} ({reason})" if row["exception"] else f"died as {reason}"
    return f"  {count(row['letters']):>9}  {how} on {plain(row['queue'])}, such as {plain(row['example'])}"


def lines_of_lives(lives: Iterable[Row], width: int | None) -> Iterator[str]:
    """For each verdict: its rule, the advice, and its lives with their causes."""
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
    """Wrap the line to `width` columns (None: do not wrap). Later lines are indented by `hang` columns."""
    if width is None:
        return line
    given: Any = {"subsequent_indent": " " * hang, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.wrap(line, max(width, _MIN_WIDTH), **given)) if line else line
