"""kombu's transport for the skeleton: Celery publishes and receives with it. An existing kombu transport needs no such file."""

from __future__ import annotations

import json
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from tests.support.skeleton_broker.tables import Tables
from tests.support.skeleton_broker.transport import SkeletonTransport

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Channel", "Transport"]


class Message(virtual.Message):
    """A message with its queue and its original bytes, so that a move does not encode it again."""

    def __init__(self, payload: dict[str, Any], channel: Any = None, **kwargs: Any) -> None:
        self.queue, self.raw, self.held = payload["queue"], payload["raw"], None
        super().__init__(payload, channel=channel, **kwargs)


class Channel(virtual.Channel):
    """A channel on the tables of one file (`broker_transport_options["file"]`)."""

    Message = Message
    do_restore = True
    supports_fanout = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tables = Tables(self.connection.client.transport_options["file"])

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        self.tables.put(queue, json.dumps(message).encode())

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002 - kombu's signature
        found = self.tables.take(queue)
        if found is None:
            raise Empty
        number, raw = found
        payload = json.loads(raw)
        properties = {**payload["properties"], "delivery_tag": str(number)}
        return {**payload, "properties": properties, "queue": queue, "raw": raw}

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        with self.tables.transaction() as rows:
            rows.execute("INSERT OR IGNORE INTO bindings VALUES (?, ?, ?, ?)", (exchange, routing_key, pattern, queue))

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """The bindings of this exchange, by any process."""
        with self.tables.transaction() as rows:
            return list(rows.execute("SELECT key, pattern, queue FROM bindings WHERE exchange = ?", (exchange,)))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any) -> None:  # noqa: ARG002 - as above
        for queue in {queue for _, _, queue in self.get_table(exchange)}:
            self._put(queue, message)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge the message. A message that was moved is gone already."""
        self.tables.move(int(delivery_tag), None)
        super().basic_ack(delivery_tag, multiple=multiple)

    def _restore(self, message: virtual.Message) -> None:
        self.tables.give_back(int(message.delivery_tag))

    def _size(self, queue: str) -> int:
        with self.tables.transaction() as rows:
            count: int = rows.execute("SELECT count(*) FROM messages WHERE queue = ? AND NOT held", (queue,)).fetchone()[0]
            return count

    def _purge(self, queue: str) -> int:
        with self.tables.transaction() as rows:
            return rows.execute("DELETE FROM messages WHERE queue = ? AND NOT held", (queue,)).rowcount

    def close(self) -> None:
        """Give back the messages that were not acknowledged (kombu does this), and close the file."""
        super().close()
        self.tables.close()


class Transport(virtual.Transport):
    """The value of `broker_transport`. It names the transitions for `Redelivery`."""

    Channel = Channel
    driver_type = driver_name = "skeleton"
    implements = virtual.Transport.implements.extend(exchange_type=frozenset({"direct", "topic", "fanout"}))

    @staticmethod
    def transitions_of(app: Celery) -> SkeletonTransport:
        """The broker as a `redelivery.middleware.ports.Transport`."""
        return SkeletonTransport(app)
