"""`redelivery dispatcher`: the dispatcher as a separate process."""

from __future__ import annotations

import click

from redelivery.middleware.ports import Capability

from ...brokers.redis.transport import redis_of
from ...duties.bootstep import end_together
from ...duties.dispatcher import Dispatcher
from ...duties.duty import TIMEOUT
from ...duties.operation_runner import OperationRunner
from ..context import Context, json_option, pass_context
from .serving import served


@click.command()
@json_option
@pass_context
@click.pass_context
def dispatcher(ctx: click.Context, context: Context) -> None:
    """Move delayed messages that are due to their queues, until stopped; carry out operations (`redelivery ops`), too.

    Several dispatchers may run: one works, the others stand by. SIGTERM ends it with exit code 0, SIGINT with 130.
    """
    instead = "on RabbitMQ delayed messages go to their queues by themselves, so no dispatcher is needed"
    context.needs(Capability.LEASES, instead)
    running = Dispatcher(redis_of(context.runtime)), OperationRunner(context.runtime)

    def start() -> None:
        for duty in running:
            duty.start()
        click.echo("dispatcher: running; SIGTERM or Ctrl-C ends it", err=True)

    ctx.exit(served(start, lambda: end_together(running, TIMEOUT)))
