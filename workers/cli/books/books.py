"""`redelivery books`: what a run of `reconcile` found, life by life. It needs no Spark and no app."""

from __future__ import annotations

import click

from redelivery.display import harmless

from ...reconciliation.report.wording import lines_of_lives
from ...reconciliation.rules import VERDICTS
from ..context import Context, json_option, pass_context
from ..terminal.options import whole
from ..terminal.output import OneOf, print_json
from ..terminal.screen import screen_width


@click.group()
def books() -> None:
    """What a run of the books found."""


@books.command()
@click.argument("output", metavar="FOLDER")
@click.option(
    "--verdict",
    "verdicts",
    type=OneOf("verdict", VERDICTS),
    metavar="VERDICT",
    multiple=True,
    help=f"Only lives with this verdict: {', '.join(VERDICTS[:-1])} or {VERDICTS[-1]}. May be repeated.",
)
@click.option("--limit", type=whole(1), default=20, show_default=True, help="At most this many lives.")
@click.option(
    "--after",
    type=whole(0),
    default=0,
    metavar="NUMBER",
    help="Skip this many lives. The last line of a page says the next number.",
)
@json_option
@pass_context
def show(context: Context, output: str, verdicts: tuple[str, ...], limit: int, after: int) -> None:
    """List the lives in FOLDER (the --output of `reconcile`), the worst first: id, cause, and what to do.

    With --json each life that is wrong comes with its events.
    """
    from ...reconciliation.outputs.pages import page_of  # noqa: PLC0415 - pyarrow is an optional dependency

    page = page_of(output, verdicts=verdicts, limit=limit, after=after, with_history=context.as_json)
    if context.as_json:
        print_json({"total": page.total, "after": page.after, "next": page.next, "lives": page.lives})
        return
    for line in lines_of_lives(page.lives, screen_width()):
        click.echo(line)
    click.echo(_end(output, verdicts, page.total, after + len(page.lives)))
    if page.next is not None:
        chosen = "".join(f" --verdict {each}" for each in verdicts)
        click.echo(f"more: redelivery books show {harmless(output)}{chosen} --limit {limit} --after {page.next}", err=True)


def _end(output: str, verdicts: tuple[str, ...], total: int, shown: int) -> str:
    kinds = " or ".join(name.replace("_", " ") for name in verdicts)
    which = f" with the verdict {kinds}" if kinds else ""
    if total:
        return f"{min(shown, total):,} of {total:,} {'life' if total == 1 else 'lives'}{which}"
    hint = "; balanced lives are written with `reconcile --all` only" if not verdicts or "balanced" in verdicts else ""
    return f"no life{which} in {harmless(output)}{hint}"
