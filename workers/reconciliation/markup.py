"""The few shapes of HTML that the report is made of: a section, a table and its rows, and names that may be broken.

Enters: text that is HTML already (`shown`). Leaves: HTML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .wording import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["broken", "cell", "code", "faint", "row", "section", "table", "two"]


def section(name: str, heading: str, note: str, body: str) -> str:
    """A part of the page, with a heading and a note below it."""
    return f'<section id="{name}"><h2>{heading}</h2><p class="note">{note}</p>{body}</section>'


def two(*parts: str) -> str:
    """Sections beside each other where there is room."""
    return f'<div class="two">{"".join(parts)}</div>' if any(parts) else ""


def table(headings: Iterable[str], rows: Iterable[str], *, kind: str = "") -> str:
    """A table. `#` before a heading: a number; `~`: only where there is room; `-`: no heading."""

    def head(text: str) -> str:
        marks = text[: len(text) - len(text.lstrip("#~-"))]
        names = " ".join(name for mark, name in (("#", "n"), ("~", "wide-only")) if mark in marks)
        return f'<th scope="col" class="{names}">{text.lstrip("#~-")}</th>'

    heads = "".join(head(each) for each in headings)
    return f'<table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def row(*cells: str, **data: str) -> str:
    """A row of cells that are made already; `data` says what it is about."""
    named = "".join(f' data-{name}="{shown(value)}"' for name, value in data.items())
    return f"<tr{named}>{''.join(cells)}</tr>"


def cell(text: str, kind: str = "") -> str:
    """A cell; `kind` are classes: `n` a number, `names`, `full` (the whole width of a narrow page), `strong` or `bad`."""
    return f'<td class="{kind}">{text}</td>'


def faint(text: str) -> str:
    """A second line."""
    return f'<br><span class="faint">{text}</span>'


def broken(name: str) -> str:
    """A stranger's name, which may be broken after its dots and underscores."""
    return shown(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


def code(text: str) -> str:
    """A stranger's text in which whatever stands between backticks is a command."""
    parts = shown(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))
