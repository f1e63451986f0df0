"""`redelivery inventory`: what the broker holds at this moment, for the books."""

from __future__ import annotations

import click

from redelivery.workers import inventory as broker
from redelivery.workers.cli.context import Context, json_option, pass_context
from redelivery.workers.cli.output import print_json, safe

__all__ = ["inventory"]


@click.group()
def inventory() -> None:
    """What the broker holds at this moment."""


@inventory.command()
@click.option("--to", "uri", required=True, metavar="URI", help="Folder for the file: a path, or a URI such as s3://bucket/prefix.")
@click.option("--format", "kind", type=click.Choice(["parquet", "jsonl"]), default="parquet", show_default=True)
@json_option
@pass_context
def export(context: Context, uri: str, kind: str) -> None:
    """Write one row for each message: where it is, when it is due, who holds it. Replaces an earlier inventory there.

    Export the outcomes first: what ends in between is then young, and no discrepancy.
    """
    from redelivery.workers.tables import INVENTORY, write_rows  # noqa: PLC0415 - pyarrow is an optional dependency

    context.transport  # noqa: B018 - whether the broker answers is known before it is walked
    taken = broker.take(context.install)
    write_rows(taken.rows(), uri, INVENTORY, name="inventory", format="jsonl" if kind == "jsonl" else "parquet")
    counts = taken.counts()
    if context.as_json:
        print_json({"destination": uri, "file": f"inventory.{kind}", "messages": sum(counts.values()), "places": counts})
        return
    places = ", ".join(f"{count} {place}" for place, count in counts.items())
    click.echo(f"{sum(counts.values())} messages ({places}) written to {safe(uri)}/inventory.{kind}.")
