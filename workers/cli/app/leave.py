"""`redelivery leave`: hand all delayed messages back to plain Celery, and say what is left."""

from __future__ import annotations

import click

from redelivery.display import safe
from redelivery.middleware.ports import Capability

from ...operations.adoption.leaving import Leaving
from ...operations.adoption.leaving import leave as leave_
from ...operations.runs.audit import Act, recording
from ...operations.words.numbers import counted
from ..context import Context, json_option, pass_context
from ..ops.acting import NEEDS_YES, acting, is_confirmed, is_terminal
from ..terminal.output import print_json, say
from ..terminal.progress import Progress


@click.command()
@click.option("--dry-run", is_flag=True, help="Count what would be given back, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@acting
@json_option
@pass_context
def leave(context: Context, *, dry_run: bool, yes: bool, actor: str, why: str) -> None:
    """Give delayed messages back as plain Celery messages with an ETA, and say what is left.

    Stop all workers with redelivery first; plain workers take over. Messages of dead workers go back when their lease has ended.
    """
    instead = (
        "on RabbitMQ nothing need be handed back: delayed messages go to their queues by themselves, and plain workers take them; "
        "`redelivery dlq` and `redelivery outcomes export` deal with what else is left"
    )
    context.needs(Capability.LEASES, instead)  # report errors of the broker before asking the question
    if not (dry_run or yes or is_terminal()):
        raise click.UsageError(NEEDS_YES)
    if not (dry_run or yes) and not is_confirmed("Give all delayed messages back to plain Celery?"):
        return
    recorded = recording(context.transport, Act.LEAVE, "", actor=actor, why=why, dry_run=dry_run, only_changes=True)
    went = "would be handed back" if dry_run else "handed back"
    with recorded as result, Progress() as progress:
        done = leave_(
            context.runtime, dry_run=dry_run, on_progress=lambda so_far: progress.say(f"{sum(so_far.handed_back.values())} {went}")
        )
        result["moved"] = sum(done.handed_back.values())
    if context.as_json:
        print_json(done.to_dict())
    else:
        _print(done)


def _print(done: Leaving) -> None:
    count, verb = sum(done.handed_back.values()), "would be handed" if done.dry_run else "handed"
    where = ", ".join(f"{safe(queue)} {number}" for queue, number in done.handed_back.most_common())
    say(f"{counted(count, 'delayed message', 'delayed messages')} {verb} back{f': {where}' if where else ''}.")
    for worker in done.recovered:
        say(f"Worker {safe(worker)} had died: its messages {'would be' if done.dry_run else 'were'} given back.")
    say("Left in the broker:")
    for name, letters in done.dead_letters.items():
        say(f"- {counted(letters, 'dead letter', 'dead letters')} in {safe(name)}, an ordinary queue: `redelivery dlq`")
    if done.stay:
        say(f"- {counted(done.stay, 'dead letter', 'dead letters')} in the delay store, for a queue or a handler")
    if done.held:
        say(f"- {counted(done.held, 'message', 'messages')} held by workers (`unacked`)")
    say(f"- the outcome log, {counted(done.events, 'event', 'events')}: `redelivery outcomes export` empties it", hang=2)
    say("- keys that begin with `redelivery:`; you may delete them when the dead letters and the log are dealt with", hang=2)
