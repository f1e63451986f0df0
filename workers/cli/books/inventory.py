"""`redelivery inventory`: what the broker holds at this moment, for the books."""

from __future__ import annotations

import json

import click

from redelivery.display import harmless, safe, scrubbed

from ...operations.inventory.deadlines import deadlines_of
from ...operations.inventory.inventory import take
from ...operations.words.numbers import counted
from ..context import Context, json_option, pass_context
from ..terminal.options import PLACE
from ..terminal.output import print_json, say


@click.group()
def inventory() -> None:
    """What the broker holds now."""


@inventory.command()
@click.option(
    "--to",
    "uri",
    type=PLACE,
    required=True,
    metavar="URI",
    help="Folder for the file: a path, or a URI such as s3://bucket/prefix.",
)
@click.option("--format", "kind", type=click.Choice(["parquet", "jsonl"]), default="parquet", show_default=True)
@click.option(
    "--look", is_flag=True, help="RabbitMQ: list the messages in queues, too. Each of them then counts as delivered once more."
)
@click.option(
    "--messages/--no-messages",
    default=None,
    help="Write what the exceptions of dead letters said (200 characters). By default only to a folder on this machine.",
)
@json_option
@pass_context
def export(context: Context, uri: str, kind: str, *, look: bool, messages: bool | None) -> None:
    """Write one row for each message: where it is, when it is due, who holds it. Replaces the inventory in that folder.

    Take the inventory before you export the outcomes, so that tasks that end in between are among the outcomes. On RabbitMQ,
    messages in queues are counted and not listed, because reading a message marks it. Messages that workers hold are not seen.
    Take the inventory when the queues are empty, or use --look.
    """
    from ...export.commits import ending_of  # noqa: PLC0415 - pyarrow is an optional dependency
    from ...export.tables import (  # noqa: PLC0415 - as above
        INVENTORY,
        is_on_this_machine,
        remove,
        size_of,
        write_rows,
        write_text,
    )

    context.transport  # noqa: B018 - raises if the broker does not answer
    looked_ms = context.transport.now_ms()
    taken = take(context.runtime, look=look)
    has_messages = is_on_this_machine(uri) if messages is None else messages
    rows = taken.rows(redact=context.settings.redact or not has_messages)
    write_rows(rows, uri, INVENTORY, name="inventory", format="jsonl" if kind == "jsonl" else "parquet")
    remove(uri, f"inventory.{'parquet' if kind == 'jsonl' else 'jsonl'}")  # otherwise `reconcile` would read an older file, too
    written = {"file": f"inventory.{kind}", "bytes": size_of(uri, f"inventory.{kind}")}
    app = context.runtime.app
    whose = {"app": str(app.main or ""), "broker": scrubbed(app.connection_for_write().as_uri())}
    deadlines = deadlines_of(context.runtime)
    more = {name: value for name, value in (("unlisted", taken.unlisted), ("deadlines", deadlines)) if value}
    said = {"seen_ms": looked_ms, **written, **whose, "ending": ending_of(context.transport.keys.outcomes), **more}
    write_text(json.dumps(said), uri, "_taken.json")
    counts = taken.counts()
    if context.as_json:
        done = {"destination": scrubbed(uri), "file": f"inventory.{kind}", "messages": sum(counts.values()), "places": counts}
        print_json(done if context.can_browse else {**done, "unlisted": taken.unlisted})
        return
    places = ", ".join(f"{count} {place}" for place, count in counts.items())
    say(f"{counted(sum(counts.values()), 'message', 'messages')} ({places}) written to {harmless(uri)}/inventory.{kind}.")
    for queue, count in taken.unlisted.items():
        held = counted(count, "message", "messages")
        hint = "" if look else " --look lists what waits in queues."
        say(f"{safe(queue)}: {held} counted, not listed. `reconcile` may report them as lost.{hint}", err=True)
