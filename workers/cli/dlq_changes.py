"""`redelivery dlq redrive|purge|move`: what is done with dead letters.

Every one of them takes the same filters, `--dry-run`, `--limit` and `--yes`. Refuses a name that is no dead-letter queue, and
whatever does not say which letters. A terminal is asked first.
"""

from __future__ import annotations

import functools
import sys
from typing import IO, TYPE_CHECKING, Any

import click

from redelivery.errors import InputError
from redelivery.workers import dead_letters
from redelivery.workers.cli.changes import edit_of
from redelivery.workers.cli.choosing import choosing, filter_of, require_choice
from redelivery.workers.cli.context import Context, json_option, pass_context
from redelivery.workers.cli.output import counted, print_json, safe
from redelivery.workers.cli.progress import Progress
from redelivery.workers.purge import move, purge
from redelivery.workers.redrive import Edit, Redrive, redrive

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.workers.letter_walk import Walked

__all__ = ["move_", "purge_", "redrive_"]


def is_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty()


class _Rate(click.ParamType[float]):
    """Letters a second: `50`, `50/s`, `600/m`, `1000/h`."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it. Raises click's usage error."""
        if isinstance(value, float):
            return value
        number, _, unit = str(value).partition("/")
        try:
            rate = float(number) / {"": 1, "s": 1, "m": 60, "h": 3600}[unit.strip()]
        except (ValueError, KeyError):
            rate = 0.0
        if not 0 < rate < float("inf"):
            self.fail(f"{value!r} is no rate: write 50/s, 600/m or 1000/h", param, ctx)
        return rate


def _changing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of whatever changes something."""
    options = (
        click.option("--dry-run", is_flag=True, help="Count what would go, and change nothing."),
        click.option("--limit", type=click.IntRange(1), help="At most so many letters, the oldest first."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def _is_agreed(options: dict[str, Any], expect: Callable[[], Walked], question: str, *, is_asked: bool) -> bool:
    """Ask a person at a terminal, unless the letters are named by --id; everybody else knows what they do."""
    if not is_asked or options["task_ids"] or not is_terminal():
        return True
    expected = expect()
    said = question.format(f"{expected.moved} of {counted(expected.total, 'letter', 'letters')}")
    if click.confirm(said, err=True):
        return True
    click.echo("Nothing was changed.", err=True)
    return False


@click.command("redrive")
@click.argument("name")
@choosing
@click.option("--to", "queue", metavar="QUEUE", help="Into this queue, not the origin.")
@click.option("--with", "changes", type=click.File("r"), metavar="FILE", help="With the task, args or kwargs of this JSON file.")
@click.option("--rate", type=_Rate(), help="At most so many: 50/s, 600/m.")
@_changing
@json_option
@pass_context
def redrive_(
    context: Context,
    /,
    name: str,
    *,
    dry_run: bool,
    rate: float | None,
    limit: int | None,
    yes: bool,
    queue: str | None,
    changes: IO[str] | None,
    **options: Any,
) -> None:
    """Send letters back to their origin queue: the same task, one generation on, its history kept.

    Only letters that were there when it began; those that die again meanwhile are left alone. A terminal is asked first, unless the
    letters are named by --id. One letter can be edited: `dlq export NAME --id ID` prints it, --with reads it back.

    On RabbitMQ a letter goes to the exchange and routing key that it first came by (--to: to that queue alone); what stays has been
    looked at, and `dlq show --help` says what that costs.
    """
    require_choice(options)
    transport = context.transport
    dead_letters.required(context.install, name)
    edit = edit_of(changes, options["task_ids"], queue)
    if queue is not None and queue in dead_letters.known(context.install):
        msg = f"{queue!r} is a dead-letter queue: `redelivery dlq move` moves letters there"
        raise InputError(msg)
    chosen = filter_of(options, transport.now_ms())
    send = functools.partial(redrive, transport, name, chosen, limit=limit, edit=edit)
    question = f"Send {{}} of {safe(name)} back?"
    if not _is_agreed(options, functools.partial(send, dry_run=True), question, is_asked=not (dry_run or yes)):
        return
    with Progress() as progress:
        done = send(
            dry_run=dry_run,
            rate=rate,
            on_progress=lambda so_far: progress.say(f"{so_far.moved} sent back, {so_far.looked_at} of {so_far.total} looked at"),
        )
    if context.as_json:
        print_json(done.to_dict())
    else:
        _tell(done)


@click.command("purge")
@click.argument("name")
@choosing
@click.option("--archive", metavar="URI", help="Write the letters there first: a folder, or a URI such as s3://bucket/letters.")
@_changing
@json_option
@pass_context
def purge_(
    context: Context, /, name: str, *, archive: str | None, dry_run: bool, limit: int | None, yes: bool, **options: Any
) -> None:
    """Remove letters for good; each is recorded as purged, by an operator.

    A terminal is asked first, unless the letters are named by --id.
    """
    require_choice(options)
    transport = context.transport
    dead_letters.required(context.install, name)
    remove = functools.partial(purge, transport, name, filter_of(options, transport.now_ms()), limit=limit, archive_to=archive)
    question = f"Remove {{}} of {safe(name)} for good{'' if archive is None else f', after writing them to {safe(archive)}'}?"
    if not _is_agreed(options, functools.partial(remove, dry_run=True), question, is_asked=not (dry_run or yes)):
        return
    with Progress() as progress:
        done = remove(dry_run=dry_run, on_progress=lambda so_far: progress.say(f"{so_far.moved} of {so_far.total} purged"))
    if context.as_json:
        print_json(done.to_dict())
        return
    _tell_walk(done, "would be purged" if dry_run else "purged")
    if done.files:
        click.echo(f"They are in {safe(archive)}: {counted(len(done.files), 'file', 'files')}.")


@click.command("move")
@click.argument("name")
@choosing
@click.option("--to", "target", required=True, metavar="NAME", help="The other dead-letter queue, or any queue of the app.")
@click.option("--create", is_flag=True, help="The other dead-letter queue need not be there.")
@_changing
@json_option
@pass_context
def move_(
    context: Context, /, name: str, *, target: str, create: bool, dry_run: bool, limit: int | None, yes: bool, **options: Any
) -> None:
    """Move letters to another dead-letter queue, as dead as they are; into a queue of the app, it is a redrive to there.

    It is recorded as both: a next generation begins, and dies by the operator's hand.
    """
    require_choice(options)
    transport, known = context.transport, dead_letters.known(context.install)
    dead_letters.required(context.install, name)
    if target == name:
        msg = f"the letters lie in {name!r} already: name another queue with --to"
        raise InputError(msg)
    chosen = filter_of(options, transport.now_ms())
    is_living = target not in known and not create
    if is_living and target not in context.install.app.amqp.queues:
        msg = f"there is no queue {target!r}; dead-letter queues are: {', '.join(known)}. A new one is made with --create"
        raise InputError(msg)
    go: Callable[..., Walked]
    if is_living:
        go = functools.partial(redrive, transport, name, chosen, limit=limit, edit=Edit(queue=target))
    else:
        go = functools.partial(move, transport, name, target, chosen, limit=limit)
    question = f"Move {{}} of {safe(name)} to {safe(target)}?"
    if not _is_agreed(options, functools.partial(go, dry_run=True), question, is_asked=not (dry_run or yes)):
        return
    done = go(dry_run=dry_run)
    if context.as_json:
        print_json(done.to_dict())
    else:
        _tell_walk(done, f"would move to {safe(target)}" if dry_run else f"moved to {safe(target)}")


def _tell_walk(done: Walked, verb: str) -> None:
    name = safe(done.dead_letter_queue)
    if not done.matched:
        click.echo(f"No letter of {name} was chosen; {counted(done.looked_at, 'was', 'were')} looked at.")
        return
    click.echo(f"{counted(done.moved, 'letter', 'letters')} of {name} {verb}.")
    for why, count in done.left.most_common():
        click.echo(f"{counted(count, 'letter', 'letters')} {'stays' if count == 1 else 'stay'}: {safe(why)}.")
    if done.gone:
        click.echo(f"{counted(done.gone, 'letter', 'letters')} had left the queue meanwhile.")


def _tell(done: Redrive) -> None:
    name = safe(done.dead_letter_queue)
    if not done.matched:
        click.echo(f"No letter of {name} was chosen; {counted(done.looked_at, 'was', 'were')} looked at.")
        return
    verb = "would go back" if done.dry_run else "went back"
    where = ", ".join(f"{safe(queue)} {count}" for queue, count in done.by_queue.most_common())
    click.echo(f"{counted(done.moved, 'letter', 'letters')} of {name} {verb}{f': {where}' if where else ''}.")
    if done.chords:
        its, they = ("its failure", "it runs by itself") if done.chords == 1 else ("their failures", "they run by themselves")
        click.echo(f"{done.chords} of them belonged to a chord, which has counted {its}: {they}.")
    for why, count in done.left.most_common():
        click.echo(f"{counted(count, 'letter', 'letters')} cannot go back and {'stays' if count == 1 else 'stay'}: {safe(why)}.")
    if done.gone:
        click.echo(f"{counted(done.gone, 'letter', 'letters')} had left the queue meanwhile.")
