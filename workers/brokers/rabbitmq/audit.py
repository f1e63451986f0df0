"""The audit on RabbitMQ: a stream, which is declared at the first record. Reading does not change it.

A record's id is its time and its offset in the stream. A reader consumes all records at once. It has all of them when the broker
answers another request on the same channel and no record came before the answer. Limits: the time comes from the recorder's clock.
The broker uses some offsets itself, so the number of dropped records is unknown. If no stream may be declared, a warning is logged
and nothing is recorded; the operation itself continues.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import amqp
from amqp.exceptions import AccessRefused, InternalError, MessageNacked, NotFound, PreconditionFailed, ResourceError
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from redelivery.errors import BrokerUnavailable
from redelivery.middleware.brokers.rabbitmq.messages import PERSISTENT
from redelivery.middleware.brokers.rabbitmq.topology import declare_audit
from redelivery.middleware.logs import log

from ...ports import Gap, Record, Recorded

if TYPE_CHECKING:
    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport

#: The prefetch count; larger than the number of records that the broker keeps.
MAX_UNREAD = 2**16 - 1
#: The maximum number of offsets that the broker uses itself: one for each file.
MARGIN = 16
#: The maximum seconds until a confirmation.
TIMEOUT = 30.0
#: The maximum seconds until a stream sends its first record.
FIRST = 1.0
AT, OFFSET = "at_ms", "x-stream-offset"
#: While another client declares the stream, it has no writer: RabbitMQ 3.10 then refuses records and closes the connection.
_retry_while_declared = retry(
    retry=retry_if_exception_type((InternalError, ResourceError)), wait=wait_fixed(0.2), stop=stop_after_attempt(5), reraise=True
)


class AmqpAudit:
    """Implements `AuditStore` on RabbitMQ."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport, self.name = transport, transport.keys.audit

    @_retry_while_declared
    def record(self, said: str) -> None:
        with self._transport.connect() as connection:
            if not declare_audit(connection.connection, self.name):
                return
            headers = {AT: self._transport.now_ms()}
            message = amqp.Message(said, content_type="application/json", delivery_mode=PERSISTENT, application_headers=headers)
            try:
                connection.connection.channel().basic_publish_confirm(message, routing_key=self.name, confirm_timeout=TIMEOUT)
            except (TimeoutError, MessageNacked) as exc:
                connection.collect(socket_timeout=1.0)  # a blocked broker does not answer a close
                msg = f"the broker does not accept the record for {self.name}: look at its alarms"
                raise BrokerUnavailable(msg) from exc

    def records(self, limit: int) -> list[Record]:
        with self._transport.asking() as connection:
            end = _end(_read(connection, self.name, "last"))
            # While another client records, the last file may have no confirmed record yet.
            read = _read(connection, self.name, max(end - limit - MARGIN, 0) if end else "first")
        return [record for _, record in read[::-1]][:limit]

    def following(self, record_id: str, position: int) -> Recorded:
        with self._transport.asking() as connection:
            read = _read(connection, self.name, max(position - 1, 0))
            is_first = read and read[0][0] == position - 1
            is_another = (is_first and read[0][1].record_id != record_id) or (not read and position > 0)
            if is_another:
                read, is_first = _read(connection, self.name, "first"), False
        records = [record for _, record in (read[1:] if is_first else read)]
        if not records:
            return Recorded([], position)
        if not is_another and read[0][0] <= position:
            return Recorded(records, _end(read))
        why = "replaced" if is_another else "cap"
        gap = Gap(after=record_id, before=records[0].record_id, lost=None, why=why, noticed_ms=self._transport.now_ms())
        return Recorded(records, _end(read), gap)


def _end(read: list[tuple[int, Record]]) -> int:
    """Return the offset after the last record; 0 if there is none."""
    return read[-1][0] + 1 if read else 0


def _read(connection: Any, name: str, since: int | str) -> list[tuple[int, Record]]:
    """Return the records from this offset on, each with its offset; none if the stream does not exist."""
    found: list[tuple[int, Record]] = []
    with connection.connection.channel() as channel:
        channel.basic_qos(0, MAX_UNREAD, a_global=False)
        try:
            channel.basic_consume(name, callback=lambda message: found.append(_record(message)), arguments={OFFSET: since})
        except NotFound:
            return []
        except AccessRefused as exc:
            log.warning("audit.unread", error=str(exc), why="give this user the right to read it")
            return []
        except PreconditionFailed as exc:
            log.warning("audit.unread", error=str(exc), why="somebody declared it as another type of queue: delete it")
            return []
        _catch_up(channel, found)
        if not found:  # a stream is never empty, but while another client records it may not have begun to send
            with suppress(TimeoutError):
                connection.connection.drain_events(timeout=FIRST)
            _catch_up(channel, found)
    return found


def _catch_up(channel: Any, found: list[tuple[int, Record]]) -> None:
    before = -1
    while before < len(found):
        before = len(found)
        channel.basic_qos(0, MAX_UNREAD, a_global=False)  # the broker answers after it has sent the records


def _record(message: Any) -> tuple[int, Record]:
    headers = message.headers or {}
    offset, at_ms = int(headers[OFFSET]), headers.get(AT)
    at_ms = at_ms if isinstance(at_ms, int) and at_ms > 0 else 0
    body = message.body
    said = body if isinstance(body, str) else bytes(body).decode("utf-8", "replace")
    return offset, Record(f"{at_ms}-{offset}", at_ms, said)
