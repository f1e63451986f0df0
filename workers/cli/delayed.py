"""`redelivery delayed`: the messages that wait for their time in the broker."""

from __future__ import annotations

import click

from redelivery.workers import delayed as store
from redelivery.workers.cli.context import Context, json_option, pass_context
from redelivery.workers.cli.output import moment, print_json, safe, short, span, table

__all__ = ["delayed"]


@click.group()
def delayed() -> None:
    """Messages that wait for their time."""


@delayed.command("list")
@click.option("--queue", help="Those of this queue alone.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="The first so many to become due.")
@json_option
@pass_context
def list_(context: Context, queue: str | None, limit: int) -> None:
    """How many wait for each queue, and which become due first."""
    transport = context.transport
    totals = store.totals(transport)
    if queue is not None:
        totals = {queue: totals.get(queue, 0)}
    waiting, now = store.soonest(transport, limit, queue), transport.now_ms()
    if context.as_json:
        print_json({"totals": totals, "now_ms": now, "messages": [each.to_row() for each in waiting]})
        return
    if not any(totals.values()):
        click.echo("Nothing waits." if queue is None else f"Nothing waits for {safe(queue)}.")
        return
    rows = [
        (
            short(each.contents.task_id, 44),
            short(each.contents.task, 40),
            short(each.queue, 40),
            span((each.due_ms - now) / 1000) if each.due_ms > now else "now",
            moment(each.due_ms),
        )
        for each in waiting
    ]
    click.echo(table(rows, ("task id", "task", "queue", "due in", "due at")))
    click.echo("\n" + table([(short(name, 60), count) for name, count in totals.items()], ("queue", "waiting")))
