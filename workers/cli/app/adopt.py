"""`redelivery adopt`: what will change for each task, before anything changes.

The app needs no `Redelivery(app)` and no broker. The exit code is 0 even if something needs a look, because nothing is wrong yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from ...operations.adoption.adoption import adoption_of
from ...operations.words.numbers import counted
from ..context import Context, json_option, pass_context
from ..terminal.output import Column, marked, print_json, table
from ..terminal.screen import screen_width

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...operations.adoption.adoption import Adoption, Change

Key = TypeVar("Key")

COLUMNS = (
    Column("tasks"),
    Column("queue", 2, keeps_end=True, leaves=1),
    Column("acks_late", leaves=2),
    Column("own retries", leaves=4),
    Column("policy", 3, 20, leaves=3),
    Column("dead letters", 1, keeps_end=True),
    Column("which", 4, 16),
)
#: The maximum number of tasks that one line on a terminal names. Other output names all.
MAX_NAMED = 3
UNEDITED = "The app has no Redelivery(app) yet: this is what those two lines would change."


@click.command()
@json_option
@pass_context
def adopt(context: Context) -> None:
    """List what changes for each task if the app adopts redelivery, and what to look at first.

    You need not edit the app first: if it has no Redelivery(app), the list shows what these two lines would change.
    """
    found = adoption_of(context.runtime_or_trial)
    if context.as_json:
        print_json(
            {
                "mode": found.mode,
                "installed": context.is_installed,
                "tasks": [change.to_json() for change in found.changes],
                "refused": list(found.refused),
                "look_at": list(found.look_at),
            }
        )
        return
    click.echo("\n".join(_lines(found, is_installed=context.is_installed)))


def _lines(found: Adoption, *, is_installed: bool) -> Iterator[str]:
    if not is_installed:
        yield from (UNEDITED, "")
    rows = _grouped((_row(change), change.task) for change in found.changes)
    yield table([(len(tasks), *row, ", ".join(tasks)) for row, tasks in rows.items()], COLUMNS)
    yield ""
    if found.mode == "observe":
        yield from ("mode is observe: outcomes are recorded, and nothing changes.", "")
    yield from (marked("REFUSED", each) for each in found.refused)
    yield from (marked("look at", each) for each in found.look_at)
    notes = _grouped((each, change.task) for change in found.changes for each in change.look_at)
    yield from (marked("look at", f"{_named(tasks)}: {each}") for each, tasks in notes.items())
    refused = (
        f"; no worker starts before {counted(len(found.refused), 'line', 'lines')} above is corrected" if found.refused else ""
    )
    yield f"{counted(len(found.changes), 'task', 'tasks')}{refused}."


def _grouped(pairs: Iterable[tuple[Key, str]]) -> dict[Key, list[str]]:
    groups: dict[Key, list[str]] = {}
    for key, task in pairs:
        groups.setdefault(key, []).append(task)
    return groups


def _named(tasks: list[str]) -> str:
    shown = tasks if screen_width() is None or len(tasks) <= MAX_NAMED + 1 else tasks[:MAX_NAMED]
    others = len(tasks) - len(shown)
    return ", ".join(shown) + (f" and {others} more" if others else "")


def _row(change: Change) -> tuple[str, ...]:
    now, then = (str(each).lower() for each in change.acks_late)
    own = "no limit" if change.own_retries is None else str(change.own_retries)
    return (
        change.queue,
        now if now == then else f"{now} -> {then}",
        own,
        "not enabled" if not change.enabled else change.delays if change.strategy is None else "its own Strategy's",
        change.dead_letter_queue or "-",
    )
