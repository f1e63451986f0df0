"""`redelivery dlq`: the dead letters, to look at and to send back.

Enters: names and filters. Leaves: tables, or JSON. A payload is shown escaped, only where it is JSON, and not at all where the
settings say `redact`. Refuses a name that is no dead-letter queue, and a redrive that does not say which letters.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from redelivery.errors import InputError
from redelivery.workers import dead_letters
from redelivery.workers.cli import letters
from redelivery.workers.cli.context import Context, json_option, pass_context
from redelivery.workers.cli.output import SECONDS, age, counted, print_json, safe, short, table
from redelivery.workers.cli.progress import Progress
from redelivery.workers.letter_filter import Filter
from redelivery.workers.redrive import Redrive, redrive

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["dlq"]

#: Reasons that a listing names.
MOST_REASONS = 3


@click.group()
def dlq() -> None:
    """Dead letters: look at them, send them back."""


@dlq.command("list")
@json_option
@pass_context
def list_(context: Context) -> None:
    """Every dead-letter queue: how many letters, how old, and why they died."""
    transport = context.transport
    queues = dead_letters.summaries(context.install)
    if context.as_json:
        names = ("name", "origin", "letters", "oldest_ms", "newest_ms", "reasons", "sampled")
        print_json([{name: getattr(queue, name) for name in names} for queue in queues])
        return
    if not queues:
        click.echo("There are no dead-letter queues: nothing has died, and no queue of the app keeps letters.")
        return
    now = transport.now_ms()
    rows = [
        (
            short(queue.name, 60),
            short(queue.origin, 40),
            queue.letters,
            age(queue.oldest_ms, now),
            age(queue.newest_ms, now),
            _reasons(queue),
        )
        for queue in queues
    ]
    click.echo(table(rows, ("dead-letter queue", "origin", "letters", "oldest", "newest", "reasons")))


def _reasons(queue: dead_letters.DeadLetterQueue) -> str:
    named = ", ".join(f"{reason} {count}" for reason, count in list(queue.reasons.items())[:MOST_REASONS])
    if queue.letters > queue.sampled and named:
        return f"{named} (of the newest {queue.sampled})"
    return named or "-"


@dlq.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="The newest so many letters.")
@click.option("--id", "task_ids", multiple=True, metavar="TASK_ID", help="This task's letters, whole; may be repeated.")
@click.option("--full", is_flag=True, help="Whole letters, not a table.")
@json_option
@pass_context
def show(context: Context, name: str, limit: int, task_ids: Sequence[str], *, full: bool) -> None:
    """The letters of a dead-letter queue, the newest first."""
    transport = context.transport
    dead_letters.required(context.install, name)
    if task_ids:
        chosen = list(dead_letters.found(transport, name, frozenset(task_ids)))
        missing = set(task_ids) - {letter.task_id for letter in chosen}
        if missing:
            msg = f"{name!r} holds no letter of task {', '.join(sorted(missing))}: `redelivery task show` tells where a task is"
            raise InputError(msg)
    else:
        chosen = dead_letters.newest(transport, name, limit)
    redact, whole = context.settings.redact, full or bool(task_ids)
    if context.as_json:
        print_json([letters.as_json(letter, redact=redact) if whole else letter.to_row() for letter in chosen])
    elif not chosen:
        click.echo(f"{safe(name)} is empty.")
    elif whole:
        click.echo("\n\n".join(letters.as_text(letter, redact=redact) for letter in chosen))
    else:
        count = int(transport.client.llen(transport.keys.list(name)))
        click.echo(letters.as_table(chosen, transport.now_ms()))
        if count > len(chosen):
            click.echo(f"{len(chosen)} of {count} letters; more with --limit, one of them whole with --id.", err=True)


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


@dlq.command("redrive")
@click.argument("name")
@click.option("--id", "task_ids", multiple=True, metavar="TASK_ID", help="This task's letters; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="All letters.")
@click.option("--reason", "reasons", multiple=True, help="Letters that died of this; may be repeated.")
@click.option("--task", "tasks", multiple=True, help="Letters of this task; a shell pattern.")
@click.option("--exception", "exceptions", multiple=True, help="Letters that raised this class, dotted or its last word.")
@click.option("--fingerprint", "fingerprints", multiple=True, help="Letters with this fingerprint, or its beginning.")
@click.option("--older-than", type=SECONDS, help="Letters that died longer ago: 90s, 15m, 2h, 3d.")
@click.option("--newer-than", type=SECONDS, help="Letters that died since.")
@click.option("--dry-run", is_flag=True, help="Count what would go back, and change nothing.")
@click.option("--rate", type=_Rate(), help="At most so many: 50/s, 600/m.")
@click.option("--limit", type=click.IntRange(1), help="At most so many letters, the oldest first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
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
    **options: Any,
) -> None:
    """Send letters back to their origin queue: the same task, one generation on, its history kept.

    Only letters that were there when it began; those that die again meanwhile are left alone. A terminal is asked first, unless the
    letters are named by --id.
    """
    _require_choice(options)
    transport = context.transport
    dead_letters.required(context.install, name)
    chosen = _filter(options, transport.now_ms())
    if not (dry_run or yes or options["task_ids"]) and sys.stdin.isatty():
        expected = redrive(transport, name, chosen, dry_run=True, limit=limit)
        if not click.confirm(
            f"Send {expected.moved} of {counted(expected.total, 'letter', 'letters')} of {safe(name)} back?", err=True
        ):
            click.echo("Nothing was changed.", err=True)
            return
    with Progress() as progress:
        done = redrive(
            transport,
            name,
            chosen,
            dry_run=dry_run,
            rate=rate,
            limit=limit,
            on_progress=lambda so_far: progress.say(f"{so_far.moved} sent back, {so_far.looked_at} of {so_far.total} looked at"),
        )
    if context.as_json:
        print_json(done.to_dict())
    else:
        _tell(done)


def _require_choice(options: dict[str, Any]) -> None:
    filters = [name for name, value in options.items() if name != "everything" and value not in (None, ())]
    if options["everything"] and filters:
        msg = "--all means every letter: leave it out, or leave the filters out"
        raise click.UsageError(msg)
    if not options["everything"] and not filters:
        msg = "which letters? name them with --id, choose them with a filter (--reason, --task, …), or say --all"
        raise click.UsageError(msg)


def _filter(options: dict[str, Any], now_ms: int) -> Filter:
    def ago(seconds: float | None) -> int | None:
        return None if seconds is None else now_ms - round(seconds * 1000)

    return Filter(
        task_ids=frozenset(options["task_ids"]),
        reasons=frozenset(options["reasons"]),
        tasks=options["tasks"],
        exceptions=options["exceptions"],
        fingerprints=options["fingerprints"],
        died_before_ms=ago(options["older_than"]),
        died_after_ms=ago(options["newer_than"]),
    )


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
