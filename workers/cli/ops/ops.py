"""`redelivery ops`: see, pause, resume and abort the operations that the broker keeps and a worker carries out.

`--detach` begins one (`dlq redrive`, `dlq move`, `dlq purge`, `delayed cancel`), or the operator's page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redelivery.display import safe

from ...operations.runs import operation as operations
from ...operations.runs.audit import in_words
from ...operations.words.numbers import age, counted, moment, span
from ..context import Context, json_option, pass_context
from ..terminal.options import whole
from ..terminal.output import Column, facts, lines, print_json, say, table
from .acting import acting

if TYPE_CHECKING:
    from ...operations.runs.operation import Operation

OPERATIONS = (
    Column("id", is_id=True),
    "kind",
    Column("queue", 2, 12, keeps_end=True),
    Column("state", is_coloured=True),
    Column("moved", leaves=2),
    Column("by", 1, 6, leaves=3),
    Column("begun", leaves=4),
    Column("says", 3, 16, leaves=1),
)
DEATHS = (
    Column("task id", is_id=True),
    Column("queue", 2, 12, keeps_end=True),
    Column("reason", is_coloured=True),
    Column("exception", 3, 20),
)


@click.group()
def ops() -> None:
    """Operations that workers carry out: how far they are; pause, resume, abort them."""


@ops.command("list")
@click.option("--open", "is_open", is_flag=True, help="Only operations that have not ended.")
@click.option("--limit", type=whole(1), default=20, show_default=True, help="At most this many, the newest first.")
@json_option
@pass_context
def list_(context: Context, *, is_open: bool, limit: int) -> None:
    """The operations, the newest first. The broker keeps the last 1,000."""
    found, now = operations.listed(context.runtime, limit=limit, is_open=is_open), context.transport.now_ms()
    if context.as_json:
        print_json([each.to_dict() for each in found])
        return
    if not found:
        say("No operation is under way." if is_open else "There are no operations.")
        return
    click.echo(table([_row(each, now) for each in found], OPERATIONS))


@ops.command()
@click.argument("operation_id", metavar="ID")
@json_option
@pass_context
def show(context: Context, operation_id: str) -> None:
    """One operation, by its id or the beginning of it: what was asked for, how far it is, and what stays."""
    found = operations.found(context.runtime, operation_id)
    if context.as_json:
        print_json(found.to_dict())
        return
    now = context.transport.now_ms()
    ended = found.ended_ms or now
    shown = {
        "id": found.id,
        "operation": found.kind,
        "queue": found.queue or "all",
        "state": found.state,
        "says": found.message,
        "chosen": in_words(found.filter.to_dict()) or "all",
        "options": in_words({name.replace("_", "-"): said for name, said in found.options.in_words().items()}),
        "by": found.actor,
        "why": found.why,
        "begun": moment(found.created_ms),
        "ran": "" if found.started_ms is None else span((ended - found.started_ms) / 1000),
        "ended": "" if found.ended_ms is None else moment(found.ended_ms),
        "last heard of": "" if found.has_ended or found.heartbeat_ms is None else age(found.heartbeat_ms, now),
        "looked at": f"{found.looked_at:,} of {found.total:,}",
        "chosen so far": found.matched,
        "moved": found.moved,
        "died again": found.died_again or "",
        "left meanwhile": found.gone or "",
    }
    click.echo(facts(shown))
    if found.by_target:
        went = sorted(found.by_target.items(), key=lambda each: each[1], reverse=True)
        click.echo("\n" + table(went, (Column("went to", 1), "messages")))
    if found.left:
        click.echo("\ncannot go\n" + lines("\n".join(f"{count}: {why}" for why, count in found.left.items())))
    if found.deaths:
        rows = [tuple(str(each.get(name) or "-") for name in ("task_id", "queue", "reason", "exception")) for each in found.deaths]
        click.echo("\n" + table(rows, DEATHS))


def _change(name: str, text: str) -> None:
    @ops.command(name, help=text)
    @click.argument("operation_id", metavar="ID")
    @acting
    @json_option
    @pass_context
    def command(context: Context, operation_id: str, *, actor: str, why: str) -> None:
        done = operations.turn(context.runtime, operation_id, name, actor, why)
        if context.as_json:
            print_json(done.to_dict())
        else:
            moved = counted(done.moved, "message has", "messages have")
            say(f"The {done.kind} {done.id[:8]} of {safe(done.queue or 'all queues')} is {done.state}: {moved} moved.")


_change("pause", "Stop an operation until it is resumed. When this command returns, none of its messages moves.")
_change("resume", "Continue a paused operation where it stopped.")
_change("abort", "End an operation. When this command returns, none of its messages moves. Messages that have moved stay there.")


def _row(found: Operation, now: int) -> tuple[str, ...]:
    begun, says = age(found.created_ms, now), found.message or found.why
    return found.id, found.kind, found.queue or "all", found.state, _how_far(found), found.actor, begun, says


def _how_far(found: Operation) -> str:
    return f"{found.moved:,} of {found.total:,}" if found.total else f"{found.moved:,}"


def print_begun(context: Context, begun: Operation) -> None:
    """Print that an operation has begun, and how to follow it."""
    if context.as_json:
        print_json(begun.to_dict())
        return
    short = begun.id[:8]
    say(f"The {begun.kind} of {safe(begun.queue or 'all queues')} was begun as operation {begun.id}; a worker carries it out.")
    say(f"`redelivery ops show {short}` shows how far it is, `redelivery ops abort {short}` ends it.")
