"""The outcome log on RabbitMQ: exported, looked at, and followed.

The log is a durable queue, bound by its name to one of the broker's own topic exchanges.

- An export takes events, writes them as `export` does, flushed to the disk, and acknowledges them only then. A crash in between
  exports some of them twice and loses none: an event keeps its id, and the books count each id once.
- A follower of the log binds a queue of its own to the exchange: the log itself is not touched.
- A look back holds the log's events meanwhile, and gives them back in their order; an export that runs at that time takes the
  others.

One export runs at a time: it declares an exclusive queue, which ends with its connection, and a second export is refused. Events
that left the log before they were exported are noticed by their publishers' numbers (`gaps`).
"""

from __future__ import annotations

import json
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

#: Seconds that a follower waits at a time.
BEAT = 1.0
#: A connection's own queue is named by the broker.
UNNAMED = ""
#: The exclusive queue of the export that runs.
EXPORTING = "redelivery.exporting"


def export_outcomes(
    connection: Connection,
    names: AmqpNames,
    destination: str,
    *,
    format: Format = "parquet",  # noqa: A002 - as on Redis
    batch: int = 50_000,
) -> ExportResult:
    """Export the events of the outcome log, about `batch` at a time; events that are recorded meanwhile wait for the next export.

    Raises `InputError` if the destination cannot be written or `batch` is not positive, `BrokerError` if another export runs, and
    the broker's errors. Events that were not written stay in the log.
    """
    from ...export.export import write_events, write_gaps, write_refused  # noqa: PLC0415 - as above
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
    """The last `limit` events of at most `most` messages that are looked at, the oldest first, and how many messages were not."""
    kept: deque[Event] = deque(maxlen=max(limit, 1))
    depth = depth_of(connection, names.outcomes) or 0
    with Look(connection, names.outcomes, most=min(depth, most), read=body_of) as look:
        for found in look:
            kept.extend(each for each in _read(found.raw) if not isinstance(each, Refused))
        looked_at = look.held
    return (list(kept) if limit else []), max(depth - looked_at, 0)


class AmqpOutcomeLog:
    """See `OutcomeLog`."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport, self._names = transport, transport.keys

    def lead(self, token: str, lead_ms: int) -> bool:  # noqa: ARG002 - as `OutcomeLog`
        """As `OutcomeLog.lead`: always True, because an export locks out the others while it runs."""
        return True

    def export(self, destination: str, *, format: Format = "parquet", batch: int = 50_000) -> ExportResult:  # noqa: A002 - as `OutcomeLog`
        with self._transport.connect() as connection:
            return export_outcomes(connection, self._names, destination, format=format, batch=batch)

    @contextmanager
    def tail(self, limit: int, *, is_followed: bool) -> Iterator[Tail]:
        """As `OutcomeLog.tail`; events that are recorded meanwhile come through a queue of its own."""
        with self._transport.connect() as connection:
            listening = Listening(connection, self._names) if is_followed else None
            events, left = newest(connection, self._names, limit)
            yield Tail(events, left, (lambda: iter(())) if listening is None else listening.follow)

    @contextmanager
    def hear(
        self,
        dead_letter_queue: str,  # noqa: ARG002 - the events of all queues come
        *,
        since_ms: int | None = None,  # noqa: ARG002 - the log cannot be read back
    ) -> Iterator[Callable[[float], Iterable[Event]]]:
        """As `OutcomeLog.hear`, by a queue of its own that is bound to the log's exchange; no dead letter is looked at."""
        with self._transport.connect() as connection:
            listening = Listening(connection, self._names)

            def heard(seconds: float) -> list[Event]:
                events = list(listening.heard())
                if not events and seconds > 0:
                    time.sleep(seconds)  # the queue has no consumer: it is polled
                return events

            yield heard


class Listening:
    """A queue that is bound to the log's exchange: it gets the events that are recorded from now on; the log is not touched."""

    def __init__(self, connection: Connection, names: AmqpNames) -> None:
        self._channel: Any = connection.channel()
        self._connection = connection
        self._queue = self._channel.queue_declare(UNNAMED, exclusive=True).queue
        self._channel.queue_bind(self._queue, names.outcomes_exchange, names.outcomes)

    def heard(self) -> Iterator[Event]:
        """The events that were recorded since the last call."""
        while (message := self._channel.basic_get(self._queue, no_ack=True)) is not None:
            yield from (each for each in _read(body_of(message)) if not isinstance(each, Refused))

    def follow(self) -> Iterator[Event]:
        """The events as they are recorded, without end."""
        arrived: deque[Any] = deque()
        self._channel.basic_consume(self._queue, no_ack=True, callback=arrived.append)
        while True:
            while arrived:
                yield from (each for each in _read(body_of(arrived.popleft())) if not isinstance(each, Refused))
            with suppress(TimeoutError):
                self._connection.drain_events(timeout=BEAT)


def body_of(message: Any) -> bytes:
    """The bytes of a message of the log."""
    body = message.body
    return body.encode("utf-8", "replace") if isinstance(body, str) else bytes(body)


def _read(body: bytes, refused_id: str = "") -> list[Event | Refused]:
    """The events of a message of the log; if redelivery did not write it, a `Refused` with this id and the reason."""
    try:
        return list(events_of(body))
    except EnvelopeError as exc:
        text = body.decode("utf-8", "replace")
        values = {"body": text[:1024]}
        return [Refused(refused_id, json.loads(json.dumps(values)), str(exc))]
