"""`redelivery dlq purge|move`, and what all commands share that change dead letters.

They take the same filters, `--dry-run`, `--limit` and `--yes`, and ask first on a terminal. They refuse a name that is not a
dead-letter queue, and a call without a filter.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from redelivery.display import harmless, safe
from redelivery.errors import InputError

from ...operations.letters import dead_letters
from ...operations.letters.choice import filter_of
from ...operations.letters.live_queues import require_rest
from ...operations.letters.move import move
from ...operations.letters.purge import purge
from ...operations.letters.redrive.redrive import Edit, Redrive, redrive
from ...operations.letters.walk import WalkOptions
from ...operations.queues import require_queue
from ...operations.runs.audit import Act, recording, result_of
from ...operations.runs.operation import Kind, Options, begin
from ...operations.words.numbers import counted
from ..context import Context, json_option, pass_context
from ..ops.acting import NEEDS_YES, acting, detaching, is_confirmed, is_terminal
from ..ops.ops import print_begun
from ..terminal.options import PLACE, together, whole
from ..terminal.output import print_json, say
from ..terminal.progress import Progress
from .choosing import choosing, require_choice, require_found

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...operations.letters.walk import Walked

#: The maximum number of target queues that one line names.
MAX_TARGETS = 20


#: The options of every command that changes something.
changing = together(
    click.option("--dry-run", is_flag=True, help="Count the dead letters, and change nothing."),
    click.option("--limit", type=whole(1), help="At most this many dead letters, the oldest first."),
    click.option("--yes", is_flag=True, help="Do not ask."),
)


def is_agreed(options: dict[str, Any], go: Callable[..., Walked], limit: int | None, question: str, *, is_asked: bool) -> bool:
    """Ask for confirmation, after a dry run of `go`. True without a question without a terminal, or if `--id` names the letters."""
    if not is_asked or options["task_ids"] or not is_terminal():
        return True
    expected = go(how=WalkOptions(dry_run=True, limit=limit))
    said = question.format(f"{expected.moved} of {counted(expected.total, 'dead letter', 'dead letters')}")
    if isinstance(expected, Redrive) and expected.by_target:
        say(f"They would go to: {targets_of(expected)}.", err=True)
    return is_confirmed(said)


def targets_of(done: Redrive) -> str:
    """The target queues of a redrive and their numbers of letters, the largest first."""
    named = [f"{safe(target)} {count}" for target, count in done.by_target.most_common(MAX_TARGETS)]
    others = len(done.by_target) - MAX_TARGETS
    return ", ".join([*named, f"and {others} more"] if others > 0 else named)


@click.command("purge")
@click.argument("name")
@choosing
@click.option(
    "--archive",
    type=PLACE,
    metavar="URI",
    help="Write the dead letters there first: a folder, or a URI such as s3://bucket/letters.",
)
@changing
@detaching
@acting
@json_option
@pass_context
def purge_(
    context: Context,
    /,
    name: str,
    *,
    archive: str | None,
    dry_run: bool,
    limit: int | None,
    yes: bool,
    detach: bool,
    actor: str,
    why: str,
    **options: Any,
) -> None:
    """Remove dead letters for good. Each is recorded as purged, with reason operator.

    On a terminal the command asks first, unless you name the dead letters with --id. Without a terminal it needs --yes or
    --id. With --detach a worker carries the purge out. It writes the archive in dead_letter_archive or below it.
    """
    require_choice(options, all_by_default=dry_run)
    if not (dry_run or yes or options["task_ids"] or is_terminal()):
        raise click.UsageError(NEEDS_YES)
    transport = context.transport
    dead_letters.required(context.runtime, name)
    chosen, wanted = filter_of(transport, name, options), Options(limit=limit, archive=archive)
    remove = functools.partial(purge, transport, name, chosen, archive_to=archive, actor=actor)
    question = f"Remove {{}} of {safe(name)} for good{'' if archive is None else f', after writing them to {harmless(archive)}'}?"
    if not is_agreed(options, remove, limit, question, is_asked=not (dry_run or yes)):
        return
    if detach and not dry_run:
        print_begun(context, begin(context.runtime, Kind.PURGE, name, chosen, wanted, actor=actor, why=why))
        return
    recorded = recording(transport, Act.PURGE, name, actor=actor, why=why, chosen=chosen, options=wanted.to_dict(), dry_run=dry_run)
    went = "would be purged" if dry_run else "purged"
    with recorded as result, Progress() as progress:
        how = WalkOptions(
            dry_run=dry_run, limit=limit, on_progress=lambda so_far: progress.say(f"{so_far.moved} of {so_far.total} {went}")
        )
        done = remove(how=how)
        result.update(result_of(done))
    if not done.matched:
        require_found(context, name, options)
    if context.as_json:
        print_json(done.to_dict())
        return
    print_walk(done, went)
    if done.files:
        say(f"They are in {harmless(archive or '')}: {counted(len(done.files), 'file', 'files')}.")


@click.command("move")
@click.argument("name")
@choosing
@click.option("--to", "target", required=True, metavar="NAME", help="The other dead-letter queue, or any queue of the app.")
@click.option("--create", is_flag=True, help="Create the dead-letter queue of --to if there is none.")
@changing
@detaching
@acting
@json_option
@pass_context
def move_(
    context: Context,
    /,
    name: str,
    *,
    target: str,
    create: bool,
    dry_run: bool,
    limit: int | None,
    yes: bool,
    detach: bool,
    actor: str,
    why: str,
    **options: Any,
) -> None:
    """Move dead letters to another dead-letter queue. They stay dead there.

    Each move is recorded as redriven, and then as dead_lettered with reason operator. If --to names a queue of the app that is no
    dead-letter queue, this is a redrive to that queue. With --create it is refused, and so is a dead-letter queue whose messages
    workers run.
    """
    require_choice(options, all_by_default=dry_run)
    transport, known = context.transport, dead_letters.known(context.runtime)
    dead_letters.required(context.runtime, name)
    if target == name:
        msg = f"the dead letters are already in {name!r}: name another queue with --to"
        raise InputError(msg)
    chosen = filter_of(transport, name, options)
    is_living = target not in known and not create
    go: Callable[..., Walked]
    if is_living:
        require_queue(context.runtime, target, instead="to make a new dead-letter queue, say --create")
        go = functools.partial(redrive, transport, name, chosen, edit=Edit(queue=target), actor=actor)
    else:
        require_rest(transport, target)
        go = functools.partial(move, transport, name, target, chosen, actor=actor)
    question = f"Move {{}} of {safe(name)} to {safe(target)}?"
    if not is_agreed(options, go, limit, question, is_asked=not (dry_run or yes)):
        return
    act, wanted = Kind.REDRIVE if is_living else Kind.MOVE, Options(to=target, create=create, limit=limit)
    if detach and not dry_run:
        print_begun(context, begin(context.runtime, act, name, chosen, wanted, actor=actor, why=why))
        return
    recorded = recording(transport, Act(act), name, actor=actor, why=why, chosen=chosen, options=wanted.to_dict(), dry_run=dry_run)
    with recorded as result:
        done = go(how=WalkOptions(dry_run=dry_run, limit=limit))
        result.update(result_of(done))
    if not done.matched:
        require_found(context, name, options)
    if context.as_json:
        print_json(done.to_dict())
    else:
        print_walk(done, f"{'would move' if dry_run else 'moved'} to {safe(target)}")


def print_walk(done: Walked, verb: str, *notes: str, cannot: str = "") -> None:
    """Print how many letters were moved, the notes, and how many letters stayed."""
    name = safe(done.dead_letter_queue)
    if not done.matched:
        say(f"No dead letter of {name} was chosen; {counted(done.looked_at, 'was', 'were')} looked at.")
        return
    for note in (f"{counted(done.moved, 'dead letter', 'dead letters')} of {name} {verb}.", *notes):
        say(note)
    print_left(done, cannot)


def print_left(done: Walked, cannot: str = "") -> None:
    """Print how many letters stayed, and why, and how many had already left the queue."""
    for why, count in done.left.most_common():
        say(f"{counted(count, 'dead letter', 'dead letters')} {cannot}{'stays' if count == 1 else 'stay'}: {safe(why)}.")
    if done.gone:
        say(f"{counted(done.gone, 'dead letter', 'dead letters')} had left the queue meanwhile.")
