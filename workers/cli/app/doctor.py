"""`redelivery doctor`: what will hurt, why, and the exact fix."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from redelivery.errors import InputError

from ...operations.doctor.examination import examine
from ...operations.doctor.finding import NAMES
from ...operations.words.numbers import counted
from ..context import Context, json_option, pass_context
from ..terminal.options import SECONDS
from ..terminal.output import OneOf, marked, print_json, table, while_read, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...operations.doctor.examination import Diagnosis
    from ...operations.doctor.finding import Finding

#: The width of the first column: a severity, `why` or `fix`.
MARK = 9


@click.command()
@click.option(
    "--ignore",
    "ignored",
    type=OneOf("finding", NAMES),
    multiple=True,
    metavar="NAME",
    help="Leave out findings of this name; may be repeated.",
)
@click.option(
    "--timeout", type=SECONDS, default="15s", show_default=True, help="How long to wait for the broker and the workers to answer."
)
@json_option
@pass_context
@click.pass_context
def doctor(ctx: click.Context, context: Context, ignored: tuple[str, ...], timeout: float) -> None:
    """Look for what will hurt: in the settings, in the broker, and in the workers that run.

    Each finding says why it hurts, and has a fix to paste. If the broker or a worker does not answer a question, the point is
    listed as not known. Nothing is changed. Exit code: 0 if nothing was found, 1 if something was.
    """
    if timeout <= 0:
        msg = "--timeout: give more than 0 seconds"
        raise InputError(msg)
    context.transport  # noqa: B018 - raises if the broker does not answer
    diagnosis = examine(context.runtime, context.name or context.runtime.app.main or "APP", timeout)
    found = [each for each in diagnosis.findings if each.name not in ignored]
    with while_read():
        if context.as_json:
            print_json(
                {
                    "sound": not found,
                    "findings": [asdict(each) for each in found],
                    "ignored": sorted({each.name for each in diagnosis.findings} & {*ignored}),
                    "not_known": [asdict(each) for each in diagnosis.not_known],
                    "workers": diagnosis.workers,
                }
            )
        elif sys.stdout.isatty():
            click.echo("\n".join(_lines(diagnosis, found)))
        else:
            rows: list[tuple[str, ...]] = [(each.severity, each.name, each.what, each.why, each.fix) for each in found]
            rows += [("not known", "-", each.what, each.why, each.fix) for each in diagnosis.not_known]
            click.echo(table(rows, ("severity", "name", "what", "why", "fix")))
    ctx.exit(1 if found else 0)


def _lines(diagnosis: Diagnosis, found: Sequence[Finding]) -> Iterator[str]:
    for each in found:
        yield marked(each.severity, f"{each.name}: {each.what}", MARK)
        yield marked("why", each.why, MARK)
        yield marked("fix", each.fix, MARK)
        yield ""
    for unknown in diagnosis.not_known:
        yield marked("not known", f"{unknown.what}: {unknown.why}", MARK)
        yield marked("fix", unknown.fix, MARK)
        yield ""
    dangers = sum(each.severity == "danger" for each in found)
    workers = (
        "no worker could be asked"
        if diagnosis.workers is None
        else counted(diagnosis.workers, "worker answered", "workers answered")
    )
    left_out = len(diagnosis.findings) - len(found)
    tail = f"; {left_out} ignored" if left_out else ""
    warnings = counted(len(found) - dangers, "warning", "warnings")
    yield wrapped(f"{counted(dangers, 'danger', 'dangers')}, {warnings}; {workers}{tail}.")
