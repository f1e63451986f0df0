"""`redelivery audit`: what operators did: who, when, what, on which messages, why, and with what result.

On Redis it lists the records of operations and commands; on RabbitMQ, which has no place for these, the newest events that have an
actor, of those that are still in the outcome log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...operations.runs.audit import entries, in_words
from ...operations.runs.operation import is_kept
from ...operations.words.numbers import moment
from ..context import Context, json_option, pass_context
from ..terminal.output import Column, print_json, say, table

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event

    from ...operations.runs.audit import Entry

ENTRIES = (
    Column("when", 1, 10, keeps_end=True),
    Column("who", 2, 6),
    "what",
    Column("queue", 3, 12, keeps_end=True),
    Column("operation", is_id=True, leaves=3),
    Column("on", 5, 12, leaves=4),
    Column("result", 6, 12, leaves=1),
    Column("why", 4, 12, leaves=2),
)
EVENTS = (
    Column("when", 1, 10, keeps_end=True),
    Column("who", 2, 6),
    Column("outcome", is_coloured=True),
    Column("task id", is_id=True),
    Column("task", 3, 14, keeps_end=True),
    Column("queue", 3, 12, keeps_end=True),
)
#: Events that are looked through for those with an actor.
MOST = 10_000


@click.command()
@click.option("--by", "actor", default="", metavar="NAME", help="Only what this actor did.")
@click.option(
    "--operation", default="", metavar="ID", help="Only what was done with this operation: its id, or the beginning of it."
)
@click.option("--letters", is_flag=True, help="List single messages instead, from the newest events of the outcome log.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many, the newest first.")
@json_option
@pass_context
def audit(context: Context, *, actor: str, operation: str, letters: bool, limit: int) -> None:
    """What operators did: who, when, what, on which messages, why, and with what result. The newest first.

    The broker keeps the last 10,000 records. Each message that was changed also has an event with its actor. --letters shows the
    events that are still in the outcome log, `task show` those of one task.
    """
    if letters or not is_kept(context.transport):
        _tell_events(context, actor, limit)
        return
    found = entries(context.transport, limit, actor=actor, operation=operation)
    if context.as_json:
        print_json([each.to_dict() for each in found])
    elif not found:
        say("There are no records.")
    else:
        click.echo(table(list(map(_row, found)), ENTRIES))


def _row(each: Entry) -> tuple[str, ...]:
    on = ", ".join(each.tasks) or each.chosen
    on += f"; edited {', '.join(each.edited)}" if each.edited else ""
    result = each.message or in_words(each.result)
    return moment(each.at_ms), each.actor, f"{each.act} {each.acted}", each.queue, each.operation, on, result, each.why


def _tell_events(context: Context, actor: str, limit: int) -> None:
    with context.outcomes.tail(MOST, is_followed=False) as tail:
        acts = [each for each in tail.events if each.actor and (not actor or each.actor == actor)]
    found: list[Event] = acts[::-1][:limit]
    if context.as_json:
        print_json([each.to_dict() for each in found])
    elif not found:
        say("No event in the outcome log has an actor.")
    else:
        rows = [(moment(each.at_ms), each.actor, each.outcome, each.task_id, each.task, each.queue) for each in found]
        click.echo(table(rows, EVENTS))
