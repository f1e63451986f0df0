"""`redelivery audit`: what operators did: who, when, what, on which messages, why, and with what result.

It lists the audit's records, or the outcome events that have an actor. It reads older ones from an export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redelivery.display import safe

from ...operations.runs.audit import in_words
from ...operations.runs.audit_history import acts, history
from ...operations.words.numbers import moment
from ..context import Context, exported_option, json_option, pass_context
from ..terminal.options import whole
from ..terminal.output import Column, print_json, say, table

if TYPE_CHECKING:
    from ...operations.runs.audit import Entry

ENTRIES = (
    "when",
    Column("who", 2, 6),
    "what",
    Column("queue", 3, 12, keeps_end=True),
    Column("operation", is_id=True, leaves=3),
    Column("on", 5, 12, leaves=4),
    Column("result", 6, 10, leaves=1),
    Column("why", 4, 10, leaves=2),
)
EVENTS = (
    "when",
    Column("who", 2, 6),
    Column("outcome", is_coloured=True),
    Column("task id", is_id=True),
    Column("task", 3, 14, keeps_end=True),
    Column("queue", 3, 12, keeps_end=True),
)


@click.command()
@click.option("--by", "actor", default="", metavar="NAME", help="Only what this actor did.")
@click.option(
    "--operation", default="", metavar="ID", help="Only what was done with this operation: its id, or the beginning of it."
)
@click.option("--letters", is_flag=True, help="List single messages instead, from the newest events of the outcome log.")
@click.option("--limit", type=whole(1), default=50, show_default=True, help="At most this many, the newest first.")
@click.option(
    "--scan", type=whole(1), default=100_000, show_default=True, help="Look at about this many exported records or events."
)
@exported_option("records")
@json_option
@pass_context
def audit(context: Context, *, actor: str, operation: str, letters: bool, limit: int, scan: int, uri: str | None) -> None:
    """What operators did: who, when, what, on which messages, why, and with what result. The newest first.

    The broker keeps the last 10,000 records (RabbitMQ: 8 MiB of them), and an export all. Exported records are read, too, if
    --outcomes or the settings say where they are. Each message that was changed also has an event with its actor: --letters shows
    the newest of these, `task show` those of one task.
    """
    if letters:
        found = acts(context.runtime, limit, actor=actor, outcomes=uri, most=scan)
        rows: list[tuple[object, ...]] = [
            (moment(each.at_ms), each.actor, each.outcome, each.task_id, each.task, each.queue) for each in found.events
        ]
        nothing = "No event in the outcome log has an actor."
    else:
        context.transport  # noqa: B018 - raises if the broker does not answer
        found = history(context.runtime, limit, actor=actor, operation=operation, outcomes=uri, most=scan)
        rows = [_row(each) for each in found.entries]
        nothing = "There are no records. `redelivery audit --letters` lists the messages that operators changed."
    for note in found.notes:
        say(safe(note), err=True)
    if context.as_json:
        print_json([each.to_dict() for each in found.entries] or [each.to_dict() for each in found.events])
    elif not rows:
        say(nothing)
    else:
        click.echo(table(rows, EVENTS if letters else ENTRIES))


def _row(each: Entry) -> tuple[str, ...]:
    on = ", ".join(each.tasks) or each.chosen
    on += f"; edited {', '.join(each.edited)}" if each.edited else ""
    result = each.message or in_words(each.result)
    return moment(each.at_ms), each.actor, f"{each.act} {each.acted}", each.queue, each.operation, on, result, each.why
