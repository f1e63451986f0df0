"""`redelivery dlq redrive`: send dead letters back. A guard may stop the redrive if letters die again.

A redrive that its guard stopped is an error: exit code 2, after the counts.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any

import click

from redelivery.display import safe
from redelivery.errors import InputError, RedriveError

from ...brokers.broker import broker_of
from ...operations.letters import dead_letters
from ...operations.letters.choice import filter_of
from ...operations.letters.live_queues import why_it_runs
from ...operations.letters.redrive.edits import changed, edit_of_json
from ...operations.letters.redrive.fates import watched
from ...operations.letters.redrive.redrive import Edit, Redrive, redrive
from ...operations.letters.walk import WalkOptions
from ...operations.queues import declare, require_queue
from ...operations.runs.audit import Act, recording, result_of
from ...operations.runs.operation import Kind, Options, begin, guard_of
from ...operations.words.numbers import counted
from ..context import Context, json_option, pass_context
from ..ops.acting import acting, detaching
from ..ops.ops import print_begun
from ..terminal.options import RATE, SECONDS, SHARE, together, whole
from ..terminal.output import print_json, say
from ..terminal.progress import Progress
from .changes import changing, is_agreed, print_walk, targets_of
from .choosing import choosing, require_choice, require_found

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from redelivery.middleware.ports import Transport


def edit_of(file: IO[str] | None, task_ids: Sequence[str], queue: str | None) -> Edit | None:
    """The changes by the file of `--with` and by `--to`; None without both options."""
    if file is None:
        return None if queue is None else Edit(queue=queue)
    if len(task_ids) != 1:
        msg = "--with changes one dead letter: name it with --id"
        raise InputError(msg)
    try:
        text = file.read()
    except UnicodeDecodeError as exc:
        msg = f"{file.name}: is not text in UTF-8"
        raise InputError(msg) from exc
    return edit_of_json(text, file.name, task_ids[0], queue)


#: The options of a redrive that stops if its dead letters die again.
_guarding = together(
    click.option(
        "--canary",
        type=whole(1),
        metavar="N",
        help="Send N dead letters first, and the others if none of these died again.",
    ),
    click.option("--canary-wait", type=SECONDS, help="How long to wait for the canary to end: 90s, 5m; 1 minute if not given."),
    click.option("--abort-after", type=whole(1), metavar="N", help="Stop when N dead letters of this redrive have died again."),
    click.option(
        "--abort-share",
        type=SHARE,
        metavar="P%",
        help="Stop when P percent of those that ended have died again; 20 must have ended.",
    ),
)


@click.command("redrive")
@click.argument("name")
@choosing
@click.option("--to", "queue", metavar="QUEUE", help="Send to this queue instead of the origin.")
@click.option("--create", is_flag=True, help="Create the queue of --to if there is none.")
@click.option(
    "--with", "changes", type=click.File("r"), metavar="FILE", help="Replace task, args or kwargs by those in this JSON file."
)
@click.option("--rate", type=RATE, help="Send at most this many in a second or a minute: 50/s, 600/m.")
@_guarding
@changing
@detaching
@acting
@json_option
@pass_context
def redrive_(
    context: Context,
    /,
    name: str,
    *,
    dry_run: bool,
    rate: float | None,
    canary: int | None,
    canary_wait: float | None,
    abort_after: int | None,
    abort_share: float | None,
    limit: int | None,
    yes: bool,
    queue: str | None,
    create: bool,
    changes: IO[str] | None,
    detach: bool,
    actor: str,
    why: str,
    **options: Any,
) -> None:
    """Send dead letters back to their origin queue. The task id and the history stay, and the next generation begins.

    The command sends only dead letters that were there when it began. On a terminal it asks first, unless you name the dead letters
    with --id. To edit one: `dlq export NAME --id ID` prints it, and --with reads it back.

    With --canary, the first dead letters must end without dying again before the others follow. --abort-after and --abort-share
    keep watching until the end, and need a --rate. A redrive that stops says why, and ends with exit code 2.

    With --detach the command only hands the redrive over, and ends: a worker carries it out, and another one goes on if that worker
    dies. `redelivery ops` shows how far it is, pauses it and ends it.

    On RabbitMQ a dead letter goes back to the exchange and routing key of its first publication if the app declares them; with
    --to, to that queue. The command looks at the dead letters that stay, too: `dlq show --help` says what that costs.
    """
    require_choice(options, all_by_default=dry_run)
    wanted = Options(
        to=queue,
        create=create,
        rate=rate,
        limit=limit,
        canary=canary,
        canary_wait=canary_wait,
        abort_after=abort_after,
        abort_share=abort_share,
    )
    _check_options(wanted, is_edited=changes is not None, detach=detach)
    transport = context.transport
    _check_queues(context, name, wanted)
    chosen = filter_of(transport, name, options)
    edit = edit_of(changes, sorted(chosen.task_ids), queue)
    send = functools.partial(redrive, transport, name, chosen, edit=edit, actor=actor)
    question = f"Send {{}} of {safe(name)} back?"
    if not is_agreed(options, send, limit, question, is_asked=not (dry_run or yes)):
        return
    if detach and not dry_run:
        print_begun(context, begin(context.runtime, Kind.REDRIVE, name, chosen, wanted, actor=actor, why=why))
        return
    if queue is not None and create and not dry_run:
        declare(context.runtime, queue)
    asked = wanted.to_dict() | _edited(transport, name, edit, chosen.task_ids)
    recorded = recording(transport, Act.REDRIVE, name, actor=actor, why=why, chosen=chosen, options=asked, dry_run=dry_run)
    is_guarded, went = wanted.is_guarded and not dry_run, "would go back" if dry_run else "sent back"
    with recorded as result, Progress() as progress, watched(transport, name) if is_guarded else nullcontext() as fates:
        how = WalkOptions(
            dry_run=dry_run,
            limit=limit,
            rate=rate,
            on_progress=lambda so_far: progress.say(f"{so_far.moved} {went}, {so_far.looked_at} of {so_far.total} looked at"),
        )
        done = send(how=how, guard=None if fates is None else guard_of(wanted, fates, progress.say))
        result.update(result_of(done))
    if not done.matched:
        require_found(context, name, options)
    if context.as_json:
        print_json(done.to_dict())
    else:
        _print(done)
    if done.stopped:
        gone = counted(done.moved, "dead letter", "dead letters")
        msg = f"the redrive of {name!r} stopped when {gone} had gone back: {done.stopped}"
        raise RedriveError(msg)


def _edited(transport: Transport, name: str, edit: Edit | None, task_ids: Collection[str]) -> dict[str, Any]:
    """The fields of a dead letter that the operator changed, for the audit."""
    if edit is None or edit == Edit(queue=edit.queue):
        return {}
    found = broker_of(transport).letters.found(name, task_ids)
    fields = changed(edit, next(iter(found), None))
    return {"edited": fields} if fields else {}


def _check_options(wanted: Options, *, is_edited: bool, detach: bool) -> None:
    """Raise click's usage error if options contradict each other, or if an option needs another."""
    if (wanted.abort_after is not None or wanted.abort_share is not None) and wanted.rate is None:
        option = "--abort-share" if wanted.abort_after is None else "--abort-after"
        msg = f"{option} needs a --rate, such as 50/s: without one, all dead letters are sent before the first can die again"
        raise click.UsageError(msg)
    if wanted.canary is None and wanted.canary_wait is not None:
        msg = "--canary-wait needs --canary: say how many dead letters go first"
        raise click.UsageError(msg)
    if detach and is_edited:
        msg = "--with changes one dead letter, which takes no time: leave --detach out"
        raise click.UsageError(msg)


def _check_queues(context: Context, name: str, wanted: Options) -> None:
    """Raise `InputError` if there is no such dead-letter queue, or if `--to` names a queue that cannot take its letters."""
    dead_letters.required(context.runtime, name)
    if wanted.to is None:
        return
    if wanted.to in dead_letters.known(context.runtime) and why_it_runs(context.transport, wanted.to) is None:
        msg = f"{wanted.to!r} is a dead-letter queue: use `redelivery dlq move` to move dead letters there"
        raise InputError(msg)
    if not wanted.create:
        require_queue(context.runtime, wanted.to, instead="to make a new one, say --create")


def _print(done: Redrive) -> None:
    verb, where, notes = "would go back" if done.dry_run else "went back", targets_of(done), []
    if done.chords:
        its, they = ("its failure", "it runs by itself") if done.chords == 1 else ("their failures", "they run by themselves")
        notes.append(f"{done.chords} of them belonged to a chord, which has counted {its}: {they}.")
    print_walk(done, f"{verb}{f': {where}' if where else ''}", *notes, cannot="cannot go back and ")
    if done.died_again and not done.stopped:
        say(f"{counted(len(done.died_again), 'dead letter', 'dead letters')} of them died again so far.")
