"""`redelivery dlq import`: record the dead letters that RabbitMQ itself made, and move them to the DLQ of their origin."""

from __future__ import annotations

import click

from redelivery.display import safe
from redelivery.middleware.ports import Capability

from ...operations.runs.audit import Act, recording, result_of
from ...operations.words.numbers import counted
from ..context import Context, json_option, pass_context
from ..ops.acting import acting
from ..terminal.options import whole
from ..terminal.output import print_json, say
from ..terminal.progress import Progress
from .changes import print_left

NOT_HERE = "this command is for RabbitMQ: Redis makes no dead letters by itself, so there are none to import"


@click.command("import")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Count what would be imported, and change nothing.")
@click.option("--limit", type=whole(1), help="At most this many dead letters, the oldest first.")
@acting
@json_option
@pass_context
def import_(context: Context, /, name: str, *, dry_run: bool, limit: int | None, actor: str, why: str) -> None:
    """Import dead letters that RabbitMQ itself made: record them, and move them to the DLQ of their queue's policy.

    NAME is the queue behind a dead-letter exchange. A dead letter with an x-death header gets a death record and is moved. It is
    recorded as dead_lettered: one event for each death, even if you import it twice. From then on `dlq show`, `dlq redrive` and the
    other commands know it. Messages without x-death stay.
    """
    context.needs(Capability.REDELIVERY_COUNTS, NOT_HERE)
    from ...operations.letters.import_ import import_letters, require_source  # noqa: PLC0415 - only for RabbitMQ

    require_source(context.runtime, name)
    options = {} if limit is None else {"limit": limit}
    recorded = recording(
        context.transport, Act.IMPORT, name, actor=actor, why=why, options=options, dry_run=dry_run, only_changes=True
    )
    went = "would be imported" if dry_run else "imported"
    with recorded as result, Progress() as progress:
        done = import_letters(
            context.runtime,
            name,
            dry_run=dry_run,
            limit=limit,
            on_progress=lambda so_far: progress.say(f"{so_far.moved} of {so_far.total} {went}"),
        )
        result.update(result_of(done))
    if context.as_json:
        print_json(done.to_dict())
        return
    reasons = ", ".join(f"{reason} {count}" for reason, count in done.reasons.most_common())
    say(f"{counted(done.moved, 'dead letter', 'dead letters')} of {safe(name)} {went}{f': {reasons}' if reasons else ''}.")
    for target, count in done.targets.most_common():
        verb = "went" if not dry_run else "goes" if count == 1 else "go"
        say(f"{counted(count, 'dead letter', 'dead letters')} {verb} to {safe(target)}.")
    print_left(done)
