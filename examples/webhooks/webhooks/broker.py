"""The private brokers of the demo: what it asks of either, and which there are.

A name of `BROKERS` gives a `Broker`, to be used in a `with` block. It runs as long as the block, is reachable from this machine
only, and removes its files. The application knows nothing of this: it is given a URL.
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

    `quiet` is how many seconds without an event say that nothing more comes of what it does not hold. `may_repeat` says that a
    worker which is killed may leave an end that is recorded, and whose message comes again all the same.
    """

    title: str
    quiet: float
    may_repeat: bool

    @property
    def url(self) -> str:
        """The broker URL for Celery."""
        ...

    def events(self) -> list[Event]:
        """What was recorded since it was last asked; the outcome log is left as it is."""
        ...

    def held(self) -> int:
        """How many messages it holds that could still be delivered: waiting, delayed, or with a worker."""
        ...

    def delete_one(self) -> str:
        """Delete a message of the queue behind everybody's back; its task id. Raises `RuntimeError` where there is none."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def private_broker(name: str, queue: str) -> Broker:
    """The broker of this name, not running yet; `queue` is the queue that it is asked about."""
    return RabbitMQ(queue) if name == "rabbitmq" else Valkey(queue)
