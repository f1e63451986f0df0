"""An operator changes a delayed message on RabbitMQ while the connection breaks: the command says so, and does nothing again."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.brokers.rabbitmq.delays import waiting
from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import AmqpNames
from redelivery.middleware.brokers.rabbitmq.peek import Found, Look
from redelivery.middleware.brokers.rabbitmq.publisher import Publisher
from redelivery.middleware.brokers.rabbitmq.topology import bind_to_delays, declare_delays
from redelivery.middleware.messages.steps import sealed
from redelivery.workers.brokers.rabbitmq.delay_store import NOT_SURE
from tests.conformance.brokers import Place
from tests.support.desk import QUEUE, Desk, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rabbit import Rabbit

TASK = "a-delayed-task-of-rabbit"
CHANGES = pytest.mark.parametrize("words", [("cancel",), ("promote",), ("reschedule", "--in", "2h")], ids=lambda words: words[0])


@pytest.fixture
def desk(rabbit: Rabbit, tmp_path: Path) -> Desk:
    """A desk with one delayed message."""
    made, names = Place("rabbit-classic", rabbit, tmp_path).desk(), AmqpNames()
    wait = waiting(names, QUEUE, sealed(task_message(TASK, eta="2030-01-01T00:00:00+00:00")), 3_600_000)
    assert wait is not None
    with rabbit.connection() as connection:
        connection.connect()
        declare_delays(connection.connection, names)
        bind_to_delays(connection.default_channel, QUEUE, names)
        connection.default_channel.basic_publish(message_of(wait.message, target=wait.target), *wait.target)
    return made


def places(rabbit: Rabbit) -> tuple[int, int]:
    """The numbers of delayed messages, and of messages in the queue."""
    left = rabbit.leftovers()
    return left.get("delayed", 0), left.get(QUEUE, 0)


@CHANGES
def test_a_change_whose_answer_is_lost_is_not_made_twice(
    rabbit: Rabbit, desk: Desk, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The broker has the new message or event, and its answer is lost. No message is published again; an event counts once."""
    confirmed, lost = Publisher._confirmed, list[int]()

    def broken(publisher: Publisher) -> None:
        sent = set(publisher._confirms.open)
        confirmed(publisher)
        if sent and not lost:
            lost.extend(sent)
            publisher._confirms.open = sent
            raise ConnectionResetError

    monkeypatch.setattr(Publisher, "_confirmed", broken)
    done = desk.run("delayed", words[0], TASK, *words[1:])
    assert lost
    if words[0] == "cancel":
        assert (done.exit_code, places(rabbit), [each.outcome for each in rabbit.events()]) == (0, (0, 0), ["cancelled"])
        return
    assert (done.exit_code, done.stdout) == (2, "")
    assert NOT_SURE.format(what="may have been moved", task_id=TASK) in done.stderr
    assert places(rabbit) == ((1, 1) if words[0] == "promote" else (2, 0))


@CHANGES
def test_a_change_whose_acknowledgement_is_lost_says_so(
    rabbit: Rabbit, desk: Desk, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The change is recorded, and the old message comes back."""
    take = Look.take

    def broken(look: Look, found: Found) -> None:
        look._connection.connection.transport.sock.shutdown(socket.SHUT_RDWR)
        take(look, found)

    monkeypatch.setattr(Look, "take", broken)
    done = desk.run("delayed", words[0], TASK, *words[1:])
    what = "may be recorded as cancelled" if words[0] == "cancel" else "may have been moved"
    assert (done.exit_code, done.stdout) == (2, "")
    assert NOT_SURE.format(what=what, task_id=TASK) in done.stderr
    until(lambda: sum(places(rabbit)) == 1 + (words[0] != "cancel"), what="the old message to be back")


def test_many_that_are_cancelled_are_counted_when_the_connection_breaks(
    rabbit: Rabbit, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node ends, and cannot be reached again: no traceback."""
    take = Look.take

    def broken(look: Look, found: Found) -> None:
        connection = look._connection
        connection.connection.transport.sock.shutdown(socket.SHUT_RDWR)
        connection.collect()
        connection.hostname, connection.port = "127.0.0.1", 1
        take(look, found)

    monkeypatch.setattr(Look, "take", broken)
    done = desk.run("delayed", "cancel", "--all", "--yes")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("redelivery: error: the cancel stopped when 0 messages had been cancelled: "), done.stderr
    assert done.stderr.endswith("run the same command again to continue\n")
    until(lambda: places(rabbit) == (1, 0), what="the old message to be back")


def test_a_broken_connection_to_the_broker_is_no_reader_that_has_gone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both raise `BrokenPipeError`. A command whose connection breaks ends with an error, and not silently with exit code 0."""

    def broken(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(Look, "__enter__", broken)
    done = desk.run("delayed", "list")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "the broker does not answer any more" in done.stderr
