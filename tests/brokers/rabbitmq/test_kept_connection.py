"""The connection that is kept for questions to the broker: reused for the next question, and replaced when it is broken."""

from __future__ import annotations

import os
import select
import selectors
import threading
from typing import TYPE_CHECKING

import pytest
from amqp.exceptions import PreconditionFailed
from celery import Celery

from redelivery.errors import BrokerUnavailable
from redelivery.middleware.brokers.rabbitmq import kept_connection
from redelivery.middleware.brokers.rabbitmq.kept_connection import KeptConnection
from redelivery.middleware.brokers.rabbitmq.names import AUDIT
from redelivery.middleware.brokers.rabbitmq.peek import depth_of
from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
from redelivery.workers.brokers.broker import broker_of
from tests.conformance.brokers import Place
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kombu import Connection

    from tests.support.rabbit import Rabbit


class Counted:
    """A kept connection, and all that were made for it."""

    def __init__(self, rabbit: Rabbit) -> None:
        self.rabbit, self.made = rabbit, []  # type: ignore[var-annotated]
        self.kept = KeptConnection(self._connect)

    def _connect(self) -> Connection:
        made = self.rabbit.connection()
        made.connect()
        self.made.append(made)
        return made

    def ask(self) -> None:
        """One question, which has an answer."""
        with self.kept.asking() as connection:
            assert depth_of(connection, "nowhere") is None


@pytest.fixture
def counted(rabbit: Rabbit) -> Iterator[Counted]:
    """One of them; what it has made is closed."""
    made = Counted(rabbit)
    yield made
    for each in made.made:
        each.release()


def ours(rabbit: Rabbit) -> str:
    """An Erlang expression for all live connections of this virtual host."""
    there = f'[{{vhost, <<"{rabbit.name}">>}}] =:= (catch rabbit_reader:info(C, [vhost]))'
    return f"[C || C <- rabbit_networking:connections(), {there}]"


def clients(rabbit: Rabbit) -> int:
    """How many connections this virtual host has."""
    return int(rabbit.node.evaluate(f"length({ours(rabbit)})."))


def test_one_question_after_the_other_has_the_same_connection(counted: Counted) -> None:
    """Even if the broker has refused a question."""
    for _ in range(3):
        counted.ask()
    assert len(counted.made) == 1


def test_a_question_that_fails_gives_the_next_one_a_new_connection(counted: Counted, rabbit: Rabbit) -> None:
    """Whatever the failed question left open is closed with the old connection."""
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare("there", durable=True)
    with pytest.raises(PreconditionFailed), counted.kept.asking() as connection:
        connection.default_channel.queue_declare("there", durable=False)
    counted.ask()
    assert len(counted.made) == 2
    until(lambda: clients(rabbit) == 1, 30, "the old connection to be closed")


def test_a_connection_that_the_broker_has_closed_or_that_is_old_is_not_used_again(
    counted: Counted, rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next question gets a new connection, and so its answer at once and without an error."""
    counted.ask()
    rabbit.node.evaluate(f'[rabbit_networking:close_connection(C, "bye") || C <- {ours(rabbit)}], ok.')
    # RabbitMQ says so at once, and then waits half a minute for an answer.
    heard = counted.made[0].connection.transport.sock
    until(lambda: select.select([heard], [], [], 0)[0], what="the connection to be closed")
    counted.ask()
    monkeypatch.setattr(kept_connection, "IDLE", -1.0)
    counted.ask()
    assert len(counted.made) == 3


def test_a_pool_that_takes_poll_away_keeps_its_connection_too(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eventlet removes `poll`."""
    for name in ("poll", "epoll"):
        monkeypatch.delattr(select, name)
    monkeypatch.setattr(selectors, "DefaultSelector", selectors.SelectSelector)
    for _ in range(2):
        counted.ask()
    assert len(counted.made) == 1


def test_a_question_that_hangs_holds_up_no_other(counted: Counted, rabbit: Rabbit) -> None:
    """The second question gets a connection of its own, which is closed afterwards."""
    begun, enough = threading.Event(), threading.Event()

    def hang() -> None:
        with counted.kept.asking():
            begun.set()
            enough.wait(60)

    hanging = threading.Thread(target=hang)
    hanging.start()
    assert begun.wait(60)
    counted.ask()
    until(lambda: clients(rabbit) == 1, 30, "its connection to be closed")
    enough.set()
    hanging.join()
    counted.ask()
    assert len(counted.made) == 2


def test_a_question_that_is_never_answered_ends_in_an_error(rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to look at. The next question gets a new connection."""
    monkeypatch.setattr(kept_connection, "TIMEOUT", 0.5)
    proxy = Proxy(rabbit.node.port).start()
    app = Celery("asking", broker=rabbit.url.replace(f":{rabbit.node.port}/", f":{proxy.port}/"), set_as_current=False)
    transport = AmqpTransport.of(app)
    with transport.asking() as connection:
        assert depth_of(connection, "nowhere") is None
    proxy.black_hole()
    with pytest.raises(BrokerUnavailable, match=r"has not answered within 0\.5 s; is it stopped"), transport.asking() as connection:
        depth_of(connection, "nowhere")
    proxy.let_through()
    with transport.asking() as connection:
        assert depth_of(connection, "nowhere") is None
    proxy.stop()


def test_a_fork_leaves_the_connection_to_its_parent(counted: Counted, rabbit: Rabbit) -> None:
    """The child makes its own; the parent's is the same as before."""
    counted.ask()
    child = os.fork()
    if not child:
        try:
            counted.ask()
            os._exit(len(counted.made))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    counted.ask()
    assert len(counted.made) == 1
    until(lambda: clients(rabbit) == 1, 30, "the child's connection to be gone")


def test_questions_leave_no_channel_open(rabbit: Rabbit, tmp_path: Path) -> None:
    """Also if the queue does not exist. All questions of an operator share one connection, which closes with the transport."""
    desk = Place("rabbit-classic", rabbit, tmp_path).desk()
    before = clients(rabbit)
    tools = broker_of(desk.transport)
    audit, letters = tools.audit, tools.letters
    for _ in range(20):
        assert audit.records(10) == []
        assert letters.depth("DLQ.orders") == 0
        assert letters.summaries({"DLQ.orders": "orders"})[0].letters == 0
    assert rabbit.depth(AUDIT) is None
    assert clients(rabbit) == before + 1
    channels = f"[proplists:get_value(channels, rabbit_reader:info(C, [channels])) || C <- {ours(rabbit)}]"
    assert int(rabbit.node.evaluate(f"lists:max({channels}).")) <= 2
