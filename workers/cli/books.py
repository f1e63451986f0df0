"""`redelivery books`: what a run of the books found, life by life. Needs neither Spark nor an app."""

from __future__ import annotations

import shutil
import sys
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from redelivery.display import harmless

from ..reconciliation.rules import RULES, VERDICTS
from .context import Context, json_option, pass_context
from .output import counted, print_json, safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["books", "told"]


@click.group()
def books() -> None:
    """What a run of the books found."""


@books.command()
@click.argument("output", metavar="FOLDER")
@click.option("--verdict", "verdicts", type=click.Choice(VERDICTS), multiple=True, help="Only these; may be repeated.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="At most so many lives.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="NUMBER", help="Skip so many: the last line names the next.")
@json_option
@pass_context
def show(context: Context, output: str, verdicts: tuple[str, ...], limit: int, after: int) -> None:
    """The lives in FOLDER (the --output of `reconcile`), the worst first: id, cause, and what to do.

    With --json also the events of each life that is wrong.
    """
    from ..reconciliation.pages import page_of  # noqa: PLC0415 - pyarrow is an optional dependency

    page = page_of(output, verdicts=verdicts, limit=limit, after=after, with_history=context.as_json)
    if context.as_json:
        print_json({"total": page.total, "after": page.after, "next": page.next, "lives": page.lives})
        return
    for line in told(page.lives):
        click.echo(line)
    click.echo(_end(output, verdicts, page.total, after + len(page.lives)))
    if page.next is not None:
        chosen = "".join(f" --verdict {each}" for each in verdicts)
        click.echo(f"more: redelivery books show {harmless(output)}{chosen} --limit {limit} --after {page.next}", err=True)


def _end(output: str, verdicts: tuple[str, ...], total: int, shown: int) -> str:
    kinds = " or ".join(name.replace("_", " ") for name in verdicts)
    if total:
        return f"{min(shown, total):,} of {counted(total, 'life', 'lives')}{f' that are {kinds}' if kinds else ''}"
    hint = "; balanced lives are written with `reconcile --all` only" if not verdicts or "balanced" in verdicts else ""
    return f"no life {f'that is {kinds} ' if kinds else ''}in {harmless(output)}{hint}"


def told(lives: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Lines for a terminal: for each verdict its rule and what to do, and the lives that have it with the cause of each."""
    for verdict, those in groupby(lives, key=lambda life: str(life["verdict"])):
        yield from _wrapped(f"{verdict.replace('_', ' ')}: {RULES.get(verdict, '')}", "")
        of_it = list(those)
        if of_it[0]["advice"]:
            yield from _wrapped(f"to do: {safe(of_it[0]['advice'])}", "  ")
        for life in of_it:
            generation = f" (generation {life['generation']})" if life["generation"] else ""
            yield f"  {safe(life['task_id'])}{generation}  {safe(life['queue'])} {safe(life['task'] or '')}".rstrip()
            yield from _wrapped(safe(life["cause"] or ""), "    ")
        yield ""


def _wrapped(text: str, indent: str) -> list[str]:
    """The text between words, as wide as the terminal; on one line where there is none."""
    if not sys.stdout.isatty():
        return [indent + text]
    width = max(shutil.get_terminal_size().columns, 40)
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
