"""A message on brokers that only kombu knows: moved without a loss, put back as it came, and never in two places at a time."""

from __future__ import annotations

import base64
import types
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Exchange, Queue
from kombu.utils.json import loads

from redelivery import Redelivery
from redelivery.middleware.brokers.kombu.deliveries import envelope_of
from redelivery.middleware.brokers.kombu.generic import GenericTransport
from redelivery.middleware.messages.steps import opened, sealed
from redelivery.middleware.ports import Answer
from redelivery.middleware.worker.lifecycle import begin, end
from tests.support.files import Files
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def files(folder: Path) -> Files:
    """A broker of the test's own."""
    return Files(folder)


# what is held


def test_what_kombu_puts_back_is_what_came_and_is_nobodys_to_end(files: Files) -> None:
    """When its channel closes, kombu puts back the original, marked as redelivered; the old delivery can no longer move it."""
    app = Celery("held", broker=files.url, set_as_current=False)
    app.conf.update(files.conf)
    Redelivery(app)
    transport = GenericTransport.of(app)
    claim = transport.claim_for("w")
    with app.connection_for_write() as connection:
        first = received(claim, connection, lambda channel: channel.basic_publish(made(channel), exchange="", routing_key="orders"))
        assert not first.delivery_info["redelivered"]
        first.headers, first.body, first.content_type = {"id": "changed"}, b"changed", "text/plain"
        first.channel.close()
        (back,) = files.messages("orders")
        assert (back["headers"], back["content-type"], base64.b64decode(back["body"])) == (MADE, "application/x-data", b"\x80\xff")
        second = received(claim, connection)
        assert second.delivery_info["redelivered"] is True
        assert opened(second.held.raw)["headers"] == MADE
        for tag, answer in ((first.held.tag, Answer.REFUSED), (second.held.tag, Answer.DONE)):
            assert transport.defer(tag, "orders", second.held.raw, task_id="one", event=None, delay_ms=0) is answer
        second.channel.close()
    transport.close()
    assert [each["headers"] for each in files.messages("orders")] == [{**MADE, "eta": None}]


def test_what_has_yet_to_leave_when_the_worker_stops_leaves_once(files: Files) -> None:
    """A stopping worker does not give back a message whose move to the dead-letter queue failed and is tried again."""
    app = Celery("ending", broker=files.url, set_as_current=False)
    app.conf.update(files.conf)
    install = Redelivery(app)
    begin(install, "w")
    transport: Any = install.transport
    with app.connection_for_write() as connection:
        message = received(install.owner, connection, lambda channel: channel.basic_publish(made(channel), "", "orders"))
        raw, failures = message.held.raw, iter([ConnectionError("not now")])

        def transition() -> Answer:
            for failure in failures:
                raise failure
            return transport.dead_letter(message.held.tag, raw, dead_letter_queue="DLQ.orders", queue="orders", event=None)  # type: ignore[no-any-return]

        install.outbox.carry_out(message.held.tag, transition, lambda _: install.owner.drop(message.held.tag))
        end(install)
        message.channel.close()
    assert (len(files.letters("DLQ.orders")), files.messages("orders")) == (1, [])


def test_a_broker_that_is_away_is_not_the_messages_fault(files: Files) -> None:
    """An absent broker raises an error that the outbox knows, and every message waits; an unpublishable message fails alone."""
    raw = envelope_of({"body": "", "headers": dict(MADE), "properties": {}}, was_moved=False)
    app = Celery("away", broker="redis://127.0.0.1:1/0", set_as_current=False)
    with pytest.raises(ConnectionError, match="does not answer"):
        GenericTransport(app).defer("", "orders", raw, task_id="one", event=None, delay_ms=0)
    here = Celery("here", broker=files.url, set_as_current=False)
    here.conf.update(files.conf)
    transport = GenericTransport.of(here)
    odd = sealed({**opened(raw), "body": "x", "properties": {"body_encoding": "base64"}})
    with pytest.raises(ValueError, match="base64"):
        transport.defer("", "orders", odd, task_id="one", event=None, delay_ms=0)
    transport.defer("", "orders", raw, task_id="one", event=None, delay_ms=0)
    transport.close()
    assert [each["headers"]["id"] for each in files.messages("orders")] == ["one"]


MADE = {"id": "one", "task": "t"}


def made(channel: Any) -> Any:
    """A message."""
    return channel.prepare_message(b"\x80\xff", 0, "application/x-data", "binary", dict(MADE), {})


def received(claim: Any, connection: Any, publish: Callable[[Any], None] = lambda _: None) -> Any:
    """One message of the queue `orders`, as a worker holds it that has just connected."""
    found: list[Any] = []
    channel = connection.channel()
    consumer = Consumer(channel, [Queue("orders", Exchange(""), "orders")], on_message=found.append)
    claim.attach(types.SimpleNamespace(task_consumer=consumer))
    consumer.consume()
    publish(channel)
    until(lambda: connection.drain_events(timeout=5) or found, what="the message")
    assert claim.take(found[0]).queue == "orders"
    return found[0]


# what is written


def test_a_message_is_moved_without_a_loss() -> None:
    """Values that only kombu's JSON can hold, bytes, properties and priority are kept; fields that a transport added are not."""
    app = Celery("moved", broker="memory://", set_as_current=False)
    Redelivery(app)
    queue = f"moved-{uuid.uuid4()}"
    at = datetime(2026, 1, 2, tzinfo=UTC)
    headers = {"id": "one", "task": "t", "at": at, "price": Decimal("1.50"), "raw": b"\xff\x00", "odd": object}
    with Connection("memory://") as connection:
        channel = connection.default_channel
        made = channel.prepare_message(
            b"\x80\xff", 7, "application/x-data", "binary", headers, {"correlation_id": "c", "reply_to": "r", "MessageGroupId": "g"}
        )
        channel.queue_declare(queue=queue)
        channel.basic_publish(made, exchange="", routing_key=queue)
        payload = channel.basic_get(queue, no_ack=True)._raw
        payload["properties"]["delivery_info"]["sqs_message"] = object()
        raw = envelope_of(payload, was_moved=True)
        assert opened(raw)["properties"]["delivery_info"] == {"exchange": "", "routing_key": queue, "redelivered": True}
        transport = GenericTransport.of(app)
        transport.defer("", queue, raw, task_id="one", event=None, delay_ms=0)
        again = channel.basic_get(queue, no_ack=True)
        transport.close()
    assert (again.body, again.content_type, again.content_encoding) == (b"\x80\xff", "application/x-data", "binary")
    assert {name: again.properties[name] for name in ("correlation_id", "reply_to", "MessageGroupId", "priority")} == {
        "correlation_id": "c",
        "reply_to": "r",
        "MessageGroupId": "g",
        "priority": 7,
    }
    assert again.headers == {**headers, "odd": "<class 'object'>", "eta": None}
    assert again.delivery_info["redelivered"] is True


def test_a_file_is_seen_by_others_when_it_is_whole(files: Files) -> None:
    """A file that kombu itself writes is visible, and empty, while its message is still being written."""
    seen: list[list[str]] = []

    class Looking:
        def __json__(self) -> str:
            seen.append([path.name for path in files.queues.glob("*.msg")])
            return "written"

    options = files.conf["broker_transport_options"]
    with files.connection() as ours, Connection(files.url, transport_options=options) as plain:
        for connection in (plain, ours):
            channel = connection.default_channel
            channel._put("orders", {"headers": {"look": Looking()}})
            (path,) = files.queues.iterdir()
            assert loads(path.read_bytes()) == {"headers": {"look": "written"}}
            assert channel._get("orders") == {"headers": {"look": "written"}}
    assert [len(each) for each in seen] == [1, 0]
