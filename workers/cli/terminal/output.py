"""Output: tables for a person, JSON for a program.

Values may come from strangers, so every control, invisible or direction-changing character is escaped: no text can move the cursor.
JSON is ASCII. Times are UTC.
"""

from __future__ import annotations

import json
import os
import select
import sys
import textwrap
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from redelivery.display import harmless, safe
from redelivery.settings.values import suggestion

from ...operations.words.numbers import plain
from ...operations.words.short_ids import is_whole
from .screen import coloured, cut, screen_width, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: The minimum number of characters of a UUID in a table; the space between two columns; the indentation.
SHORT_ID, GAP, INDENT = 8, "  ", "  "
#: The minimum width of a column on a very narrow terminal.
MIN_WIDTH = 4


@contextmanager
def while_read() -> Iterator[None]:
    """Stop printing if the reader of stdout is gone (as with `| head`). The command keeps its own exit code."""
    try:
        yield
    except BrokenPipeError:
        write_no_more()


def is_unread() -> bool:
    """Whether the reader of stdout is gone. A closed connection to the broker raises the same error."""
    with suppress(ValueError, OSError):  # stdout may be a stream without a file
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
        return bool(watched.poll(0))
    return False


def write_no_more() -> None:
    """Discard what stdout has buffered. Otherwise the interpreter would fail at its exit to flush it."""
    with suppress(ValueError, OSError):  # stdout may be a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def short(value: object, width: int) -> str:
    """The value as safe text of at most `width` characters."""
    text = safe(value if not isinstance(value, str) else value[: width * 4])
    return text if len(text) <= width else text[: width - 1] + "…"


def lines(text: str) -> str:
    """Make each line of the text safe, and indent it."""
    return "\n".join(INDENT + safe(line) for line in text.splitlines())


def sentence(text: str) -> str:
    """Make each line safe, indent it, and wrap it on a terminal."""
    return "\n".join(wrapped(line, len(INDENT)) for line in lines(text).splitlines())


class OneOf(click.Choice[str]):
    """One of these names. The error for another text suggests the nearest name, or lists all."""

    def __init__(self, what: str, names: Sequence[str]) -> None:
        super().__init__(names)
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's
        """Check the name. Raises click's usage error."""
        if value in self.choices:
            return str(value)
        near = suggestion(value, self.choices) or f"; known are {', '.join(self.choices)}"
        msg = f"there is no {self._what} {value!r}{near}"
        raise click.UsageError(msg, ctx)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    If the table is too wide, the column with the highest `gives` is cut first, down to `least` characters; 0 is never cut. If that
    is not enough, the column with the highest `leaves` is left out first; 0 always stays. `keeps_end` cuts the beginning (dotted
    names). `is_id` shortens UUIDs as far as they stay different; other ids keep a third of the screen, and half of it if that tells
    them apart. `is_coloured` gives words the colour of their meaning. `usual` is the minimum width of the column if more rows
    follow later.
    """

    heading: str
    gives: int = 0
    least: int = 8
    leaves: int = 0
    keeps_end: bool = False
    usual: int = 0
    is_id: bool = False
    is_coloured: bool = False


def table(
    rows: Sequence[Sequence[object]],
    columns: Sequence[Column | str],
    *,
    indent: str = "",
    has_headings: bool = True,
    is_followed: bool = False,
) -> str:
    """A line for each row, below the headings. `is_followed`: later calls print more rows below these.

    On a terminal the columns are aligned, numbers to the right, and cut to its width unless `--wide` is given. Otherwise they are
    separated by tabs and not cut.
    """
    chosen = [Column(each) if isinstance(each, str) else each for each in columns]
    cells = [[safe(cell) for cell in row] for row in rows]
    headings = [[each.heading for each in chosen]] if has_headings else []
    if not sys.stdout.isatty():
        return "\n".join(indent + "\t".join(row) for row in [*headings, *_in_colours(cells, chosen)])
    limit = screen_width()
    if limit is not None:
        _shorten_ids(cells, chosen, limit)
    natural = [
        max(each.usual if is_followed else 0, width_of(each.heading), *(width_of(row[at]) for row in cells))
        for at, each in enumerate(chosen)
    ]
    widths = natural if limit is None else _fitted(natural, chosen, limit - len(indent))
    is_right = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(chosen))]
    layout = [(at, each, widths[at], is_right[at]) for at, each in enumerate(chosen) if widths[at]]
    lines = [*(_line(row, layout, is_heading=True) for row in headings), *(_line(row, layout) for row in cells)]
    dropped = [each.heading for each, width in zip(chosen, widths, strict=True) if not width]
    shown = [indent + line for line in lines]
    if dropped and has_headings:
        note = wrapped(f"{indent}(no room for: {', '.join(dropped)}; see --wide)", len(indent) + 1)
        shown.append(click.style(note, dim=True))
    return "\n".join(shown)


def _in_colours(cells: list[list[str]], columns: Sequence[Column]) -> list[list[str]]:
    return [[coloured(cell) if column.is_coloured else cell for cell, column in zip(row, columns, strict=True)] for row in cells]


def _shorten_ids(cells: list[list[str]], columns: Sequence[Column], limit: int) -> None:
    """Cut ids without a mark: such a beginning can be pasted into a command."""
    for at in (at for at, each in enumerate(columns) if each.is_id):
        ids = {row[at] for row in cells}
        length = SHORT_ID
        while len({each[:length] for each in ids}) < len(ids):
            length += 1
        others = max(limit // 3, min(length, limit // 2))
        for row in cells:
            row[at] = row[at][: length if is_whole(row[at]) else others]


def _fitted(natural: Sequence[int], columns: Sequence[Column], limit: int) -> list[int]:
    """The widths of columns that fit into `limit` characters, gaps included; 0 for a column that is left out.

    On a very narrow terminal, columns with `gives` may become narrower than their `least`.
    """
    giving = sorted((at for at, each in enumerate(columns) if each.gives), key=lambda at: -columns[at].gives)
    leaving = sorted((at for at, each in enumerate(columns) if each.leaves), key=lambda at: -columns[at].leaves)
    widths, over = list[int](), 0
    for left_out in range(len(leaving) + 1):
        widths = [0 if at in leaving[:left_out] else width for at, width in enumerate(natural)]
        over = sum(widths) + len(GAP) * (len(widths) - left_out - 1) - limit
        for at in giving:
            given = min(max(over, 0), max(widths[at] - columns[at].least, 0))
            widths[at], over = widths[at] - given, over - given
        if over <= 0:
            break
    for at in giving:
        given = min(max(over, 0), max(widths[at] - MIN_WIDTH, 0))
        widths[at], over = widths[at] - given, over - given
    return widths


def _line(row: Sequence[str], layout: Sequence[tuple[int, Column, int, bool]], *, is_heading: bool = False) -> str:
    shown = []
    for at, column, width, is_right in layout:
        text = cut(row[at], width, keeps_end=column.keeps_end and not is_heading)
        room = " " * (width - width_of(text))
        if is_heading:
            text = click.style(text, bold=True)
        elif column.is_coloured:
            text = coloured(text, row[at].partition(" ")[0])
        shown.append(room + text if is_right else text + room)
    return GAP.join(shown).rstrip()


def facts(values: Mapping[str, object], indent: str = "") -> str:
    """A line for each name and value, without empty values. Aligned on a terminal; otherwise separated by a tab."""
    shown = [(name, safe(value)) for name, value in values.items() if value not in (None, "")]
    if not sys.stdout.isatty():
        return "\n".join(f"{indent}{name}\t{value}" for name, value in shown)
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(wrapped(f"{indent}{name.ljust(width)}{GAP}{value}", len(indent) + width + len(GAP)) for name, value in shown)


def say(text: str, *, err: bool = False, hang: int = 0) -> None:
    """Print a sentence; with `err` on stderr, for text that is not part of the result. `hang` indents its later lines."""
    click.echo(wrapped(text, hang) if not err or sys.stderr.isatty() else text, err=err)


def wrapped(text: str, hang: int = 0) -> str:
    """Wrap a sentence between words on a terminal, and indent its later lines by `hang`."""
    limit = screen_width()
    if limit is None or width_of(text) <= limit:
        return text
    lines = textwrap.wrap(
        text, limit, subsequent_indent=" " * hang, drop_whitespace=True, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def marked(mark: str, text: str, width: int = 0) -> str:
    """Text behind a coloured mark, which is padded to `width`; on a terminal it is wrapped."""
    line = wrapped(f"{mark:<{width}}  {safe(text)}", max(len(mark), width) + 2)
    return coloured(mark, mark) + line.removeprefix(mark)


def print_error(text: str) -> None:
    """Write an error to stderr; on a terminal it is wrapped, and `error:` is red."""
    line = f"redelivery: error: {harmless(text)}"
    shown = wrapped(line, 2) if sys.stderr.isatty() else line
    click.echo(shown.replace("error:", coloured("error:"), 1), err=True)


def usage_message(exc: click.ClickException) -> str:
    """The text of click's error about a command line, with the help command to read."""
    said = exc.format_message().rstrip(".")
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    where = "" if context is None else f" (see {context.command_path} --help)"
    return f"{said[:1].lower()}{said[1:]}{where}"


def print_json(value: object, *, is_line: bool = False) -> None:
    """Print a JSON value on stdout; with `is_line`, on one line."""
    click.echo(json.dumps(plain(value), indent=None if is_line else 2, default=str).replace("\x7f", "\\u007f"))
