"""A task's life on RabbitMQ: its events in the log, and where it waits or lies dead.

As on Redis, but for what waits to be run and what workers hold: that is counted, and named as not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.workers import amqp_outcomes, dead_letters
from redelivery.workers.amqp_delayed import AmqpDelayStore
from redelivery.workers.amqp_inventory import unlisted
from redelivery.workers.amqp_letters import AmqpDesk
from redelivery.workers.ports import Place
from redelivery.workers.redaction import seen
from redelivery.workers.redis_transport import redis_of

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime
    from redelivery.workers.ports import TaskLife

__all__ = ["read"]


def read(install: Runtime, life: TaskLife, most: int) -> None:
    """Add what is known; of the log, the `most` oldest messages are looked at."""
    other: Any = redis_of(install)
    desk = AmqpDesk.of(other)
    letter_queues = dead_letters.known(install)
    with desk.amqp.connect() as connection:
        events, left = amqp_outcomes.newest(connection, desk.keys, most, most=most)
        life.events += sorted((event for event in events if event.task_id == life.task_id), key=lambda event: event.at_ms)
        if left:
            life.cut.append(f"outcome log: {left} newer messages were not looked at")
        for name, count in unlisted(connection, sorted(set(install.app.amqp.queues) - set(letter_queues))).items():
            life.cut.append(f"{name}: {count} messages wait to be run, and a look would count as a delivery of each")
    for each in AmqpDelayStore(desk.amqp).of_task(life.task_id):
        life.places.append(Place("delayed", each.queue, each.contents, {"due_ms": each.due_ms}))
    for name in letter_queues:
        for letter in dead_letters.found(redis_of(install), name, {life.task_id}):
            life.places.append(Place("dead_letter", name, letter.contents, seen(install, letter).to_row()))
