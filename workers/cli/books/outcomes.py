"""`redelivery outcomes`: watch and export the outcome log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from redelivery.display import harmless, scrubbed
from redelivery.errors import InputError

from ...duties.exporter import Exporter
from ...operations.runs.audit_export import export_audit
from ...operations.words.numbers import counted, moment, span
from ..context import Context, json_option, pass_context
from ..servers.serving import served
from ..terminal.options import PLACE, SECONDS, whole
from ..terminal.output import Column, print_json, say, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redelivery.middleware.messages.events import Event

    from ...ports import Format

EVENTS = (
    Column("when", usual=20),
    Column("outcome", usual=20, is_coloured=True),
    Column("task id", usual=8, is_id=True),
    Column("task", 3, 14, keeps_end=True, usual=16),
    Column("queue", 2, keeps_end=True, usual=8, leaves=1),
    Column("details", 4, 16),
)


@click.group()
def outcomes() -> None:
    """The outcome log."""


@outcomes.command()
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Wait for new events, and print them.")
@click.option("--limit", type=whole(0), default=20, show_default=True, help="At most this many events, the newest ones.")
@json_option
@pass_context
def tail(context: Context, limit: int, *, is_followed: bool) -> None:
    """Print the newest events, one per line, in the order of time.

    On RabbitMQ the log is read from its oldest event on, and given back. New events (-f) come through a queue of their own.
    """
    with context.outcomes.tail(limit, is_followed=is_followed) as found:
        if context.as_json:
            for event in found.events:
                print_json(event.to_dict(), is_line=True)
        elif found.events:
            click.echo(events_table(found.events, is_followed=is_followed))
        else:
            say("The outcome log has no events.", err=True)
        if found.left:
            newer = counted(found.left, "newer message", "newer messages")
            say(f"{newer} in the log were not read. Export the log first.", err=True)
        for event in found.follow() if is_followed else ():
            if context.as_json:
                print_json(event.to_dict(), is_line=True)
            else:
                click.echo(events_table([event], has_headings=False, is_followed=True))


def events_table(events: Sequence[Event], *, of_one_task: bool = False, **layout: Any) -> str:
    """One line for each event. `layout` goes to `table`; `of_one_task` leaves the task's columns out."""
    shown = [at for at, column in enumerate(EVENTS) if not (of_one_task and column.heading in {"task id", "task"})]
    rows = [[row[at] for at in shown] for row in map(_row, events)]
    return table(rows, [EVENTS[at] for at in shown], **layout)


def _row(event: Event) -> tuple[str, ...]:
    more = [
        f"reason={event.reason}" if event.reason else "",
        f"attempt={event.attempt}" if event.attempt else "",
        f"generation={event.generation}" if event.generation else "",
        f"delay={span(event.delay_ms / 1000)}" if event.delay_ms else "",
        f"exception={event.exception}" if event.exception else "",
        f"worker={event.worker}" if event.worker else "",
        f"by={event.actor}" if event.actor else "",
    ]
    return moment(event.at_ms), event.outcome, event.task_id, event.task, event.queue, "  ".join(filter(None, more))


def _keep_exporting(context: Context, uri: str, kind: Format, every: float) -> int:
    """Run an exporter until a signal arrives. Returns the exit code."""
    if every < 1:
        msg = "--every: give 1s or more"
        raise InputError(msg)
    exporter = Exporter(context.outcomes, uri, audit=context.audit, every=every, format=kind)

    def start() -> None:
        exporter.start()
        say("exporter: running; SIGTERM or Ctrl-C ends it", err=True)

    return served(start, exporter.stop)


@outcomes.command()
@click.option(
    "--to",
    "given",
    type=PLACE,
    metavar="URI",
    help="Folder for the files: a path, or a URI such as s3://bucket/prefix. By default that of outcome_archive.",
)
@click.option("--format", "kind", type=click.Choice(["parquet", "jsonl"]), default="parquet", show_default=True)
@click.option("--every", type=SECONDS, help="Export again after each interval (60s, 5m), until SIGTERM or Ctrl-C.")
@json_option
@pass_context
@click.pass_context
def export(ctx: click.Context, context: Context, given: str | None, kind: Format, every: float | None) -> None:
    """Move the events of the outcome log to files for `redelivery reconcile`. A gap in the log is noted beside them.

    The records of `redelivery audit` are copied to the same place, where the books do not read them.

    With --every, several exporters may run: one works, the others stand by. SIGTERM ends it with exit code 0, SIGINT with 130.
    On RabbitMQ the events are acknowledged when the files are on the disk.
    """
    uri = given if given is not None else context.settings.exported_outcomes
    if uri is None:
        msg = "where to? say --to, or set outcome_archive"
        raise click.UsageError(msg)
    if every is not None:
        ctx.exit(_keep_exporting(context, uri, kind, every))
    done = context.outcomes.export(uri, format=kind)
    acts = export_audit(context.audit, uri)
    if context.as_json:
        print_json({**asdict(done), "destination": scrubbed(uri), "audit": asdict(acts)})
        return
    events, files = counted(done.events, "event", "events"), counted(len(done.files), "file", "files")
    records = f", and {counted(acts.records, 'record', 'records')} of the audit" if acts.records else ""
    say(f"{events} written to {harmless(uri)} in {files}{records}.")
    if done.refused:
        say(f"{done.refused} entries were not written by redelivery; they are in _refused.", err=True)
    for gaps, what in ((done.gaps, "events left the log"), (acts.gaps, "records of the audit left the broker")):
        for gap in gaps:
            lost = "an unknown number of" if gap.lost is None else gap.lost
            say(f"A gap: {lost} {what} before they were exported ({gap.why}, noticed {moment(gap.noticed_ms)}).", err=True)
