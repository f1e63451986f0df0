"""`redelivery outcomes`: the outcome log, to watch and to export."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from redelivery.middleware.outcomes import Event
from redelivery.workers.cli.context import Context, json_option, pass_context
from redelivery.workers.cli.output import moment, print_json, safe, short, span
from redelivery.workers.outcome_log import decoded, follow

if TYPE_CHECKING:
    from redelivery.middleware.transports.redis import RedisTransport

__all__ = ["outcomes"]


@click.group()
def outcomes() -> None:
    """The outcome log."""


@outcomes.command()
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Go on with what is recorded from now on.")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="The newest so many events.")
@json_option
@pass_context
def tail(context: Context, limit: int, *, is_followed: bool) -> None:
    """The newest events, the oldest of them first, a line each."""
    transport = context.transport
    events, last = _newest(transport, limit)
    for event in events:
        _show(event, as_json=context.as_json)
    if is_followed:
        for event in follow(transport.client, transport.keys.outcomes, last):
            _show(event, as_json=context.as_json)


def _newest(transport: RedisTransport, limit: int) -> tuple[list[Event], str]:
    """Events, and the id after which the next ones follow."""
    raw: Any = transport.client.xrevrange(transport.keys.outcomes, count=max(limit, 1))
    last = raw[0][0].decode() if raw else "0"
    return [each for each in decoded(reversed(raw[:limit])) if isinstance(each, Event)], last


def _show(event: Event, *, as_json: bool) -> None:
    if as_json:
        print_json(event.to_dict(), is_line=True)
    else:
        click.echo(line_of(event))


def line_of(event: Event) -> str:
    """One event on one line: when, what, to which task, and what else is known."""
    more = [
        f"reason={event.reason}" if event.reason else "",
        f"attempt={event.attempt}" if event.attempt else "",
        f"generation={event.generation}" if event.generation else "",
        f"delay={span(event.delay_ms / 1000)}" if event.delay_ms else "",
        f"worker={short(event.worker, 60)}" if event.worker else "",
        f"exception={short(event.exception, 80)}" if event.exception else "",
    ]
    head = (
        moment(event.at_ms),
        safe(event.outcome).ljust(20),
        short(event.task_id, 80),
        short(event.task, 80),
        short(event.queue, 60),
    )
    return "  ".join([*head, *filter(None, more)])


@outcomes.command()
@click.option(
    "--to", "uri", required=True, metavar="URI", help="Folder for the files: a path, or a URI such as s3://bucket/prefix."
)
@click.option("--format", "kind", type=click.Choice(["parquet", "jsonl"]), default="parquet", show_default=True)
@json_option
@pass_context
def export(context: Context, uri: str, kind: str) -> None:
    """Move what the log holds into files that `redelivery reconcile` reads; a gap in the log is noted beside them."""
    from redelivery.workers.export import export_outcomes  # noqa: PLC0415 - pyarrow is an optional dependency

    transport = context.transport
    done = export_outcomes(transport.client, transport.keys, uri, format="jsonl" if kind == "jsonl" else "parquet")
    if context.as_json:
        print_json(asdict(done))
        return
    click.echo(f"{done.events} events written to {safe(uri)} in {len(done.files)} files.")
    if done.refused:
        click.echo(f"{done.refused} entries were not ours; they are in _refused.", err=True)
    for gap in done.gaps:
        lost = "an unknown number of" if gap.lost is None else gap.lost
        click.echo(
            f"A gap: {lost} events left the log before they were exported ({gap.why}, noticed {moment(gap.noticed_ms)}).", err=True
        )
