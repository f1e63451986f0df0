"""Checks whether a queue exists, and declares queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.errors import InputError
from redelivery.settings.values import suggestion

from .letters import dead_letters

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime


def require_queue(runtime: Runtime, name: str, *, instead: str = "") -> None:
    """Raise `InputError` if the app, its dead letters and the broker do not know this queue; `instead` suggests what to do."""
    letters = dead_letters.known(runtime)
    known = {*runtime.app.amqp.queues, *letters, *letters.values()}
    if name not in known and not runtime.transport.has_queue(name):
        near = suggestion(name, known)
        msg = f"there is no queue {name!r}{near}{'' if not instead else f' {instead.capitalize()}' if near else f'; {instead}'}"
        raise InputError(msg)


def declare(runtime: Runtime, name: str) -> None:
    """Declare the queue, as a worker of the app declares it when it begins to consume it (`-Q`)."""
    with runtime.app.connection_for_write() as connection:
        runtime.app.amqp.queues[name](connection.default_channel).declare()
