"""A RabbitMQ message becomes an envelope and a message again, without loss; so do names and events. No broker is needed."""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.errors import EnvelopeError
from redelivery.middleware.brokers.rabbitmq.events import events_of, packed
from redelivery.middleware.brokers.rabbitmq.messages import (
    MAX_HEADERS,
    delivery_count,
    envelope_of,
    message_of,
)
from redelivery.middleware.brokers.rabbitmq.names import BITS, MAX_DELAY, AmqpNames, address, delay_key
from redelivery.middleware.brokers.rabbitmq.properties import KEPT_RAW, MARK, MAX_DEPTH, Received, frame_handler
from redelivery.middleware.messages.envelope import DELIVERED, EXPIRATION, HEADER, Attempt, Envelope
from redelivery.middleware.messages.events import ENTRY, Event, Numbering, Outcome
from redelivery.middleware.messages.steps import opened, redelivered, sealed
from tests.support.desk import task_message
from tests.support.hostile import wire


def received(message: amqp.Message, **info: Any) -> Any:
    """The message as a consumer gets it: written by py-amqp, and read as our connections read it."""
    wire = Received()
    wire._load_properties(60, message._serialize_properties(), 0)
    body = message.body.encode() if isinstance(message.body, str) else message.body
    properties = dict(wire.properties)
    return SimpleNamespace(body=body, properties=properties, delivery_info={"exchange": "", "routing_key": "orders", **info})


def there_and_back(message: amqp.Message, **info: Any) -> Any:
    """Received, opened, sealed, published again, and received again."""
    raw = envelope_of(received(message, **info), queue="orders")
    return received(message_of(raw, target=("", "orders")))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="ascii"), max_size=20), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=300), st.dictionaries(st.from_regex(r"h[a-z-]{0,20}", fullmatch=True), values, max_size=5))
def test_body_and_headers_come_back_as_they_were(body: bytes, headers: dict[str, Any]) -> None:
    """Bytes of any kind; numbers, texts, nothing, lists and tables in tables."""
    again = there_and_back(amqp.Message(body, application_headers=headers, content_type="x/y", content_encoding="binary"))
    assert (again.body, again.properties["application_headers"]) == (body, headers)
    assert (again.properties["content_type"], again.properties["content_encoding"]) == ("x/y", "binary")


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\x00 bytes",
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).replace(tzinfo=None),
        Decimal("1.25"),
        [b"\xfe"],
        {"in": {"a": b"\xfd"}},
        {"redelivery:is": "bytes"},
    ],
    ids=repr,
)
def test_what_json_has_no_word_for_comes_back_too(value: Any) -> None:
    """Bytes, times, decimals, also nested; and a table that looks like one of our marks."""
    again = there_and_back(amqp.Message(b"", application_headers={"h": value}))
    assert again.properties["application_headers"] == {"h": value}


@pytest.mark.parametrize(
    "headers",
    [
        *({MARK: 5}, {MARK: {MARK: "bytes", "of": "!"}}, {b"\xff": 1}, {HEADER: {MARK: 5}}, {HEADER: {b"\xff": 5, "attempt": 0}}),
        *({HEADER: b"\xff"}, {HEADER: Decimal("1.5")}, {HEADER: [b"\xff"]}, {HEADER: 5}),
    ],
    ids=repr,
)
def test_no_name_of_a_header_takes_ours_away(headers: dict[Any, Any]) -> None:
    """A producer's header may be named like our mark, or not be text: each move keeps both our headers and the producer's."""
    raw = envelope_of(received(amqp.Message(b"", application_headers={"mine": 1, **headers})), queue="orders")
    for attempt in (1, 2, 3):
        counted = Attempt(at_ms=1, worker="w", exception="E")
        raw = sealed(redelivered(opened(raw), "orders", seen_ms=1, attempt=counted))
        raw = envelope_of(received(message_of(raw, target=("", "orders"))), queue="orders")
        assert Envelope.of(opened(raw)["headers"]).attempt == attempt
    again = received(message_of(raw, target=("", "orders"))).properties["application_headers"]
    assert {name: value for name, value in again.items() if name not in {HEADER, "retries", "redelivered"}} == {
        "mine": 1,
        **{name: value for name, value in headers.items() if name != HEADER},
    }


# what other clients can write


def said(headers: dict[str, Any]) -> dict[str, Any]:
    """A message with these headers besides its own."""
    message = task_message("odd")
    return {**message, "headers": {**message["headers"], **headers}}


@pytest.mark.parametrize("kind", [b"A", b"F"])
@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 600, 2000, 18_000])
def test_what_nests_too_deep_is_kept_as_bytes(depth: int, kind: bytes) -> None:
    """Up to 64 nested tables and lists are decoded; a deeper value stays as bytes, and the other headers are decoded."""
    item = wire.deep(depth, kind)
    message = task_message("deep", x=item, after=1)
    found = received(wire.wired(message))
    value = found.properties["application_headers"]["x"]
    assert (isinstance(value, dict) and value.get(MARK) == KEPT_RAW) == (depth > MAX_DEPTH)
    again = there_and_back(wire.wired(message)).properties
    assert (again["application_headers"]["x"], again["application_headers"]["after"]) == (value, 1)
    if depth > MAX_DEPTH:
        assert bytes(value["of"]) == item


@pytest.mark.parametrize("name", wire.ODD)
def test_a_value_that_py_amqp_cannot_read_ends_nothing(name: str) -> None:
    """The value is read, or kept as bytes; so are the values around it, and the message can be moved."""
    message = said({"x": wire.ODD[name], "in": {"y": [wire.ODD[name]]}, "after": 1})
    before, after = received(wire.wired(message)), there_and_back(wire.wired(message))
    assert before.properties["application_headers"] == after.properties["application_headers"]
    assert after.properties["application_headers"]["after"] == 1


def test_names_and_properties_that_are_no_text_end_nothing() -> None:
    """A header's name is kept unchanged; in a property, `?` replaces non-ASCII bytes, so that the length still fits."""
    message = task_message("odd", after=1)
    message["headers"] = {b"\xff": wire.ODD["a time in the year 292 billion"], **message["headers"]}
    again = there_and_back(wire.wired(message, correlation_id=b"\xff" * 255, content_type=b"\xfe", reply_to=b"r"))
    assert again.properties["correlation_id"] == "?" * 255
    assert (again.properties["content_type"], again.properties["reply_to"]) == ("?", "r")
    assert again.properties["application_headers"][b"\xff"][MARK] == KEPT_RAW
    assert again.properties["application_headers"]["after"] == 1


def test_a_type_that_nobody_knows_hides_what_is_behind_it_alone() -> None:
    """The length of an unknown type is not known, so what follows it in the table cannot be read."""
    message = task_message("odd", x=b"Z\x00\x01", after=1)
    headers = there_and_back(wire.wired(message)).properties["application_headers"]
    assert (headers["id"], headers[MARK][MARK]) == ("odd", KEPT_RAW)
    assert not {"x", "after"} & headers.keys()


def test_our_own_header_that_cannot_be_read_counts_as_absent() -> None:
    """This holds for any content."""
    found = received(wire.wired(said({HEADER: {"attempt": 5, "x": wire.deep(600)}})))
    assert HEADER not in found.properties["application_headers"]


@pytest.mark.parametrize(
    ("method", "before"), [((60, 60), b"\x02ct" + bytes(8) + b"\x00"), ((60, 71), bytes(9)), ((60, 50), b"\x01\x38\x01\xfe")]
)
def test_a_routing_key_that_is_no_text_ends_nothing(method: tuple[int, int], before: bytes) -> None:
    """A topic exchange accepts such a key."""
    heard: list[Any] = []
    on_frame = frame_handler(SimpleNamespace(bytes_recv=0), lambda *given: heard.append(given))
    content = struct.pack(">HH", *method) + before + "\x05sh\u00e9p".encode() + b"\x03a\xff."
    assert not on_frame((1, 1, content))
    assert on_frame((2, 1, struct.pack(">HxxQ", 60, 0) + wire.wired(task_message())._serialize_properties()))
    assert heard[0][2] == content.replace(b"\xff", b"?")


def test_all_properties_come_back() -> None:
    """All properties that a producer may set survive; a message that we move is persistent."""
    properties = {
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "app_id": "a",
        "cluster_id": "k",
        "priority": 7,
    }
    again = there_and_back(amqp.Message(b"x", delivery_mode=1, application_headers={}, **properties))
    assert {name: again.properties[name] for name in properties} == properties
    assert again.properties["delivery_mode"] == 2


def test_an_absent_priority_stays_absent() -> None:
    """A queue with priorities treats it as the lowest; in other queues it has no effect."""
    assert "priority" not in there_and_back(amqp.Message(b"x", application_headers={})).properties


def test_what_the_broker_wrote_is_taken_off() -> None:
    """`x-death`, its companions and the count are removed; headers whose names only begin like them stay."""
    ours = {"x-mine": 1, "x-death-star": 2}
    theirs = {"x-death": [{"count": 1}], "x-first-death-queue": "q", "x-last-death-reason": "expired", "x-delivery-count": 3}
    again = there_and_back(amqp.Message(b"", application_headers={**ours, **theirs}))
    assert again.properties["application_headers"] == ours


def test_an_expiration_travels_where_the_broker_does_not_see_it() -> None:
    """The broker would drop the message silently, and end a delay early; the envelope stores it where kombu does."""
    raw = envelope_of(received(amqp.Message(b"", application_headers={}, expiration="1500")), queue="orders")
    assert opened(raw)["properties"]["expiration"] == "1500"
    moved = received(message_of(raw, target=("", "orders")))
    assert "expiration" not in moved.properties
    assert moved.properties["application_headers"][EXPIRATION] == "1500"
    again = opened(envelope_of(moved, queue="orders"))
    assert again["properties"]["expiration"] == "1500"
    assert EXPIRATION not in again["headers"]


def test_where_a_message_was_published_to_is_remembered() -> None:
    """It survives a move to its queue, our delay, and Celery's own delay."""
    raw = envelope_of(received(amqp.Message(b"", application_headers={}), exchange="shop", routing_key="orders.eu"), queue="orders")
    moved = received(message_of(raw, target=("level", delay_key("orders", 5))))
    assert moved.properties["application_headers"][DELIVERED] == {"exchange": "shop", "routing_key": "orders.eu"}
    again = opened(envelope_of(moved, queue="orders"))
    assert again["properties"]["delivery_info"] == {"exchange": "shop", "routing_key": "orders.eu"}
    assert DELIVERED not in again["headers"]
    delayed = received(
        amqp.Message(b"", application_headers={}), exchange="celery_delayed_delivery", routing_key=delay_key("orders", 9)
    )
    late = opened(envelope_of(delayed, queue="orders", origin=("shop", "orders.#")))
    assert late["properties"]["delivery_info"] == {"exchange": "shop", "routing_key": "orders"}
    ours = received(
        amqp.Message(b"", application_headers={}), exchange=AmqpNames().delivery_exchange, routing_key=delay_key("orders", 9)
    )
    late = opened(envelope_of(ours, queue="orders", origin=("shop", "orders.#")))
    assert late["properties"]["delivery_info"] == {"exchange": "shop", "routing_key": "orders.#"}


def test_the_broker_is_believed_how_often_it_has_handed_over() -> None:
    """A quorum queue counts deliveries; a classic one only marks a redelivery."""

    def count(headers: dict[str, Any], redelivered: bool) -> int:
        return delivery_count(received(amqp.Message(b"", application_headers=headers), redelivered=redelivered))

    assert (count({}, redelivered=False), count({}, redelivered=True)) == (0, 1)
    assert (count({"x-delivery-count": 4}, redelivered=True), count({"x-delivery-count": "no"}, redelivered=True)) == (4, 1)
    assert count({"x-delivery-count": 4}, redelivered=False) == 0  # copied from another queue, with its headers


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=300), st.integers(1, MAX_DELAY - 1))
def test_a_delay_key_fits_and_ends_in_one_queues_address(queue: str, seconds: int) -> None:
    """255 bytes at the most; the bits say the seconds; wildcards stand only in bindings."""
    key = delay_key(queue, seconds)
    words = key.split(".")
    assert len(key.encode()) <= 255
    assert int("".join(words[:BITS]), 2) == seconds
    assert key.endswith(f".{address(queue)}")
    assert not {"*", "#"} & set(address(queue).split("."))


def test_a_queues_binding_matches_its_own_address_alone() -> None:
    """`orders` does not get a message that waits for `eu.orders`: a binding has one word for each bit, and then the name."""
    assert AmqpNames().binding_of("orders") == ".".join(["*"] * BITS + ["orders"])


@given(
    st.lists(
        st.builds(
            Event,
            task_id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
            outcome=st.sampled_from(list(Outcome)),
            queue=st.text(st.characters(codec="utf-8"), max_size=20),
            attempt=st.integers(0, 100),
            delay_ms=st.none() | st.integers(0, 2**40),
            nesting=st.integers(0, 3),
        ),
        max_size=5,
    ),
)
def test_events_come_out_of_a_message_as_they_went_in(events: list[Event]) -> None:
    """Their fields, their ids, the time of their ids, and that the clock is a worker's."""
    numbers = Numbering()
    numbered = [(numbers.next_id(), event) for event in events]
    found = events_of(packed(numbered))
    assert [each.to_entry() for each in found] == [each.to_entry() for each in events]
    assert [each.event_id for each in found] == [event_id for event_id, _ in numbered]
    assert all(each.clock == "worker" and each.at_ms == int(each.event_id.partition("-")[0]) for each in found)


def test_the_ids_of_one_publisher_have_no_gap() -> None:
    """A missing number shows that an event was lost."""
    numbers = Numbering()
    assert [each.rpartition(".")[2] for each in (numbers.next_id(), numbers.next_id(), numbers.next_id())] == ["1", "2", "3"]


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{"i": "x"}]', b"\xff", json.dumps([{"i": "1-a", ENTRY[0]: "t"}]).encode()])
def test_what_is_no_event_of_ours_is_refused(body: bytes) -> None:
    """The error says what it is; an empty list is valid, and holds no event."""
    with pytest.raises(EnvelopeError, match="not written by redelivery"):
        events_of(body)


def test_headers_that_fill_a_frame_cost_our_history_and_nothing_of_the_producers() -> None:
    """A frame holds 126,000 bytes of headers, with room for the rest; smaller headers are not touched."""
    envelope = Envelope(
        attempt=20,
        first_seen_ms=1,
        origin={"queue": "orders"},
        attempts=({"at": 1, "exception": "x" * 1000},) * 20,
        deaths=({"queue": "orders", "reason": "exhausted", "detail": "d" * 1000},) * 20,
        failure={"type": "ValueError", "traceback": "t" * 16_000},
    )

    def moved(size: int) -> Any:
        headers = {"mine": "m" * size, HEADER: envelope.to_header()}
        return message_of(
            envelope_of(received(amqp.Message(b"", application_headers=headers)), queue="orders"), target=("", "orders")
        )

    fits, cut = moved(60_000), moved(100_000)
    assert fits.properties["application_headers"][HEADER] == envelope.to_header()
    assert len(cut._serialize_properties()) <= MAX_HEADERS
    left = Envelope.of(cut.properties["application_headers"])
    assert (left.attempt, left.failure, left.deaths[0]["reason"]) == (20, None, "exhausted")
    assert cut.properties["application_headers"]["mine"] == "m" * 100_000


def test_bytes_that_are_no_envelope_are_refused() -> None:
    """Before anything is published."""
    with pytest.raises(EnvelopeError):
        message_of(base64.b64encode(b"x"), target=("", "orders"))
