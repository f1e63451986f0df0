"""The screen: how many columns it has, and which colour a word has.

click removes colours if stdout is not a terminal. rich is not used: its tables shrink all columns alike and leave none out, and it
would add four packages to each worker's image.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The key of `--wide` in the `meta` of click's context.
_WIDE = "redelivery.wide"
#: The width of a terminal that does not report it.
DEFAULT_WIDTH = 80

_GOOD, _BAD, _ODD, _QUIET, _LOUD = {"fg": "green"}, {"fg": "red"}, {"fg": "yellow"}, {"dim": True}, {"fg": "red", "bold": True}
#: The words with a colour: outcomes, reasons, verdicts and the first words of lines.
MEANINGS: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(("succeeded", "balanced", "redriven"), _GOOD),
    **dict.fromkeys(("dead_lettered", "exhausted", "max_age", "worker_lost", "time_limit", "undecodable", "unknown_task"), _BAD),
    **dict.fromkeys(("lost", "duplicated", "missing_dead_letter", "phantom_dead_letter", "resurrected", "orphaned"), _BAD),
    **dict.fromkeys(("REFUSED", "error:", "danger"), _LOUD),
    **dict.fromkeys(("discarded", "expired", "revoked", "cancelled", "purged", "ignored", "unobserved", "stuck"), _ODD),
    **dict.fromkeys(("non_retryable", "rejected", "max_length", "invalid", "not_eligible", "operator", "look at", "warning"), _ODD),
    **dict.fromkeys(("published", "received", "deferred", "redelivery_scheduled", "in_flight"), _QUIET),
}


def screen_options() -> list[click.Option]:
    """`--wide` and `--color`, which the root and every command take."""
    colours = click.Choice(["auto", "always", "never"])
    return [
        click.Option(
            ["--wide"],
            is_flag=True,
            expose_value=False,
            callback=_choose_width,
            help="Show tables whole, even if they are wider than the screen.",
        ),
        click.Option(
            ["--color"], type=colours, expose_value=False, callback=_choose_colour, help="When to use colours.  [default: auto]"
        ),
    ]


def _choose_width(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_WIDE] = True


def _choose_colour(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    """Tell click whether to keep colours. By default it keeps them on a terminal."""
    if value is not None:
        ctx.color = {"always": True, "never": False}.get(value)
    if os.environ.get("NO_COLOR") and ctx.color is None:
        ctx.color = False


def screen_width() -> int | None:
    """The width of the terminal. None if nothing may be cut: stdout is not a terminal, or `--wide` was given."""
    context = click.get_current_context(silent=True)
    if not sys.stdout.isatty() or (context is not None and context.meta.get(_WIDE)):
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or DEFAULT_WIDTH
    except OSError:
        return DEFAULT_WIDTH


def coloured(text: str, meaning: str | None = None) -> str:
    """The text in the colour of `meaning`, by default of its first word. Unchanged if that word has no colour."""
    words = text.split() if meaning is None else [meaning]
    style = MEANINGS.get(words[0]) if words else None
    return text if style is None else click.style(text, **style)  # type: ignore[arg-type]


def width_of(text: str) -> int:
    """The number of terminal columns that the text needs."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, width: int, *, keeps_end: bool = False) -> str:
    """Cut the text to `width` columns. `…` replaces its end, or its beginning with `keeps_end`."""
    if width_of(text) <= width:
        return text
    kept, used = [], 1
    for char in reversed(text) if keeps_end else text:
        used += width_of(char)
        if used > width:
            break
        kept.append(char)
    return "…" + "".join(reversed(kept)) if keeps_end else "".join(kept).rstrip() + "…"
