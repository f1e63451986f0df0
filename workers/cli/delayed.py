"""`redelivery delayed`: look at the messages in the delay store, cancel, promote and reschedule them."""

from __future__ import annotations

import functools
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from redelivery.display import safe
from redelivery.errors import BrokerError, InputError
from redelivery.middleware.brokers.errors import ANY_BROKER_ERRORS
from redelivery.middleware.ports import Answer

from ..letters import Letter
from ..operations.delayed import changes as delayed_changes
from ..operations.delayed.bulk import cancel_waiting
from ..operations.letters.filter import Filter
from ..operations.letters.reading.whole import as_editable
from ..operations.letters.walk import WalkOptions
from ..operations.queues import require_queue
from ..operations.runs.audit import Act, Acted, acted, record, recording, result_of
from ..operations.runs.operation import Kind, Options, begin, check
from ..operations.words.numbers import counted, moment, span
from .context import Context, json_option, pass_context
from .dlq import letters
from .dlq.choosing import require_tasks
from .ops.acting import NEEDS_YES, acting, detaching, is_confirmed, is_terminal
from .ops.ops import print_begun
from .terminal.options import SECONDS, milliseconds_of, whole
from .terminal.output import Column, facts, lines, print_json, say, table
from .terminal.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..ports import Delayed

MESSAGES = (
    Column("task id", is_id=True),
    Column("task", 3, 14, keeps_end=True),
    Column("queue", 2, 12, keeps_end=True, leaves=2),
    "due in",
    Column("due at", 1, 10, keeps_end=True, leaves=1),
)


@click.group()
def delayed() -> None:
    """Delayed messages: look at them, cancel, promote or reschedule them."""


@delayed.command("list")
@click.option("--queue", help="Only messages of this queue.")
@click.option("--limit", type=whole(1), default=20, show_default=True, help="At most this many, the next to become due first.")
@json_option
@pass_context
def list_(context: Context, queue: str | None, limit: int) -> None:
    """Count the delayed messages of each queue, and list the next to become due.

    On RabbitMQ the command takes the delayed messages, reads them, and gives them back. That delays them for a moment, and marks
    nothing.
    """
    store = context.delayed
    totals = store.totals()
    if queue is not None:
        totals = {queue: totals.get(queue, 0)}
    waiting, now = store.soonest(limit, queue), context.transport.now_ms()
    if queue is not None and not totals[queue]:
        require_queue(context.runtime, queue)
    if context.as_json:
        print_json({"totals": totals, "now_ms": now, "messages": [each.to_row() for each in waiting]})
        return
    if not any(totals.values()):
        say("No message is delayed." if queue is None else f"No message is delayed for {safe(queue)}.")
        return
    rows = [
        (
            each.contents.task_id,
            each.contents.task,
            each.queue,
            span((each.due_ms - now) / 1000) if each.due_ms > now else "now",
            moment(each.due_ms),
        )
        for each in waiting
    ]
    click.echo(table(rows, MESSAGES))
    click.echo("\n" + table(list(totals.items()), (Column("queue", 1), "waiting")))


def _found(context: Context, given: str) -> list[Delayed]:
    return delayed_changes.of_task(context.delayed, given, where="`redelivery task show`")


@delayed.command()
@click.argument("task_id")
@json_option
@pass_context
def show(context: Context, task_id: str) -> None:
    """Show the delayed messages of a task in full."""
    found, now, redact = _found(context, task_id), context.transport.now_ms(), context.settings.redact
    whole = [as_editable(Letter.of(each.contents.raw), redact=redact) for each in found]
    if context.as_json:
        kept = ("headers", "properties", "body", "bytes", "attempts_made", "deaths", "args", "kwargs")
        rows = zip(found, whole, strict=True)
        print_json([{**each.to_row(), **{name: value for name, value in row.items() if name in kept}} for each, row in rows])
        return
    for number, (each, row) in enumerate(zip(found, whole, strict=True)):
        envelope = each.contents.envelope
        shown = {
            "task id": each.contents.task_id,
            "task": each.contents.task or "-",
            "queue": each.queue,
            "due at": f"{moment(each.due_ms)} ({'in ' + span((each.due_ms - now) / 1000) if each.due_ms > now else 'now'})",
            "generation": envelope.generation,
            "attempts": envelope.attempt,
            "dead": "yes: it waits for its dead-letter queue or its handler" if envelope.undelivered or envelope.is_letter else "",
            "bytes": row["bytes"],
        }
        click.echo(("\n" if number else "") + facts(shown))
        click.echo("arguments\n" + lines(letters.arguments(Letter.of(each.contents.raw), redact=redact)))


@dataclass(frozen=True, slots=True)
class _Doing:
    """An act, its actor and their reason. `words` has the verb of the result, and the verb of a dry run."""

    act: Act
    actor: str
    why: str
    words: tuple[str, str]


def _change(
    context: Context, task_ids: Sequence[str], change: Callable[[Delayed], Answer], doing: _Doing, *, dry_run: bool
) -> None:
    """Change the delayed messages of these tasks one by one, record the act in the audit, and print the result."""
    found = [each for task_id in task_ids for each in _found(context, task_id)]
    for each in found:
        delayed_changes.changeable(each)
    done: list[dict[str, Any]] = []
    failure: Exception | None = None
    try:
        for each in found:
            answer = Answer.DONE if dry_run else change(each)
            done.append({**each.to_row(), "changed": answer is Answer.DONE, "dry_run": dry_run})
    except ANY_BROKER_ERRORS as exc:
        if not done:
            raise
        failure = exc
    count = sum(row["changed"] for row in done)
    if not dry_run:
        queues, result = ", ".join(sorted({each.queue for each in found})), {"moved": count, "gone": len(done) - count}
        tasks, ended = [row["task_id"] for row in done], Acted.DONE if failure is None else Acted.FAILED
        said = acted(doing.act, ended, queues, actor=doing.actor, why=doing.why, tasks=tasks, result=result)
        with nullcontext() if failure is None else suppress(*ANY_BROKER_ERRORS):
            record(context.transport, said)
    if failure is not None:
        so_far = f"{counted(count, 'message', 'messages')} of {len(found)} {doing.words[dry_run]}"
        rest = f"run the command again from task {found[len(done)].contents.task_id} on"
        msg = f"{so_far}, then: {failure}; {rest}: `redelivery task show` says whether that one was still changed"
        raise BrokerError(msg) from failure
    if context.as_json:
        print_json(done)
        return
    say(f"{counted(count, 'message', 'messages')} {doing.words[dry_run]}.")
    if count < len(done):
        say(f"{counted(len(done) - count, 'message', 'messages')} had become due meanwhile.")


_dry_run = click.option("--dry-run", is_flag=True, help="Check that the message waits, and change nothing.")


@delayed.command()
@click.argument("task_ids", nargs=-1, metavar="[TASK_ID...]")
@click.option("--task", "tasks", multiple=True, help="Messages of this task; a shell pattern. May be repeated.")
@click.option("--queue", default="", help="Messages that wait for this queue.")
@click.option("--all", "everything", is_flag=True, help="All messages, or all of --queue.")
@click.option("--limit", type=whole(1), help="At most this many.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_dry_run
@detaching
@acting
@json_option
@pass_context
def cancel(
    context: Context,
    /,
    task_ids: Sequence[str],
    *,
    tasks: tuple[str, ...],
    queue: str,
    everything: bool,
    limit: int | None,
    yes: bool,
    dry_run: bool,
    detach: bool,
    actor: str,
    why: str,
) -> None:
    """Remove delayed messages for good. Each is recorded as cancelled, and its result becomes REVOKED.

    Name the tasks by id, or by the beginning of an id. Or choose many with --task or --all. A message that is delayed
    while these are cancelled may be cancelled, too.
    """
    if bool(task_ids) == bool(tasks or everything) or (tasks and everything):
        msg = "which messages? do one of these: name tasks by their ids, choose with --task, say --all"
        raise click.UsageError(msg)
    doing = _Doing(Act.CANCEL, actor, why, ("cancelled", "would be cancelled"))
    if task_ids:
        if detach or queue or limit is not None:
            msg = "--detach, --queue and --limit are for many messages: choose them with --task, or say --all"
            raise click.UsageError(msg)
        cancel_one = functools.partial(delayed_changes.cancel, context.runtime, actor=actor)
        _change(context, task_ids, cancel_one, doing, dry_run=dry_run)
        return
    chosen, wanted = Filter(tasks=tasks), Options(limit=limit)
    if not (dry_run or yes or _is_agreed(context, queue, chosen, limit)):
        return
    if detach and not dry_run:
        print_begun(context, begin(context.runtime, Kind.CANCEL, queue, chosen, wanted, actor=actor, why=why))
        return
    check(context.runtime, Kind.CANCEL, queue, chosen, wanted)
    recorded = recording(
        context.transport, Act.CANCEL, queue, actor=actor, why=why, chosen=chosen, options=wanted.to_dict(), dry_run=dry_run
    )
    words = doing.words[dry_run]
    with recorded as result, Progress() as progress:
        how = WalkOptions(
            dry_run=dry_run,
            limit=limit,
            on_progress=lambda so_far: progress.say(f"{so_far.moved} {words}, {so_far.looked_at} of {so_far.total} looked at"),
        )
        done = cancel_waiting(context.runtime, queue, chosen, how, actor=actor)
        result.update(result_of(done))
    if not done.matched:
        require_tasks(context, "there is no delayed message", tasks)
    if context.as_json:
        print_json({"queue" if name == "dead_letter_queue" else name: value for name, value in done.to_dict().items()})
        return
    say(f"{counted(done.moved, 'message', 'messages')} {words}.")
    for reason, count in done.left.most_common():
        say(f"{counted(count, 'message', 'messages')} {'stays' if count == 1 else 'stay'}: {reason}.")
    if done.gone:
        say(f"{counted(done.gone, 'message', 'messages')} had become due meanwhile.")


def _is_agreed(context: Context, queue: str, chosen: Filter, limit: int | None) -> bool:
    """Ask a person at a terminal. Raises click's usage error if there is no terminal."""
    if not is_terminal():
        raise click.UsageError(NEEDS_YES)
    expected = cancel_waiting(context.runtime, queue, chosen, WalkOptions(dry_run=True, limit=limit))
    return is_confirmed(f"Cancel {expected.moved} of {counted(expected.total, 'message', 'messages')} that are delayed?")


@delayed.command()
@click.argument("task_ids", nargs=-1, required=True, metavar="TASK_ID...")
@_dry_run
@acting
@json_option
@pass_context
def promote(context: Context, task_ids: Sequence[str], *, dry_run: bool, actor: str, why: str) -> None:
    """Make messages due now. A dispatcher then moves them to their queue; on RabbitMQ this command does it."""
    doing = _Doing(Act.PROMOTE, actor, why, ("promoted", "would be promoted"))
    change = functools.partial(delayed_changes.reschedule, context.runtime, due_ms=None, actor=actor)
    _change(context, task_ids, change, doing, dry_run=dry_run)


@delayed.command()
@click.argument("task_ids", nargs=-1, required=True, metavar="TASK_ID...")
@click.option("--in", "after", type=SECONDS, help="Due this long from now, by the broker's clock: 90s, 15m, 2h, 3d.")
@click.option("--at", "moment_", metavar="TIME", help="Due at this time: 2026-07-01T08:00:00Z. A time without a zone is UTC.")
@_dry_run
@acting
@json_option
@pass_context
def reschedule(
    context: Context, /, task_ids: Sequence[str], *, after: float | None, moment_: str | None, dry_run: bool, actor: str, why: str
) -> None:
    """Give messages another due time, and change nothing else. On RabbitMQ it is rounded up to whole seconds."""
    if (after is None) == (moment_ is None):
        msg = "give the due time once: --in 15m, or --at 2026-07-01T08:00:00Z"
        raise click.UsageError(msg)
    due_ms = context.transport.now_ms() + round(after * 1000) if after is not None else _moment(str(moment_))
    doing = _Doing(Act.RESCHEDULE, actor, why, (f"due at {moment(due_ms)}", f"would be due at {moment(due_ms)}"))
    change = functools.partial(delayed_changes.reschedule, context.runtime, due_ms=due_ms, actor=actor)
    _change(context, task_ids, change, doing, dry_run=dry_run)


def _moment(text: str) -> int:
    try:
        ms = milliseconds_of(text)
    except (ValueError, OverflowError):
        ms = -1
    if ms < 0:  # a time before 1970 is a typing error, such as 0026 for 2026
        msg = f"{text!r} is not a time: write it as 2026-07-01T08:00:00Z"
        raise InputError(msg)
    return ms
