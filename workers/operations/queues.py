"""Queues by name: whether a queue exists, and how one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.errors import InputError
from redelivery.settings.values import suggestion

from ..brokers.broker import broker_of, needed
from .letters import dead_letters

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime


def require_queue(runtime: Runtime, name: str, *, instead: str = "") -> None:
    """Raise `InputError` if neither the app, its dead letters nor the broker know this queue; `instead` says what else to do."""
    letters = dead_letters.known(runtime)
    known = {*runtime.app.amqp.queues, *letters, *letters.values()}
    if name not in known and not needed(broker_of(runtime.transport).letters).has_queue(name):
        near = suggestion(name, known)
        msg = f"there is no queue {name!r}{near}{'' if not instead else f' {instead.capitalize()}' if near else f'; {instead}'}"
        raise InputError(msg)


def declare(runtime: Runtime, name: str) -> None:
    """Make the queue, if it does not exist, as a worker of the app makes it when it begins to consume it (`-Q`)."""
    with runtime.app.connection_for_write() as connection:
        runtime.app.amqp.queues[name](connection.default_channel).declare()
