"""`redelivery dlq`: look at dead letters, send them back, move and remove them.

Only JSON payloads are decoded; all others are shown escaped. The setting `redact` hides payloads, but not in exported files.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from redelivery.display import harmless, safe, scrubbed
from redelivery.errors import InputError

from ...operations.letters import dead_letters
from ...operations.letters.archive import export_letters
from ...operations.letters.choice import filter_of
from ...operations.letters.reading.causes import causes
from ...operations.letters.reading.whole import as_editable, as_json
from ...operations.letters.walk import letters_of
from ...operations.words.numbers import age, counted
from ...operations.words.redaction import seen
from ..context import Context, json_option, pass_context
from ..terminal.options import PLACE, whole
from ..terminal.output import Column, print_json, say, table
from . import letters
from .changes import move_, purge_
from .choosing import choosing, require_choice
from .import_ import import_
from .redrive import redrive_

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...ports import DeadLetterQueue

#: The maximum number of reasons that a line on a terminal names.
MAX_REASONS = 3
QUEUES = (
    Column("dead-letter queue", 2, 20, keeps_end=True),
    Column("origin", 1, keeps_end=True, leaves=2),
    "dead letters",
    Column("oldest", leaves=3),
    Column("newest", leaves=1),
    Column("reasons", 3, 16),
)
CAUSES = (
    "count",
    Column("fingerprint", 3, leaves=1),
    Column("reason", 1, 9, is_coloured=True),
    Column("task", 4, 14, keeps_end=True),
    Column("first", leaves=4),
    Column("last", leaves=3),
    Column("example", leaves=2, is_id=True),
    Column("exception", 5, 20),
)


@click.group()
def dlq() -> None:
    """Dead letters: look at them, send them back, move or remove them."""


@dlq.command("list")
@json_option
@pass_context
def list_(context: Context) -> None:
    """List the dead-letter queues: how many dead letters each has, how old they are, and why they died.

    On RabbitMQ the command only counts them, because reading a dead letter leaves a mark. `dlq causes` and `dlq show` read them.
    The command knows the queues that the policies of the app's queues name.
    """
    transport = context.transport
    queues = dead_letters.summaries(context.runtime)
    if context.as_json:
        names = ("name", "origin", "letters", "oldest_ms", "newest_ms", "reasons", "sampled")
        print_json([{name: getattr(queue, name) for name in names} for queue in queues])
        return
    if not queues:
        say("There are no dead-letter queues: no message has died, and no queue of the app keeps dead letters.")
        return
    now = transport.now_ms()
    rows = [
        (queue.name, queue.origin, queue.letters, age(queue.oldest_ms, now), age(queue.newest_ms, now), _reasons(queue))
        for queue in queues
    ]
    click.echo(table(rows, QUEUES))


def _reasons(queue: DeadLetterQueue) -> str:
    shown = list(queue.reasons.items())[: MAX_REASONS if sys.stdout.isatty() else None]
    others = len(queue.reasons) - len(shown)
    named = ", ".join([*(f"{reason} {count}" for reason, count in shown), *([f"{others} more"] if others else [])])
    if queue.letters > queue.sampled and named:
        return f"{named} (of the newest {queue.sampled})"
    return named or "-"


@dlq.command()
@click.argument("name")
@click.option("--limit", type=whole(1), default=20, show_default=True, help="At most this many, the newest first.")
@click.option(
    "--id", "task_ids", multiple=True, metavar="TASK_ID", help="Show the dead letters of this task in full; may be repeated."
)
@click.option("--full", is_flag=True, help="Show whole dead letters instead of a table.")
@json_option
@pass_context
def show(context: Context, name: str, limit: int, task_ids: Sequence[str], *, full: bool) -> None:
    """Show the dead letters of a queue, the newest first.

    On RabbitMQ the command takes the whole queue, reads it, and gives it back in order. Meanwhile handlers do not see the dead
    letters. A classic queue marks them as redelivered. A quorum queue counts a delivery of each, and drops one that reaches the
    queue's `delivery-limit`.
    """
    transport = context.transport
    dead_letters.required(context.runtime, name)
    chosen = dead_letters.found(transport, name, task_ids) if task_ids else dead_letters.newest(transport, name, limit)
    redact, whole = context.settings.redact, full or bool(task_ids)
    if context.as_json:
        print_json([as_json(each, redact=redact) if whole else seen(context.runtime, each).to_row() for each in chosen])
    elif not chosen:
        say(f"{safe(name)} is empty.")
    elif whole:
        click.echo("\n\n".join(letters.as_text(letter, redact=redact) for letter in chosen))
    else:
        count = dead_letters.depth(transport, name)
        click.echo(letters.as_table([seen(context.runtime, letter) for letter in chosen], transport.now_ms()))
        if count > len(chosen):
            say(f"{len(chosen)} of {count} dead letters; more with --limit, one in full with --id.", err=True)


@dlq.command("export")
@click.argument("name")
@choosing
@click.option(
    "--to", "uri", type=PLACE, metavar="URI", help="Write whole dead letters to files there. Without it, JSON lines are printed."
)
@json_option
@pass_context
def export(context: Context, /, name: str, *, uri: str | None, **options: Any) -> None:
    """Copy dead letters to files, or print them as JSON lines; they stay in the queue. Without a filter: all of them.

    On RabbitMQ this reads the whole queue; `dlq show --help` says what that costs.
    """
    transport = context.transport
    dead_letters.required(context.runtime, name)
    require_choice(options, all_by_default=True)
    chosen = filter_of(transport, name, options)
    if uri is not None:
        done = export_letters(transport, name, uri, chosen)
        if context.as_json:
            print_json({**asdict(done), "destination": scrubbed(uri)})
        else:
            files = counted(len(done.files), "file", "files")
            say(f"{counted(done.letters, 'dead letter', 'dead letters')} of {safe(name)} in {files} below {harmless(uri)}.")
        return
    found = False
    for letter in letters_of(transport, name):
        if chosen.passes(letter):
            found = True
            print_json(as_editable(letter, redact=context.settings.redact), is_line=True)
    if not found and options["task_ids"]:
        msg = f"{name!r} holds no dead letter of task {', '.join(options['task_ids'])}"
        raise InputError(msg)
    if not found:
        say(f"No dead letter of {safe(name)} was chosen.", err=True)


@dlq.command("causes")
@click.argument("name", required=False)
@click.option("--limit", type=whole(1), default=20, show_default=True, help="At most this many causes, the most frequent first.")
@json_option
@pass_context
def causes_(context: Context, name: str | None, limit: int) -> None:
    """Group dead letters by cause, the most frequent first: how many, since when, and an example. For one queue, or all.

    On RabbitMQ this reads the whole queue; `dlq show --help` says what that costs.
    """
    transport = context.transport
    names = list(dead_letters.known(context.runtime)) if name is None else [dead_letters.required(context.runtime, name)]
    found = causes(transport, names, redact=context.settings.redact)
    if context.as_json:
        print_json([each.to_dict() for each in found[:limit]])
        return
    if not found:
        say("There are no dead letters.")
        return
    now = transport.now_ms()
    rows = [
        (
            each.count,
            each.fingerprint or "-",
            each.reason,
            ", ".join(each.tasks),
            age(each.first_ms, now),
            age(each.last_ms, now),
            each.task_id,
            letters.exception_of(each.exception, each.message),
        )
        for each in found[:limit]
    ]
    click.echo(table(rows, CAUSES))
    if len(found) > limit:
        say(f"{limit} of {counted(len(found), 'cause', 'causes')}; more with --limit.", err=True)


for _command in (redrive_, purge_, move_, import_):
    dlq.add_command(_command)
