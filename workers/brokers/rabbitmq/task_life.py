"""A task's life on RabbitMQ: its events in the log, its delayed messages, and its dead letters.

Messages in ordinary queues are counted and reported as not read. Messages that workers hold are not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ports import Place
from .delay_store import AmqpDelayStore
from .inventory import unlisted
from .letters import AmqpLetterStore
from .outcome_log import newest

if TYPE_CHECKING:
    from collections.abc import Collection

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport

    from ...ports import TaskLife


class AmqpTasks:
    """Implements `TaskSource` on RabbitMQ. It reads the oldest messages of the log."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport = transport

    def read_log(self, life: TaskLife, most: int) -> None:
        with self._transport.connect() as connection:
            events, left = newest(connection, self._transport.keys, most, most=most)
        life.events += sorted((each for each in events if each.task_id.startswith(life.task_id)), key=lambda event: event.at_ms)
        if left:
            life.cut.append(f"outcome log: {left} newer messages were not looked at")

    def find(self, life: TaskLife, queues: Collection[str], letter_queues: Collection[str], most: int) -> None:  # noqa: ARG002
        transport = self._transport
        with transport.connect() as connection:
            for name, count in unlisted(connection, queues).items():
                why = "that would count as a delivery of each"
                life.cut.append(f"{name}: messages that wait to run were not read ({count}): {why}")
        for each in AmqpDelayStore(transport).like(life.task_id):
            life.places.append(Place("delayed", each.queue, each.contents, {"due_ms": each.due_ms}))
        store = AmqpLetterStore(transport)
        for name in letter_queues:
            life.places += [Place("dead_letter", name, letter) for letter in store.found(name, {life.task_id})]
