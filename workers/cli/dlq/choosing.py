"""The options that choose dead letters: filters and `--all`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redelivery.errors import InputError
from redelivery.settings.values import suggestion

from ...operations.words.short_ids import hint
from ..terminal.options import SECONDS, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..context import Context


#: In the order in which the help shows them.
choosing = together(
    click.option(
        "--id",
        "task_ids",
        multiple=True,
        metavar="TASK_ID",
        help="The dead letters of this task, by its id or its beginning; may be repeated.",
    ),
    click.option("--all", "everything", is_flag=True, help="All dead letters."),
    click.option("--reason", "reasons", multiple=True, help="Dead letters with this reason; may be repeated."),
    click.option("--task", "tasks", multiple=True, help="Dead letters of this task; a shell pattern."),
    click.option(
        "--exception", "exceptions", multiple=True, help="Dead letters that raised this class: its full name or its last word."
    ),
    click.option("--fingerprint", "fingerprints", multiple=True, help="Dead letters with this fingerprint, or its beginning."),
    click.option("--older-than", type=SECONDS, help="Dead letters that died longer ago than this: 90s, 15m, 2h, 3d."),
    click.option("--newer-than", type=SECONDS, help="Dead letters that died within this time."),
)


def require_choice(options: dict[str, Any], *, all_by_default: bool) -> None:
    """Raise click's usage error with a filter and `--all`. Without both, it is an error too, or it means `--all`."""
    filters = any(value not in (None, ()) for name, value in options.items() if name != "everything")
    if all_by_default and not filters:
        options["everything"] = True
    if options["everything"] and filters:
        msg = "--all means every dead letter: leave it out, or leave the filters out"
        raise click.UsageError(msg)
    if not options["everything"] and not filters:
        msg = "which dead letters? name them with --id, choose them with a filter (--reason, --task, …), or say --all"
        raise click.UsageError(msg)


def require_found(context: Context, name: str, options: dict[str, Any]) -> None:
    """If no letter matched: raise `InputError` if the call named ids, or a task that the app does not have."""
    if options["task_ids"]:
        of_them = f"{', '.join(options['task_ids'])}{hint(options['task_ids'])}"
        msg = f"{name!r} holds no dead letter of task {of_them}: `redelivery task show` says where a task is"
        raise InputError(msg)
    require_tasks(context, f"{name!r} holds no dead letter", options["tasks"])


def require_tasks(context: Context, said: str, tasks: Sequence[str]) -> None:
    """If nothing matched: raise `InputError`, with `said` first, if the app has no task of such a name. Patterns are skipped."""
    for task in tasks:
        if not set("*?[") & set(task) and task not in (names := context.task_names()):
            msg = f"{said} of task {task!r}, and the app has no such task{suggestion(task, names)}"
            raise InputError(msg)
