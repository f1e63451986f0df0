"""How fast a worker on RabbitMQ may work without losing messages: batched acknowledgements, reading ahead, a safe end."""

from __future__ import annotations

import contextlib
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from amqp import spec
from amqp.method_framing import frame_handler
from amqp.serialization import dumps
from amqp.transport import TCPTransport
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu.asynchronous import Hub

from redelivery import Redelivery
from redelivery.middleware.brokers.rabbitmq.consuming import acks as amqp_settled
from redelivery.middleware.brokers.rabbitmq.consuming.acks import Settled, frames
from redelivery.middleware.brokers.rabbitmq.consuming.reading import ReadingAhead
from tests.support.rabbitmq.amqp_taking import consumed, filled
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.rabbit import Rabbit

#: What happens to the deliveries of a channel: some end together, or another caller answers one of them directly.
HAPPENS = st.lists(
    st.one_of(
        st.tuples(st.just("together"), st.lists(st.integers(1, 40), max_size=12)),
        st.tuples(st.just("note"), st.integers(1, 40).map(lambda tag: [tag])),
        st.tuples(st.just("note up to"), st.integers(1, 40).map(lambda tag: [tag])),
    ),
    max_size=30,
)


@given(HAPPENS)
def test_everything_that_ended_is_acknowledged_once_and_nothing_else(happens: list[tuple[str, list[int]]]) -> None:
    """In any order, and with other callers beside us; the broker's own view of 40 deliveries is the reference."""
    settled, unanswered = Settled(), set(range(1, 41))
    for what, tags in happens:
        if what != "together":
            settled.note(tags[0], multiple=what == "note up to")
            unanswered -= set(range(1, tags[0] + 1)) if what == "note up to" else set(tags)
            continue
        ended = unanswered & set(tags)
        for tag, multiple in settled.together(tags):
            answered = {each for each in unanswered if each <= tag} if multiple else {tag}
            assert tag in unanswered, "the broker closes the channel for a number that it does not know"
            assert answered <= ended
            ended -= answered
            unanswered -= answered
        assert not ended


def test_what_has_no_gap_before_it_is_one_frame() -> None:
    """The order does not matter; behind a gap each delivery has its own frame until the gap is closed."""
    settled = Settled()
    assert settled.together([3, 1, 2]) == [(3, True)]
    assert settled.together([6, 5]) == [(5, False), (6, False)]
    assert settled.together([4]) == [(4, False)]
    assert settled.together([7, 8]) == [(8, True)]
    assert settled.together([7, 3]) == []


@pytest.mark.parametrize(("most", "kept"), [(7, 7), (8, 8), (9, 5)])
def test_what_is_remembered_behind_a_gap_is_bounded(monkeypatch: pytest.MonkeyPatch, most: int, kept: int) -> None:
    """Up to the bound all are remembered; beyond it the older half is dropped, and never taken for unanswered again."""
    monkeypatch.setattr(amqp_settled, "MAX_BEYOND", 8)
    settled = Settled()
    settled.together(range(2, most + 2))
    assert len(settled._beyond) == kept
    assert settled.together([1]) == [(1, False)]
    assert settled.together([most + 2]) == [(most + 2, False)]


def test_a_frame_is_what_py_amqp_writes() -> None:
    """basic.ack on channel 7, for 1 to 258 and for 260: by the specification of AMQP 0-9-1."""
    assert frames(7, [(258, True), (260, False)]) == (
        b"\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00\x50\x00\x00\x00\x00\x00\x00\x01\x02\x01\xce"
        b"\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00\x50\x00\x00\x00\x00\x00\x00\x01\x04\x00\xce"
    )


# on a node


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_was_acknowledged_stays_away_when_the_channel_is_closed(rabbit: Rabbit, opened: Callable[[], Any], kind: str) -> None:
    """RabbitMQ 3.10 forgets acknowledgements that a quorum queue has not processed yet: 799 single ones, and then the close."""
    connection = opened()
    name = filled(connection, kind, 800)
    channel = connection.connection.channel()
    channel.basic_qos(0, 1000, a_global=False)
    tags = consumed(connection, channel, name, 800)
    channel.basic_cancel("taker")  # as a worker does, before its last tasks end
    channel.acknowledge(tags[1:])  # behind a gap: a frame for each
    channel.await_acknowledged(name)
    connection.collect()
    until(lambda: rabbit.depths()[name][1] == 0, what="the broker to have taken back what was held")
    assert rabbit.depths()[name] == (1, 0)


# reading


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame of AMQP 0-9-1."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def delivered(message: amqp.Message, channel: int = 3, tag: int = 2**40) -> bytes:
    """What RabbitMQ sends for this message: three frames, or two without a body."""
    arguments = struct.pack(">HH", 60, 60) + dumps("sLbss", ("consumer", tag, True, "shop", "orders.eu"))
    head = struct.pack(">HHQ", 60, 0, len(message.body)) + message._serialize_properties()
    return frame(1, channel, arguments) + frame(2, channel, head) + (frame(3, channel, message.body) if message.body else b"")


@pytest.mark.parametrize("together", [1, 7, 400, 10_000])
def test_all_that_has_come_is_dispatched_in_order_however_it_was_cut(together: int) -> None:
    """For any size of pieces and with other frames between them; a handler that raises does not stop the other messages."""
    heard: list[Any] = []

    def hear(*arguments: Any) -> None:
        heard.append((arguments[1], arguments[5].body))
        if arguments[1] == 3:
            raise LookupError(arguments[1])

    data = b"".join(delivered(amqp.Message(b"%d" % tag, content_encoding="utf-8"), tag=tag) + frame(8, 0, b"") for tag in range(9))
    with reading(hear) as (connection, far, hub):
        for at in range(0, len(data), together):
            far.sendall(data[at : at + together])
            turn(hub)
            while connection._is_woken:
                turn(hub)
        assert heard == [(tag, str(tag)) for tag in range(9)]
        far.close()
        with pytest.raises(OSError, match="closed"):
            hub.run_once()
        assert not connection.connected


def turn(hub: Hub) -> None:
    """Let the loop turn once; a handler may raise."""
    with contextlib.suppress(LookupError):
        hub.run_once()


def test_who_waits_is_given_one_at_a_time_and_the_loop_the_rest() -> None:
    """py-amqp registers a consumer after the broker's answer: a message that comes with the answer must wait until then."""
    heard: list[int] = []
    with reading(lambda *arguments: heard.append(arguments[1])) as (connection, far, hub):
        far.sendall(b"".join(delivered(amqp.Message(b"x"), tag=tag) for tag in range(4)))
        connection.drain_events(timeout=5)
        assert heard == [0]
        connection.drain_events(timeout=5)
        assert heard == [0, 1]
        hub.run_once()
        assert heard == [0, 1, 2, 3]
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0)


@pytest.mark.parametrize("when", ["ready", "timer", "tick"])
def test_what_a_callback_of_the_loop_has_left_is_dispatched_in_the_same_turn(when: str) -> None:
    """Celery drains one message itself when a worker begins: a second one would otherwise wait for the loop's next wake-up."""
    heard: list[int] = []
    with reading(lambda *arguments: heard.append(arguments[1])) as (connection, far, hub):
        far.sendall(b"".join(delivered(amqp.Message(b"x"), tag=tag) for tag in range(2)))

        def drain() -> None:
            hub.on_tick.discard(drain)
            connection.drain_events(timeout=5)

        ask: dict[str, Any] = {"ready": hub.call_soon, "timer": partial(hub.call_later, 0), "tick": hub.on_tick.add}
        ask[when](drain)
        hub.run_once()
        assert heard == [0, 1]


def test_a_connection_that_is_collected_leaves_nothing_in_the_loop() -> None:
    """It is collected twice: by the code that finds it broken, and by the code that closes it."""
    with reading(lambda *_: None) as (connection, _, hub):
        assert len(hub.readers) == 2
        connection.collect()
        connection.collect()
        assert len(hub.readers) == 1  # kombu removes the connection's own socket


def test_a_py_amqp_that_nobody_has_tried_reads_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its internals may differ: reading is slower then, and correct."""
    monkeypatch.setattr(amqp, "__version__", "6.0.0")
    with reading(lambda *_: None) as (connection, _, _):
        assert not connection.reads_ahead


@pytest.mark.parametrize("is_on", [True, False])
def test_reading_ahead_is_switched_off_with_fast_receive(is_on: bool) -> None:
    """py-amqp then reads by itself, as for plain Celery."""
    app = Celery("shop", broker="amqp://", set_as_current=False)
    Redelivery(app, {"fast_receive": is_on})
    with reading(lambda *_: None, is_ahead=False) as (connection, _, hub):
        connection.client = app.connection_for_read()
        connection.client.transport.register_with_event_loop(connection, hub)
        assert connection.reads_ahead is is_on


@contextlib.contextmanager
def reading(hear: Callable[..., None], *, is_ahead: bool = True) -> Iterator[tuple[Any, socket.socket, Hub]]:
    """A connection with one open channel that a loop reads ahead, and the far end of its socket."""
    near, far = socket.socketpair()
    hub = Hub()
    connection = ReadingAhead("localhost")
    transport = TCPTransport("localhost", 5)
    transport.sock, transport.connected = near, True
    transport._setup_transport()
    connection._transport = transport
    connection.on_inbound_frame = frame_handler(connection, connection.on_inbound_method)
    channel = amqp.Channel(connection, 3, auto_decode=True)
    channel._callbacks[spec.Basic.Deliver] = hear
    hub.add_reader(near, connection.on_readable)
    if is_ahead:
        connection.read_ahead(hub)
    with near, far:
        yield connection, far, hub
        connection.collect()
        hub.close()
