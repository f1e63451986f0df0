"""The private brokers of the demo.

`private_broker` makes one. It runs during its `with` block, is reachable from this machine only, and removes its files. The
application only gets its URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from webhooks.rabbitmq import RabbitMQ
from webhooks.valkey import Valkey

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event

__all__ = ["BROKERS", "Broker", "private_broker"]

BROKERS = ("redis", "rabbitmq")


class Broker(Protocol):
    """A running broker.

    `quiet`: after this many seconds without an event, only messages that it holds can still cause one. `may_repeat`: if a worker is
    killed, a message whose end is recorded may be delivered again.
    """

    title: str
    quiet: float
    may_repeat: bool

    @property
    def url(self) -> str:
        """The broker URL for Celery."""
        ...

    def events(self) -> list[Event]:
        """The events since the last call. The outcome log does not change."""
        ...

    def held(self) -> int:
        """The number of messages that can still be delivered: waiting, delayed, or with a worker."""
        ...

    def delete_one(self) -> str:
        """Delete a message of the queue without a record; returns its task id. Raises `RuntimeError` if there is none."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def private_broker(name: str, queue: str) -> Broker:
    """The broker of this name, not running yet, for this queue."""
    return RabbitMQ(queue) if name == "rabbitmq" else Valkey(queue)
