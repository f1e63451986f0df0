"""Channels of an app with redelivery, as in its worker, and functions that receive messages."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from celery import Celery

from redelivery import Redelivery
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.rabbit import Rabbit

__all__ = ["consumed", "filled", "opened", "publish"]


@pytest.fixture
def opened(rabbit: Rabbit) -> Iterator[Callable[[], Any]]:
    """Opens connections of an app with redelivery, whose channels are those of a worker."""
    app = Celery("pace", broker=rabbit.url, set_as_current=False)
    Redelivery(app)
    made: list[Any] = []

    def connect() -> Any:
        made.append(app.connection_for_write())
        made[-1].connect()
        return made[-1]

    yield connect
    for each in made:
        each.release()


def filled(connection: Any, kind: str, count: int) -> str:
    """Make a queue of this type with `count` messages. Returns its name."""
    name = f"pace-{uuid.uuid4().hex[:8]}"
    with connection.connection.channel() as channel:
        channel.queue_declare(name, durable=True, auto_delete=False, arguments={"x-queue-type": kind})
    publish(connection, name, count)
    with connection.connection.channel() as other:
        until(lambda: other.queue_declare(name, passive=True).message_count == count, what="all messages to be there")
    return name


def publish(connection: Any, name: str, count: int) -> None:
    """Publish `count` messages, with confirms."""
    with connection.connection.channel() as channel:
        channel.confirm_select()
        for _ in range(count):
            channel.basic_publish_confirm(amqp.Message("{}"), "", name)


def consumed(connection: Any, channel: Any, name: str, count: int, tag: str = "taker") -> list[int]:
    """Receive at least `count` messages. Returns their delivery tags."""
    tags: list[int] = []
    channel.basic_consume(queue=name, consumer_tag=tag, callback=lambda message: tags.append(message.delivery_tag))
    while len(tags) < count:
        connection.drain_events(timeout=60)
    return tags
