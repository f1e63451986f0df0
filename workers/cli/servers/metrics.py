"""`redelivery metrics`: the broker's figures for Prometheus, once, or at each scrape."""

from __future__ import annotations

import click

from redelivery.errors import InputError

from ...operations.metrics.metrics import Living, measured
from ...operations.metrics.server import MetricsServer
from ..context import Context, json_option, pass_context
from ..terminal.options import ADDRESS
from ..terminal.output import print_json
from .serving import is_loopback, served


@click.command()
@click.option(
    "--listen",
    type=ADDRESS,
    metavar="HOST:PORT",
    help="Serve /metrics at this address until stopped; without a host, on the loopback.",
)
@json_option
@pass_context
@click.pass_context
def metrics(ctx: click.Context, context: Context, listen: tuple[str, int] | None) -> None:
    """Print figures for Prometheus: queues, delays, dead letters, workers, the outcome log.

    It needs a few commands for each queue, however long the queue is. With --listen it makes the page for each request, over plain
    http and without a password. If the broker does not answer, the page is a 503. SIGTERM ends the command with exit code 0, SIGINT
    with 130. Everything but --json needs the extra `metrics`.
    """
    context.transport  # noqa: B018 - raises if the broker does not answer
    if listen is not None:
        if context.as_json:
            msg = "--listen serves Prometheus' own format: leave out --json"
            raise click.UsageError(msg)
        ctx.exit(_serve(context, *listen))
    if context.as_json:
        print_json([family.to_dict() for family in measured(context.runtime)])
        return
    from ...operations.metrics.collector import Families, page_of  # noqa: PLC0415 - prometheus_client is an extra

    click.echo(page_of(Families(lambda: measured(context.runtime)))[0].decode(), nl=False)


def _serve(context: Context, host: str, port: int) -> int:
    """Serve until a signal arrives. Returns the exit code."""
    from ...operations.metrics.collector import Families, page_of  # noqa: PLC0415 - as above

    living = Living(context.runtime.settings.lease)
    families = Families(lambda: measured(context.runtime, living))
    try:
        server = MetricsServer(host, port, lambda accept: page_of(families, accept))
    except OSError as exc:
        msg = f"cannot listen on {host}:{port} ({exc.strerror or exc}): choose another address with --listen"
        raise InputError(msg) from exc

    def begin() -> None:
        server.begin()
        click.echo(f"metrics: {server.url}; SIGTERM or Ctrl-C ends it", err=True)
        if not is_loopback(host):
            click.echo("metrics: there is no password: everybody who can reach this address can read them", err=True)

    return served(begin, server.end)
