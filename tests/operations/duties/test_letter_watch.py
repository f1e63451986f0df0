"""The watch over dead letters: a queue that nobody reads is logged, and again when it has doubled; one that is read is not."""

from __future__ import annotations

import shlex
import socket
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.middleware.brokers.rabbitmq.names import OUTCOMES
from redelivery.workers.duties.bootstep import duties_of
from redelivery.workers.duties.watch.letter_watch import GROWING, QUIET, LetterWatch, Watched, warn
from redelivery.workers.duties.watch.rabbitmq import AmqpLetterWatch
from tests.conformance.brokers import Place, letter
from tests.support.desk import LETTERS, Desk, body_of, copies, each_desk, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.rabbit import Rabbit
    from tests.support.running import Shop

__all__ = ["each_desk"]

UNREAD = "dead_letter_queue.unread"


def test_a_command_that_is_suggested_can_be_pasted() -> None:
    """Every publisher may name queues, so a name is quoted for the shell, and shown without control characters."""
    with capture_logs() as lines:
        warn("DLQ.$(reboot);\x1b[2J\u202e'", "unread", letters=1)
    assert "-Q '" in lines[0]["why"]
    [name] = [word for word in shlex.split(lines[0]["why"].replace("`", " ")) if "reboot" in word]
    assert name.startswith("DLQ.$(reboot);\\x1b[2J\\u202e'")


def looked(watch: LetterWatch) -> list[Any]:
    """The lines that one look logs."""
    with capture_logs() as lines:
        watch.step()
    return lines


def test_a_queue_that_nobody_reads_is_named_at_the_second_look(desk: Desk) -> None:
    """With its length, the age of its oldest dead letter, and what to do; an empty queue is not named."""
    watch = LetterWatch(desk.install)
    assert looked(watch) == []
    desk.die(task_message("old"), ago_ms=7_200_000)
    desk.die(task_message("young"))
    assert looked(watch) == []
    [line] = looked(watch)
    assert (line["event"], line["log_level"], line["dead_letter_queue"], line["letters"]) == (UNREAD, "warning", LETTERS, 2)
    assert 7200 <= line["oldest"] < 10_000
    assert f"-Q {LETTERS}" in line["why"]
    assert looked(watch) == []


def test_it_is_said_again_when_the_letters_are_twice_as_many(desk: Desk) -> None:
    """At N-1 it is not, at N it is."""
    watch = LetterWatch(desk.install)
    copies(desk, 3)
    said = []
    for _ in range(6):
        said += [line["letters"] for line in looked(watch)]
        desk.die(task_message())
    assert said == [4, 8]


def test_a_queue_that_is_read_is_not_named(desk: Desk) -> None:
    """A queue is read if its oldest dead letter was taken; it counts as unread again after the next look without that."""
    watch = LetterWatch(desk.install)
    copies(desk, 6)
    assert looked(watch) == []
    for _ in range(3):
        desk.client.rpop(LETTERS)
        assert looked(watch) == []
    assert [line["letters"] for line in looked(watch)] == [3]


def test_bytes_that_are_no_letter_are_letters_without_an_age(desk: Desk) -> None:
    """The time of their arrival is not known."""
    watch = LetterWatch(desk.install)
    desk.die(task_message("a"))
    desk.client.rpush(LETTERS, b"garbage")
    looked(watch)
    [line] = looked(watch)
    assert (line["letters"], line["oldest"]) == (2, None)


def test_one_worker_watches(desk: Desk) -> None:
    """The lead is a lease; a worker that has lost it starts again without memory."""
    first, second = LetterWatch(desk.install), LetterWatch(desk.install)
    assert first.leads()
    assert not second.leads()
    desk.die(task_message("a"))
    looked(first)
    desk.client.delete(desk.keys.letter_watcher)
    assert second.leads()
    assert not first.leads()
    assert [looked(first), len(looked(first))] == [[], 1]


# when lines are logged, without a broker


@pytest.mark.parametrize(("looks", "said"), [(GROWING, None), (GROWING + 1, "growing")])
def test_a_queue_that_grows_though_it_is_read_is_named_at_the_tenth_look(looks: int, said: str | None) -> None:
    """More dead letters come than are taken; after one look without growth the count starts again."""
    watched = Watched()
    answers = [watched.look(number, b"%d" % number) for number in range(1, looks + 1)]
    assert answers == [None] * (looks - 1) + [said]
    watched = Watched()
    for number in range(1, 10 * GROWING):
        assert not watched.look(number // 2 * 2, b"%d" % number)


@pytest.mark.parametrize(("looks", "said"), [(QUIET, 1), (QUIET + 1, 1), (QUIET + 2, 2)])
def test_it_is_said_again_every_day(looks: int, said: int) -> None:
    """The first look sees it, the second logs it, and so does the one a day later."""
    watched = Watched()
    assert [watched.look(5, b"x") for _ in range(looks)].count("unread") == said


def test_what_somebody_has_taken_from_is_counted_anew() -> None:
    """An operator sent most of them back: the rest is unread, although more had been logged before."""
    watched = Watched()
    said = [
        watched.look(length, oldest) for length, oldest in [(100, b"a"), (100, b"a"), (3, b"b"), (3, b"b"), (5, b"b"), (6, b"b")]
    ]
    assert said == [None, "unread", None, "unread", None, "unread"]


@pytest.mark.full
@pytest.mark.slow
def test_a_worker_says_what_nobody_reads(shop: Callable[..., Shop]) -> None:
    """Every worker has the duty, and logs after half a minute. A queue that a worker consumes is not named."""
    here = shop(settings={"queues": {"#": {"max_delivery_attempts": 1}}}, module="tests.support.apps.letter_shop")
    desk = Desk(here.server)
    desk.die(task_message("a", "tests.support.apps.letter_shop.picky", body=body_of("discard")), into="DLQ.celery")
    desk.die(task_message("b"), into="DLQ.later")
    worker = here.start("-Q", "celery,DLQ.celery", pool="solo")
    until(lambda: UNREAD in worker.text, 120, "the line")
    (line,) = [line for line in worker.text.splitlines() if UNREAD in line]
    assert "dead_letter_queue=DLQ.later letters=1" in line
    desk.transport.close()


def test_on_rabbitmq_a_queue_without_a_consumer_is_named(rabbit: Rabbit, tmp_path: Path) -> None:
    """At the second look, without reading the dead letters; not if it has a consumer or dead letters were just taken."""
    place = Place("rabbit-classic", rabbit, tmp_path)
    desk = place.desk()
    watch, other = AmqpLetterWatch(desk.install), AmqpLetterWatch(desk.install)
    assert watch.leads()
    assert not other.leads()
    assert looked(watch) == []
    place.put(*(letter(task_message(f"task-{number}")) for number in range(4)))
    assert looked(watch) == []
    [line] = looked(watch)
    assert (line["event"], line["dead_letter_queue"], line["letters"], line["oldest"]) == (UNREAD, LETTERS, 4, None)
    assert looked(watch) == []
    place.lose(LETTERS)
    assert looked(watch) == []
    assert [line["letters"] for line in looked(watch)] == [3]
    with rabbit.connection() as connection:
        connection.default_channel.basic_qos(0, 1, a_global=False)
        connection.default_channel.basic_consume(LETTERS, no_ack=False, callback=print)
        place.put(*(letter(task_message(f"task-{number}")) for number in range(4, 12)))
        assert looked(watch) == looked(watch) == []
    watch.stop()
    assert until(other.leads, what="the other one to lead")
    other.stop()


def test_on_rabbitmq_a_watch_whose_connection_is_cut_connects_again(rabbit: Rabbit, tmp_path: Path) -> None:
    """It reconnects at the next step and starts without memory; nothing is logged as a bug."""
    place = Place("rabbit-classic", rabbit, tmp_path)
    desk = place.desk()
    watch = AmqpLetterWatch(desk.install)
    assert watch.leads()
    watch._watching._connection.connection.transport.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    with pytest.raises(ConnectionError):
        watch.step()
    assert until(watch.leads, what="it to be connected again")
    assert looked(watch) == []
    watch.stop()


def test_on_rabbitmq_a_watch_whose_broker_is_away_asks_again(rabbit: Rabbit, tmp_path: Path) -> None:
    """An outage is no bug: there is no error, and no traceback."""
    desk = Place("rabbit-classic", rabbit, tmp_path).desk()
    watch = AmqpLetterWatch(desk.install)
    desk.app.conf.broker_write_url = "amqp://127.0.0.1:1//"
    with capture_logs() as lines:
        watch.start()
        until(lambda: [line for line in lines if line["event"].startswith("letters.")], what="its first look")
        watch.stop()
    events = [line for line in lines if line["event"].startswith("letters.")]  # other threads of this process may log, too
    assert {(line["event"], line["log_level"]) for line in events} == {("letters.not_seen", "debug")}


def test_a_worker_on_rabbitmq_watches(rabbit: Rabbit, tmp_path: Path) -> None:
    """The watch is one of its duties, but not in observe mode."""
    place = Place("rabbit-classic", rabbit, tmp_path)
    desk = place.desk()
    assert [type(duty) for duty in duties_of(desk.install)] == [AmqpLetterWatch]
    observing = Redelivery(Celery("observing", broker=rabbit.url, set_as_current=False), {"mode": "observe"})
    assert duties_of(observing) == ()


def test_an_outcome_log_that_was_deleted_is_declared_again_and_named(rabbit: Rabbit, tmp_path: Path) -> None:
    """Publishers do not notice it: another queue, which is bound beside the log, takes the events."""
    place = Place("rabbit-classic", rabbit, tmp_path)
    desk = place.desk()
    watch = AmqpLetterWatch(desk.install)
    assert watch.leads()
    assert looked(watch) == []
    producer = Celery("producer", broker=rabbit.url, set_as_current=False)
    Redelivery(producer)
    first = producer.send_task("shop.ok").id
    with rabbit.connection() as connection:
        connection.default_channel.queue_delete(OUTCOMES)
    unseen = producer.send_task("shop.ok").id
    assert rabbit.depth(OUTCOMES) is None
    [line] = looked(watch)
    assert (line["event"], line["log_level"]) == ("outcome_log.missing", "warning")
    assert "the books will show the gap" in line["why"]
    seen = producer.send_task("shop.ok").id
    assert until(lambda: rabbit.depth(OUTCOMES), what="the log to have the next event") == 1
    assert {event.task_id for event in rabbit.events()} == {first, unseen, seen}
    assert looked(watch) == []
    watch.stop()
    producer.close()
