"""The outcome log on RabbitMQ: a durable queue, bound by its name to a topic exchange of the broker.

- An export writes events and flushes them to the disk before it acknowledges them. A crash between the two exports some events
  twice and loses none. The books count each event id once.
- A follower binds its own queue to the exchange, and does not touch the log.
- Reading the newest events holds events of the log, and then gives them back in their order.

One export runs at a time: it declares an exclusive queue, so a second export is refused. `gaps` finds events that left the log
before an export, by the numbers of their publishers.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import ResourceLocked

from redelivery.errors import BrokerError, EnvelopeError, InputError
from redelivery.middleware.brokers.rabbitmq.events import events_of
from redelivery.middleware.brokers.rabbitmq.peek import MAX_HELD, Look, depth_of

from ...export.batch import Batch, Refused, storable
from ...ports import ExportResult, Tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kombu import Connection

    from redelivery.middleware.brokers.rabbitmq.names import AmqpNames
    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
    from redelivery.middleware.messages.events import Event

    from ...ports import Format

#: Seconds of one wait of a follower.
BEAT = 1.0
#: The broker chooses a name for a queue that is declared without one.
UNNAMED = ""
#: The exclusive queue of the running export.
EXPORTING = "redelivery.exporting"


def export_outcomes(
    connection: Connection,
    names: AmqpNames,
    destination: str,
    *,
    format: Format = "parquet",  # noqa: A002 - as on Redis
    batch: int = 50_000,
) -> ExportResult:
    """Export the events that are in the outcome log at the beginning, as `OutcomeLog.export`."""
    from ...export.export import write_events, write_gaps, write_refused  # noqa: PLC0415 - pyarrow is optional
    from .gaps import Publishers  # noqa: PLC0415 - pyarrow is optional

    if batch < 1:
        msg = f"batch = {batch}: give 1 or more"
        raise InputError(msg)
    result, now_ms = ExportResult(destination), round(time.time() * 1000)
    _lock(connection)
    publishers = Publishers.read(destination)
    left = depth_of(connection, names.outcomes) or 0
    while left > 0:
        with Look(connection, names.outcomes, most=left, read=body_of) as look:
            taken, messages = Batch(), []
            for found in look:
                messages.append(found)
                number = result.events + result.refused + len(taken.entries)
                taken.entries.extend(storable(_read(found.raw, f"{now_ms}-{number}")))
                if len(taken.entries) >= batch:
                    break
            if not messages:
                return result
            taken.gaps += publishers.gaps((each for each in taken.entries if not isinstance(each, Refused)), now_ms)
            write_gaps(taken, result, names.outcomes)
            write_refused(taken, result)
            write_events(taken, result, format)
            publishers.write(destination, now_ms)
            for found in messages:
                look.take(found)
            left -= look.held
    return result


def _lock(connection: Connection) -> None:
    """Lock out other exports while this connection is open. Raises `BrokerError` if another export runs."""
    try:
        connection.channel().queue_declare(EXPORTING, exclusive=True)
    except ResourceLocked as exc:
        msg = "another export runs: nothing is lost, but run one export at a time"
        raise BrokerError(msg) from exc


def newest(connection: Connection, names: AmqpNames, limit: int, *, most: int = MAX_HELD) -> tuple[list[Event], int]:
    """Read at most `most` messages. Return the last `limit` events in order, and how many messages were not read."""
    kept: deque[Event] = deque(maxlen=max(limit, 1))
    depth = depth_of(connection, names.outcomes) or 0
    with Look(connection, names.outcomes, most=min(depth, most), read=body_of) as look:
        for found in look:
            kept.extend(_events(found.raw))
        looked_at = look.held
    return (list(kept) if limit else []), max(depth - looked_at, 0)


class AmqpOutcomeLog:
    """Implements `OutcomeLog` on RabbitMQ."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport, self._names = transport, transport.keys

    def lead(self, token: str, lead_ms: int) -> bool:  # noqa: ARG002 - as `OutcomeLog`
        """Return True: a running export locks others out."""
        return True

    def export(self, destination: str, *, format: Format = "parquet", batch: int = 50_000) -> ExportResult:  # noqa: A002 - as `OutcomeLog`
        with self._transport.connect() as connection:
            return export_outcomes(connection, self._names, destination, format=format, batch=batch)

    @contextmanager
    def tail(self, limit: int, *, is_followed: bool) -> Iterator[Tail]:
        with self._transport.connect() as connection:
            listening = Listening(connection, self._names) if is_followed else None
            events, left = newest(connection, self._names, limit)
            yield Tail(events, left, (lambda: iter(())) if listening is None else listening.follow)

    @contextmanager
    def listen(
        self,
        dead_letter_queue: str,  # noqa: ARG002 - the events of all queues come
        *,
        since_ms: int | None = None,  # noqa: ARG002 - the log cannot be read back
    ) -> Iterator[Callable[[float], Iterable[Event]]]:
        with self._transport.connect() as connection:
            listening = Listening(connection, self._names)

            def new_events(seconds: float) -> list[Event]:
                events = list(listening.new_events())
                if not events and seconds > 0:
                    time.sleep(seconds)  # the queue has no consumer: it is polled
                return events

            yield new_events


class Listening:
    """A queue that is bound to the log's exchange: it gets the events that are recorded from now on."""

    def __init__(self, connection: Connection, names: AmqpNames) -> None:
        self._channel: Any = connection.channel()
        self._connection = connection
        self._queue = self._channel.queue_declare(UNNAMED, exclusive=True).queue
        self._channel.queue_bind(self._queue, names.outcomes_exchange, names.outcomes)

    def new_events(self) -> Iterator[Event]:
        """The events that were recorded since the last call."""
        while (message := self._channel.basic_get(self._queue, no_ack=True)) is not None:
            yield from _events(body_of(message))

    def follow(self) -> Iterator[Event]:
        """Yield the events as they are recorded, without end."""
        arrived: deque[Any] = deque()
        self._channel.basic_consume(self._queue, no_ack=True, callback=arrived.append)
        while True:
            while arrived:
                yield from _events(body_of(arrived.popleft()))
            with suppress(TimeoutError):
                self._connection.drain_events(timeout=BEAT)


def body_of(message: Any) -> bytes:
    """The bytes of a message of the log."""
    body = message.body
    return body.encode("utf-8", "replace") if isinstance(body, str) else bytes(body)


def _read(body: bytes, refused_id: str = "") -> list[Event | Refused]:
    """Return the events of a message of the log, or a `Refused` with this id if redelivery did not write the message."""
    try:
        return list(events_of(body))
    except EnvelopeError as exc:
        return [Refused(refused_id, {"body": body.decode("utf-8", "replace")[:1024]}, str(exc))]


def _events(body: bytes) -> list[Event]:
    return [each for each in _read(body) if not isinstance(each, Refused)]
