"""The watch over the dead letters on RabbitMQ: as `letter_watch`, by what passive declares tell, for a look would mark the letters.

A queue is *unread* where it has no consumer, and no fewer letters than at the look before: an operator's redrive or purge takes
some. It *grows* where it has one, and yet is longer at each of ten looks in a row. One worker watches: it holds an exclusive queue,
which goes with its connection. Limits: how old the letters are is not to be seen.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError, NotFound, ResourceLocked

from redelivery.workers import dead_letters
from redelivery.workers.letter_watch import LetterWatch, Watched, tell

if TYPE_CHECKING:
    from kombu import Connection

    from redelivery.middleware.runtime import Runtime

__all__ = ["AmqpLetterWatch"]

#: The exclusive queue of whoever watches.
WATCHING = "redelivery.watching"


class AmqpLetterWatch(LetterWatch):
    """Looks at the dead-letter queues twice a minute, on a connection of its own."""

    def __init__(self, install: Runtime) -> None:
        super().__init__(install)
        self._connection: Connection | None = None

    def leads(self) -> bool:
        """Whether this worker watches; it goes on for as long as its connection does."""
        if self._connection is not None and self._connection.connected:
            return True
        self._watched.clear()
        transport: Any = self._install.transport
        self._connection = transport.connect()
        try:
            self._connection.default_channel.queue_declare(WATCHING, exclusive=True)
        except ResourceLocked:
            self.stop_watching()
            return False
        return True

    def step(self) -> None:
        """Look once at every dead-letter queue. Raises `ConnectionError` where the broker does not answer."""
        try:
            found = {name: counts for name in dead_letters.known(self._install) if (counts := self._counts(name)) is not None}
        except (AMQPError, OSError) as exc:
            self.stop_watching()
            raise ConnectionError(str(exc)) from exc
        full = {name: counts for name, counts in found.items() if counts[0]}
        self._watched = {name: self._watched.get(name, Watched()) for name in full}
        for name, (letters, consumers) in full.items():
            watched = self._watched[name]
            is_unread = not consumers and bool(watched.oldest) and letters >= watched.length
            state = watched.look(letters, watched.oldest if is_unread else uuid.uuid4().bytes)
            if state is not None:
                tell(name, state, letters=letters, oldest=None)

    def stop(self) -> None:
        """End, and let another worker watch."""
        super().stop()
        self.stop_watching()

    def stop_watching(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect(socket_timeout=1.0)

    def _counts(self, name: str) -> tuple[int, int] | None:
        """How many letters and how many consumers a queue has; None where there is none of this name."""
        assert self._connection is not None  # noqa: S101 - `leads` has opened it
        try:
            answer: Any = self._connection.default_channel.queue_declare(name, passive=True)
        except NotFound:
            return None
        return int(answer.message_count), int(answer.consumer_count)
