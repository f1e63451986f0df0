"""Watches the queues of a RabbitMQ broker by passive declares. One worker of a fleet does it: it holds an exclusive queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from amqp.exceptions import AMQPError, ResourceLocked

from redelivery.middleware.brokers.rabbitmq.peek import counts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu import Connection

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
    from redelivery.middleware.ports import Transport

Told = TypeVar("Told")
#: The exclusive queue of the worker that watches.
WATCHING = "redelivery.watching"


class Watching:
    """One worker's watch, while its connection is open."""

    def __init__(self, transport: Transport) -> None:
        self._transport = cast("AmqpTransport", transport)
        self._connection: Connection | None = None

    @property
    def goes_on(self) -> bool:
        """Whether this worker watches."""
        return self._connection is not None and bool(self._connection.connected)

    def begin(self) -> bool:
        """Open the connection. Returns False if another worker watches. Raises the broker's errors."""
        self._connection = self._transport.connect()
        try:
            self._connection.default_channel.queue_declare(WATCHING, exclusive=True)
        except ResourceLocked:
            self.end()
            return False
        self.declare_log()  # a first worker may begin to watch before the log exists, which is no finding
        return True

    def counts(self, name: str) -> tuple[int, int] | None:
        """Return the numbers of messages and consumers of a queue; None if it does not exist. Raises `ConnectionError`."""
        return self._ask(lambda connection: counts_of(connection, name))

    def declare_log(self) -> bool:
        """Declare the outcome log if it does not exist. Returns whether it was missing. Raises `ConnectionError`.

        Publishers do not notice that the log was deleted if another queue is bound to its exchange: the events still have a route.
        """
        return self._ask(lambda connection: self._transport.declare_outcomes(connection.connection))

    def _ask(self, ask: Callable[[Connection], Told]) -> Told:
        assert self._connection is not None  # noqa: S101 - `begin` has opened it
        try:
            return ask(self._connection)
        except (AMQPError, OSError) as exc:
            self.end()
            raise ConnectionError(str(exc)) from exc

    def end(self) -> None:
        """Close the connection, so that another worker can watch."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect(socket_timeout=1.0)
