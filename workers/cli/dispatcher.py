"""`redelivery dispatcher`: the dispatcher as a process of its own, for fleets that keep it out of their workers."""

from __future__ import annotations

import logging
import signal

import click

from redelivery.middleware.ports import Capability

from ..brokers.redis.transport import redis_of
from ..duties.dispatcher import Dispatcher
from .context import Context, json_option, pass_context

ENDING = {signal.SIGINT, signal.SIGTERM}


@click.command()
@json_option
@pass_context
@click.pass_context
def dispatcher(ctx: click.Context, context: Context) -> None:
    """Move delayed messages that are due to their queues, until stopped.

    Any number may run: one works, the others stand by. SIGTERM ends it with exit code 0, SIGINT with 130.
    """
    instead = "on RabbitMQ delayed messages go to their queues by themselves: neither workers nor you need a dispatcher"
    context.needs(Capability.LEASES, instead)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # The signals are waited for, not handled: blocked here, before the thread begins, they are blocked in it too.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    running = Dispatcher(redis_of(context.runtime))
    try:
        running.start()
        click.echo("dispatcher: running; SIGTERM or Ctrl-C ends it", err=True)
        number = signal.sigwait(ENDING)
        running.stop()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ctx.exit(0 if number == signal.SIGTERM else 130)
