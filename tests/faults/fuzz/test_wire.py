"""Messages that other clients can write to RabbitMQ, but py-amqp cannot: none ends a worker or an operator's command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.brokers.rabbitmq.messages import MAX_HEADERS
from redelivery.middleware.messages.envelope import ANNOUNCED, COPIES, DELIVERED, ELIGIBLE, EXPIRATION, HEADER, RELEASED
from redelivery.middleware.messages.events import TERMINAL
from redelivery.middleware.messages.ttl import DELIVERY_DELAY, PUBLISHED, TIME_TO_LIVE
from tests.faults.fuzz.hostile_messages import ENCODINGS
from tests.faults.fuzz.test_header import answers
from tests.faults.fuzz.test_hostile import HEADERS
from tests.faults.fuzz.test_lies import HOSTILE
from tests.support.desk import task_message
from tests.support.hostile.wire import ODD, deep, wired
from tests.support.lanes import FULL, first_quick
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import amqp

    from tests.support.rabbit import Rabbit

SETTINGS = {"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}}
VALUES = {
    **ODD,
    **{f"{kind!r} nested {depth} deep": deep(depth, kind) for kind in (b"A", b"F") for depth in (64, 65, 600, 2000)},
}
#: Values that JSON can express.
PLAIN: tuple[Any, ...] = (None, True, -1, 2**63 - 1, 1e308, "", "x" * 300, "\u0000\u202e", [], {}, [[]], {"": []})
#: Headers that we, Celery's delays and RabbitMQ read, besides `HEADER` and Celery's own: any client may write them.
OTHERS = (
    *(ANNOUNCED, COPIES, DELIVERED, ELIGIBLE, EXPIRATION, RELEASED, PUBLISHED, TIME_TO_LIVE, DELIVERY_DELAY),
    *("x-death", "x-delivery-count", "x-first-death-queue", "redelivered", "traceparent", "eta", "expires"),
)
#: Properties that must be short texts, each with a value that is none.
PROPERTIES: tuple[dict[str, bytes], ...] = (
    {"correlation_id": b"\xff" * 255},
    {"reply_to": b"\xed\xa0\x80"},
    {"content_type": b"\xfe"},
    {"content_encoding": b"\xfe"},
    *({"content_encoding": each.encode()} for each in ENCODINGS if isinstance(each, str)),
)


def said(number: int, headers: dict[Any, Any], task: str = "take") -> dict[str, Any]:
    """A message with these headers."""
    message = task_message(f"wire-{number}", f"tests.support.hostile.lied_to.{task}")
    return {**message, "headers": {**message["headers"], **headers}}


def messages() -> Iterator[amqp.Message]:
    """One message of each kind, without those that do not fit into a frame."""
    for number, (headers, properties) in enumerate(_kinds()):
        made = wired(said(number, headers, "take" if properties else "fails"), **properties)
        if len(made._serialize_properties()) < MAX_HEADERS:
            yield made


def _kinds() -> Iterator[tuple[dict[Any, Any], dict[str, bytes]]]:
    """Headers, and properties."""
    value: Any
    for value in VALUES.values():
        for headers in ({"x": value}, {"timelimit": value}, {HEADER: value}, {HEADER: {"deaths": [value], "x": value}}):
            yield headers, {}
    for value in (*ODD.values(), deep(2000), deep(65, b"F"), *PLAIN):
        yield from (({name: value}, {}) for name in OTHERS)
        yield {DELIVERED: {"exchange": value, "routing_key": "celery", "delivery_tag": value}}, {}
        yield {DELIVERED: {"exchange": "", "routing_key": value, "consumer_tag": value}}, {}
        yield {"x-death": [{"queue": value, "reason": value, "count": value, "exchange": value, "routing-keys": value}, value]}, {}
    yield from (({HEADER: each}, {}) for each in HOSTILE.values())
    yield from ((each, {}) for each in (*HEADERS.values(), {"redelivery:is": 5}, {HEADER: {"redelivery:is": 5}}))
    yield from (({}, each) for each in PROPERTIES)


@pytest.fixture
def here(rabbit: Rabbit, tmp_path: Path) -> Iterator[Shop]:
    """The app that gets forged headers, on RabbitMQ."""
    shop = Shop(rabbit, tmp_path, settings=SETTINGS, module="tests.support.hostile.lied_to")  # type: ignore[arg-type]
    yield shop
    shop.stop()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
def test_no_message_of_another_client_ends_a_worker(here: Shop, rabbit: Rabbit, pool: str) -> None:
    """Each has one end in the books, attempts are counted up to their limit, and later messages run."""
    sent = list(messages())
    worker = here.start(pool=pool)
    with rabbit.connection() as connection:
        channel = connection.connection.channel()
        channel.exchange_declare("fan", "fanout", durable=True, auto_delete=False)
        channel.queue_bind("celery", "fan", "")
        channel.basic_publish(wired(said(10_000, {b"\xff": 1})), "fan", b"\xff\xfe")
        for message in sent:
            channel.basic_publish(message, "", "celery")

    def ends() -> list[str]:
        return [event.task_id for event in rabbit.events() if event.outcome in TERMINAL]

    until(lambda: len(ends()) > len(sent) or worker.process.poll() is not None, 120, f"all to end: {here.leftovers()}")
    assert worker.process.poll() is None, worker.text[-3000:]
    until(lambda: here.leftovers() == {}, 60, f"nothing to be held: {here.leftovers()}")
    assert len(ends()) == len(set(ends())) == len(sent) + 1
    assert len(here.runs("wire-0")) == 2
    assert "RecursionError" not in worker.text
    assert worker.text.count("Connected to") == 1
    here.ended(here.send("take"), "succeeded")
    assert worker.stop() == 0


@FULL
@pytest.mark.slow
def test_no_letter_of_another_client_ends_a_command(here: Shop, rabbit: Rabbit, tmp_path: Path) -> None:
    """Every command that reads or changes answers while such dead letters exist."""
    with rabbit.connection() as connection:
        channel = connection.connection.channel()
        for name in ("celery", "DLQ.celery"):
            channel.queue_declare(name, durable=True, auto_delete=False)
        for message in messages():
            channel.basic_publish(message, "", "DLQ.celery")
    answers(here, tmp_path, letters="DLQ.celery", fuzzed=1, waiting=1, cannot={"ops"})  # none of these is there
