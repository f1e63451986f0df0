"""The demo's `Broker` on RabbitMQ: a private node, in a directory that is removed at the end."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kombu import Connection

from redelivery.middleware.brokers.rabbitmq.names import BITS, AmqpNames
from redelivery.middleware.brokers.rabbitmq.peek import depth_of
from redelivery.workers.brokers.rabbitmq.outcome_log import Listening
from webhooks.rabbit_node import RabbitNode

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event

__all__ = ["RabbitMQ"]


class RabbitMQ:
    """A running node; use it in a `with` block. Raises `BrokerError` if it does not start, or is not installed."""

    title = "RabbitMQ"
    # Longer than on Redis: a delayed message that moves to another level is in no queue for a moment.
    quiet = 10.0
    may_repeat = True

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._names = AmqpNames()
        self._directory = Path(tempfile.mkdtemp(prefix="webhooks-"))
        self._node = RabbitNode(self._directory / "node")
        self._stack = ExitStack()
        self._connection: Any = None
        self._listening: Listening | None = None

    @property
    def url(self) -> str:
        """The broker URL for Celery."""
        return self._node.url

    def events(self) -> list[Event]:
        """The events since the last call, received through a separate queue."""
        return [] if self._listening is None else list(self._listening.new_events())

    def held(self) -> int:
        """The number of messages that wait, are delayed, or are with a worker. Only `rabbitmqctl` tells the last figure."""
        delayed = sum(depth_of(self._connection, self._names.level(bit)) or 0 for bit in range(BITS))
        rows = json.loads(self._node.ctl("list_queues", "name", "messages", "--formatter", "json"))
        return delayed + sum(int(row["messages"]) for row in rows if row["name"] == self._queue)

    def delete_one(self) -> str:
        """Take the oldest message, and acknowledge it; returns its task id."""
        with self._connection.channel() as channel:
            message = channel.basic_get(self._queue, no_ack=True)
        if message is None:
            msg = f"there was no message in {self._queue} to delete"
            raise RuntimeError(msg)
        return str(message.headers["id"])

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            stack.enter_context(self._node.running())
            self._connection = stack.enter_context(Connection(self.url))
            self._listening = Listening(self._connection, self._names)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
