"""`redelivery adopt`: what will change for each task, before anything does.

Enters: an app. Leaves: a table and lines to look at, or with `--json` one object. Asks no broker. Exit code 0, also where there is
something to look at: nothing is wrong yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..operations.adoption import adoption_of
from .context import Context, json_option, pass_context
from .output import counted, print_json, safe, table

if TYPE_CHECKING:
    from ..operations.adoption import Adoption, Change

__all__ = ["adopt"]

HEADINGS = ("task", "queue", "acks_late", "own retries", "policy", "dead letters")


@click.command()
@json_option
@pass_context
def adopt(context: Context) -> None:
    """List what will change for each task, and what to look at first."""
    found = adoption_of(context.runtime)
    if context.as_json:
        print_json(
            {
                "mode": found.mode,
                "tasks": [change.to_json() for change in found.changes],
                "refused": list(found.refused),
                "look_at": list(found.look_at),
            },
        )
        return
    click.echo("\n".join(_lines(found)))


def _lines(found: Adoption) -> list[str]:
    lines = [table([_row(change) for change in found.changes], HEADINGS), ""]
    if found.mode == "observe":
        lines += ["mode is observe: outcomes are recorded, and nothing changes.", ""]
    for each in found.refused:
        lines.append(f"REFUSED  {safe(each)}")
    for each in found.look_at:
        lines.append(f"look at  {safe(each)}")
    for change in found.changes:
        lines += [f"look at  {safe(change.task)}: {safe(each)}" for each in change.look_at]
    refused = f"; no worker starts before {counted(len(found.refused), 'line', 'lines')} above is mended" if found.refused else ""
    return [*lines, f"{counted(len(found.changes), 'task', 'tasks')}{refused}."]


def _row(change: Change) -> tuple[str, ...]:
    now, then = (str(each).lower() for each in change.acks_late)
    own = "no limit" if change.own_retries is None else str(change.own_retries)
    return (
        change.task,
        change.queue,
        now if now == then else f"{now} -> {then}",
        own,
        "not enabled" if not change.enabled else change.delays if change.strategy is None else "its own Strategy's",
        change.dead_letter_queue or "-",
    )
