"""A task's life on RabbitMQ: its events in the log, and where it waits or lies dead.

As on Redis, but for what waits to be run and what workers hold: that is counted, and named as not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ports import Place
from . import outcome_log as amqp_outcomes
from .delay_store import AmqpDelayStore
from .inventory import unlisted

if TYPE_CHECKING:
    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport

    from ...ports import TaskLife


def read_events(transport: AmqpTransport, life: TaskLife, most: int) -> None:
    """Add the events of every task whose id begins so; of the log, the `most` oldest messages are looked at."""
    with transport.connect() as connection:
        events, left = amqp_outcomes.newest(connection, transport.keys, most, most=most)
    life.events += sorted((each for each in events if each.task_id.startswith(life.task_id)), key=lambda event: event.at_ms)
    if left:
        life.cut.append(f"outcome log: {left} newer messages were not looked at")


def read_places(transport: AmqpTransport, queues: list[str], life: TaskLife) -> None:
    """Add where such a task waits for its time, and say what of these queues was not looked at."""
    with transport.connect() as connection:
        for name, count in unlisted(connection, queues).items():
            life.cut.append(f"{name}: {count} messages wait to be run, and a look would count as a delivery of each")
    for each in AmqpDelayStore(transport).like(life.task_id):
        life.places.append(Place("delayed", each.queue, each.contents, {"due_ms": each.due_ms}))
