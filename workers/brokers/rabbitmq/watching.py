"""Watching the queues of a RabbitMQ broker: one worker in a fleet, which holds an exclusive queue, asks by passive declares."""

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
        """Whether this worker watches already."""
        return self._connection is not None and bool(self._connection.connected)

    def begin(self) -> bool:
        """Open the connection; False if another worker watches. Raises the broker's errors."""
        self._connection = self._transport.connect()
        try:
            self._connection.default_channel.queue_declare(WATCHING, exclusive=True)
        except ResourceLocked:
            self.end()
            return False
        self.declare_log()  # what was missing before is no finding: the first worker may begin to watch before the log is there
        return True

    def counts(self, name: str) -> tuple[int, int] | None:
        """How many messages and how many consumers a queue has; None if it does not exist. Raises `ConnectionError`."""
        return self._asked(lambda connection: counts_of(connection, name))

    def declare_log(self) -> bool:
        """Declare the outcome log if it is missing; return whether it was. Raises `ConnectionError`.

        Publishers do not notice a log that was deleted if another queue is bound beside it: the broker routes the events there.
        """
        return self._asked(lambda connection: self._transport.declare_outcomes(connection.connection))

    def _asked(self, ask: Callable[[Connection], Told]) -> Told:
        assert self._connection is not None  # noqa: S101 - `begin` has opened it
        try:
            return ask(self._connection)
        except (AMQPError, OSError) as exc:
            self.end()
            raise ConnectionError(str(exc)) from exc

    def end(self) -> None:
        """Close the connection, and let another worker watch."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect(socket_timeout=1.0)
