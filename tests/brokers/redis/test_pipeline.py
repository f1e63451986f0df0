"""Pipelined transitions, with a real event loop: every message is ended once, whatever happens to the answers."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.asynchronous import Hub
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.middleware.brokers.redis.pipeline import UnderWay
from redelivery.middleware.brokers.redis.transport import RedisTransport
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.ports import Answer
from redelivery.middleware.transitions.outbox import Outbox
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.desk import QUEUE, Desk
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import Server


class Loop:
    """An event loop, its pipeline, and a desk that holds messages; `ended` are the tags whose answers have come."""

    def __init__(self, desk: Desk, transport: Any = None) -> None:
        self.desk, self.hub = desk, Hub()
        self.transport = desk.transport if transport is None else transport
        self.outbox = Outbox(RedisTransport.is_transient)
        self.under_way = self.outbox.under_way = UnderWay(self.transport, self.hub, self.outbox.carry_out)
        self.ended: list[str] = []
        self.answers: list[Answer] = []

    def hold(self) -> tuple[str, str]:
        """A message that is held: its task id, and its tag."""
        task_id = self.desk.publish()
        return task_id, self.desk.hold()

    def acknowledge(self, task_id: str, tag: str) -> None:
        """Ask for its end."""
        event = Event(task_id=task_id, outcome=Outcome.SUCCEEDED, queue=QUEUE)
        self.ask(tag, lambda transport: transport.acknowledge(tag, event))

    def ask(self, tag: str, transition: Callable[[Any], Answer]) -> None:
        """Ask for any transition."""

        def then(answer: Answer) -> None:
            self.ended.append(tag)
            self.answers.append(answer)

        self.outbox.ask(tag, transition, then, self.transport)

    def turn(self, count: int, seconds: float = 30) -> None:
        """Let the loop turn until so many have ended. Raises `AssertionError` where they do not."""
        deadline = time.monotonic() + seconds
        while len(self.ended) < count:
            assert time.monotonic() < deadline, self.ended
            self.hub.call_soon(_nothing)
            self.hub.run_once()

    def recorded(self) -> list[str]:
        """The task ids in the outcome log, in its order."""
        return [event.task_id for event in self.desk.events if event.outcome == Outcome.SUCCEEDED]

    def held(self) -> int:
        """How many messages the broker says are held."""
        return int(self.desk.client.hlen(self.desk.keys.unacked))

    def kill(self) -> None:
        """Have the server close the pipeline's connection."""
        connection: Any = self.under_way._connection
        name = b"under-way"
        connection.send_command("CLIENT", "SETNAME", name)
        assert connection.read_response() in {b"OK", "OK"}
        clients: Any = self.desk.client.client_list()
        for each in clients:
            if each["name"] == name.decode():
                self.desk.client.client_kill_filter(_id=each["id"])


def _nothing() -> None:
    """So that the loop does not wait in its poll."""


@pytest.fixture
def loop(any_server: Server) -> Iterator[Loop]:
    """On a private broker."""
    here = Loop(Desk(any_server))
    yield here
    here.hub.close()


def test_answers_come_with_the_loop_and_in_order(loop: Loop) -> None:
    """All are sent before the first answer is read; until then the messages count as leaving."""
    messages = [loop.hold() for _ in range(20)]
    for task_id, tag in messages:
        loop.acknowledge(task_id, tag)
    assert loop.ended == []
    assert (loop.outbox.tags(), len(loop.outbox)) == ({tag for _, tag in messages}, 20)
    loop.turn(20)
    assert loop.ended == [tag for _, tag in messages]
    assert loop.recorded() == [task_id for task_id, _ in messages]
    assert (set(loop.answers), loop.held(), loop.outbox.tags(), len(loop.outbox)) == ({Answer.DONE}, 0, set(), 0)


def test_what_another_worker_was_given_is_refused(loop: Loop) -> None:
    """The caller gets the answer "refused" unchanged."""
    task_id, tag = loop.hold()
    loop.desk.client.hdel(loop.desk.keys.unacked, tag)
    loop.desk.client.hdel(loop.desk.keys.leases, tag.partition(":")[0])
    loop.acknowledge(task_id, tag)
    loop.turn(1)
    assert (loop.answers, loop.recorded()) == ([Answer.REFUSED], [])


def test_a_server_that_has_forgotten_the_script_is_told_it_again(loop: Loop) -> None:
    """As after a restart: each pending transition is sent again with the script, and happens once."""
    messages = [loop.hold() for _ in range(3)]
    loop.desk.client.script_flush()
    for task_id, tag in messages:
        loop.acknowledge(task_id, tag)
    loop.turn(3)
    assert sorted(loop.recorded()) == sorted(task_id for task_id, _ in messages)
    assert (set(loop.answers), loop.held()) == ({Answer.DONE}, 0)


def test_one_that_the_broker_refuses_lets_the_others_pass(loop: Loop) -> None:
    """It is put aside with an error line, and carried out when the cause is removed."""
    (bad_id, bad), (good_id, good) = loop.hold(), loop.hold()
    loop.desk.client.set("nowhere", "no list")
    event = Event(task_id=bad_id, outcome=Outcome.REDELIVERY_SCHEDULED, queue=QUEUE)
    with capture_logs() as lines:
        loop.ask(bad, lambda to: to.defer(bad, "nowhere", b"m", task_id=bad_id, event=event, delay_ms=0))
        loop.acknowledge(good_id, good)
        loop.turn(1)
    assert [line["event"] for line in lines] == ["transition.failed"]
    assert (loop.ended, loop.outbox.tags(), loop.held()) == ([good], {bad}, 1)
    loop.desk.client.delete("nowhere")
    until(lambda: loop.ended == [good, bad], 60, "it to be carried out")
    assert loop.held() == 0


def test_what_cannot_even_be_asked_is_put_aside(loop: Loop) -> None:
    """If encoding a transition fails, nothing has been sent, and the connection stays in step."""

    def fails(_: Any) -> Answer:
        msg = "ours"
        raise TypeError(msg)

    first, second = loop.hold(), loop.hold()
    loop.acknowledge(*first)
    with capture_logs() as lines:
        loop.ask("t", fails)
    loop.acknowledge(*second)
    loop.turn(2)
    assert [line["event"] for line in lines] == ["transition.failed"]
    loop.outbox._quarantined.clear()  # the cause is never removed
    assert loop.recorded() == [first[0], second[0]]


def test_a_connection_that_ends_under_them_has_each_end_once(loop: Loop) -> None:
    """Some were carried out and some were not: all are sent again, and the broker recognises the repeats."""
    before, after = loop.hold(), loop.hold()
    loop.acknowledge(*loop.hold())
    loop.turn(1)
    loop.kill()
    with capture_logs() as lines:
        loop.acknowledge(*before)
        loop.acknowledge(*after)
        loop.turn(3)
    assert "transition.repeated" in {line["event"] for line in lines}
    assert sorted(loop.recorded()[1:]) == sorted([before[0], after[0]])
    assert loop.held() == 0


def test_a_connection_that_ends_while_nothing_is_under_way_is_made_anew(loop: Loop) -> None:
    """The server may close an idle connection; no caller notices."""
    loop.acknowledge(*loop.hold())
    loop.turn(1)
    loop.kill()
    with capture_logs() as lines:
        until(lambda: _turned(loop).under_way._connection is None, 60, "the end to be noticed")
        loop.acknowledge(*loop.hold())
        loop.turn(2)
    assert lines == []
    assert set(loop.answers) == {Answer.DONE}


def _turned(loop: Loop) -> Loop:
    loop.hub.call_soon(_nothing)
    loop.hub.run_once()
    return loop


@pytest.mark.parametrize("when", ["asking", "reading"])
def test_what_a_signal_interrupts_ends_once(loop: Loop, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """`SystemExit` of a cold shutdown can be raised anywhere, so it is not known if the request was sent or the answer read."""
    messages = [loop.hold() for _ in range(3)]
    loop.acknowledge(*messages[0])
    loop.turn(1)
    connection: Any = loop.under_way._connection
    name = "send_packed_command" if when == "asking" else "read_response"
    original = getattr(connection, name)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        original(*args, **kwargs)
        raise SystemExit

    monkeypatch.setattr(connection, name, interrupted)
    with pytest.raises(SystemExit):  # noqa: PT012 - whichever of them is interrupted
        loop.acknowledge(*messages[1])
        loop.turn(2)
    loop.acknowledge(*messages[2])
    loop.outbox.settle()
    assert loop.ended[1:] == [tag for _, tag in messages[1:]]
    assert loop.recorded() == [task_id for task_id, _ in messages]
    assert loop.held() == 0


def test_the_end_waits_for_every_answer(loop: Loop) -> None:
    """After the loop has stopped, `settle` reads the answers; a later transition is waited for directly."""
    messages = [loop.hold() for _ in range(5)]
    for each in messages[:4]:
        loop.acknowledge(*each)
    loop.outbox.settle()
    assert loop.ended == [tag for _, tag in messages[:4]]
    loop.acknowledge(*messages[4])
    assert loop.ended == [tag for _, tag in messages]
    assert loop.recorded() == [task_id for task_id, _ in messages]
    assert loop.hub.readers == {}


def test_another_thread_waits_for_its_answer(loop: Loop) -> None:
    """Only the loop's own thread sends transitions without waiting."""
    task_id, tag = loop.hold()
    thread = threading.Thread(target=loop.acknowledge, args=(task_id, tag))
    thread.start()
    thread.join()
    assert (loop.ended, loop.recorded(), len(loop.under_way)) == ([tag], [task_id], 0)


def test_who_is_told_may_fail(loop: Loop) -> None:
    """If the callback raises, the transition is still carried out, and the loop goes on with the next."""
    first, second = loop.hold(), loop.hold()

    def fails(_: Answer) -> None:
        raise RuntimeError

    with capture_logs() as lines:
        loop.outbox.ask(first[1], lambda transport: transport.acknowledge(first[1], None), fails, loop.transport)
        loop.acknowledge(*second)
        loop.turn(1)
    assert [line["event"] for line in lines] == ["transition.unheard"]
    assert (loop.ended, loop.held()) == ([second[1]], 0)


class Patient:
    """A loop whose calls go through a proxy, and may take so many seconds."""

    SECONDS = 1.0

    def __init__(self, server: Server) -> None:
        self.proxy = Proxy(server.socket).start()
        app = Celery("patient", broker=self.proxy.url, set_as_current=False)
        app.conf.broker_transport_options = {"socket_timeout": self.SECONDS}
        self.loop = Loop(Desk(server), Redelivery(app).transport)

    def close(self) -> None:
        """End both."""
        with suppress(OSError):
            self.loop.hub.close()
        self.proxy.stop()


@pytest.fixture
def patient(server: Server) -> Iterator[Patient]:
    """On a private broker."""
    here = Patient(server)
    yield here
    here.close()


def test_a_broker_that_does_not_answer_is_asked_again_until_it_does(patient: Patient) -> None:
    """It is asked again for as long as a call may take; then the transitions wait in the outbox, in their order."""
    loop, messages = patient.loop, [patient.loop.hold() for _ in range(4)]
    loop.acknowledge(*messages[0])
    loop.turn(1)
    patient.proxy.black_hole()
    with capture_logs() as lines:
        for each in messages[1:]:
            loop.acknowledge(*each)
        until(lambda: len(_turned(loop).under_way) == 0, 60, "it to give up")
    assert lines[0] == {"event": "transition.repeated", "log_level": "info", "count": 3, "error": "TimeoutError: no answer in 1 s"}
    assert loop.outbox.tags() == {tag for _, tag in messages[1:]}
    patient.proxy.let_through()
    until(lambda: len(loop.ended) == 4, 60, "them all")
    assert loop.ended == [tag for _, tag in messages]
    assert loop.recorded() == [task_id for task_id, _ in messages]


def test_a_loop_that_was_held_up_takes_the_answers_that_have_come(patient: Patient) -> None:
    """The machine stood still, not the broker: answers that have arrived are read before a timeout is assumed."""
    loop, messages = patient.loop, [patient.loop.hold() for _ in range(4)]
    loop.acknowledge(*messages[0])
    loop.turn(1)
    with capture_logs() as lines:
        for each in messages[1:]:
            loop.acknowledge(*each)
        until(lambda: loop.held() == 0, 60)
        oldest = loop.under_way._asked[0]
        until(lambda: time.monotonic() > oldest.at + patient.SECONDS, 60, "an answer to be overdue")
        loop.turn(4)
    assert lines == []
    assert loop.ended == [tag for _, tag in messages]
