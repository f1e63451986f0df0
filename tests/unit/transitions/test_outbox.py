"""The outbox: transitions wait in it while the broker does not answer. A transition that the broker refuses is quarantined."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from redis import exceptions
from structlog.testing import capture_logs

from redelivery.middleware.brokers.redis.scripts import Script, encoded
from redelivery.middleware.brokers.redis.transport import RedisTransport
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.ports import Answer
from redelivery.middleware.transitions import outbox as module
from redelivery.middleware.transitions.outbox import Outbox
from tests.support.desk import Desk
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop
    from tests.support.servers import Server


class Asked:
    """A transition that fails until it is repaired."""

    def __init__(self, name: str, done: list[str], *, failing: Exception | None = None) -> None:
        self.name, self.done, self.failing = name, done, failing
        self.asked = 0

    def __call__(self) -> Answer:
        """Carry it out, or fail."""
        self.asked += 1
        if self.failing is not None:
            raise self.failing
        self.done.append(self.name)
        return Answer.DONE


def publish(desk: Desk, event: Event) -> Answer:
    """A script that a full server refuses, because its first write does not free memory."""
    Script("publish")(desk.client, [desk.keys.outcomes, "q"], ["m", "", *encoded(event)])
    return Answer.DONE


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quarantined transitions are tried again soon."""
    monkeypatch.setattr(module, "FIRST_QUARANTINE_WAIT", 0.05)


@pytest.mark.parametrize(
    ("error", "not_now"),
    [
        (exceptions.ConnectionError("gone"), True),
        (exceptions.TimeoutError("slow"), True),
        (exceptions.BusyLoadingError("loading"), True),
        (exceptions.ReadOnlyError("READONLY"), True),
        (exceptions.OutOfMemoryError("OOM"), True),
        (exceptions.ClusterDownError("CLUSTERDOWN"), True),
        (exceptions.MasterDownError("MASTERDOWN"), True),
        (exceptions.ResponseError("BUSY Redis is busy running a script"), True),
        (exceptions.ResponseError("MISCONF cannot persist"), True),
        (exceptions.ResponseError("NOREPLICAS not enough"), True),
        (OSError("broken pipe"), True),
        (exceptions.ResponseError("WRONGTYPE of key"), False),
        (exceptions.NoPermissionError("NOPERM"), False),
        (exceptions.DataError("not encodable"), False),
        (TypeError("ours"), False),
    ],
)
def test_only_a_broker_that_cannot_now_is_waited_for(error: Exception, *, not_now: bool) -> None:
    """A transition with any other failure would block the outbox for ever."""
    assert RedisTransport.is_transient(error) is not_now


def test_what_cannot_be_done_now_waits_and_the_rest_behind_it_in_order() -> None:
    """The order of the requests stays, whatever happens to the broker."""
    outbox, done = Outbox(RedisTransport.is_transient), list[str]()
    first = Asked("a", done, failing=exceptions.ReadOnlyError("READONLY"))
    answers: list[Any] = []
    for name, transition in (("a", first), ("b", Asked("b", done)), ("c", Asked("c", done))):
        outbox.carry_out(name, transition, answers.append)
    assert (done, outbox.tags(), outbox.drain(0.1)) == ([], {"a", "b", "c"}, False)
    first.failing = None
    assert outbox.drain(60)
    assert done == ["a", "b", "c"]
    until(lambda: answers == [Answer.DONE] * 3 and not outbox.tags(), 60)


@pytest.mark.parametrize(
    "error", [exceptions.NoPermissionError("NOPERM"), TypeError("a bug in redelivery")], ids=["refused", "fault"]
)
def test_what_is_refused_for_good_blocks_nobody_and_is_tried_again(error: Exception) -> None:
    """It is quarantined and logged as an error, its prefetch slot becomes free, and it is carried out after the repair."""
    freed: list[str] = []
    outbox, done = Outbox(RedisTransport.is_transient, freed.append), list[str]()
    bad = Asked("a", done, failing=error)
    with capture_logs() as lines:
        outbox.carry_out("a", bad, lambda _: None)
        outbox.carry_out("b", Asked("b", done), lambda _: None)
        assert (done, freed, outbox.tags(), len(outbox)) == (["b"], ["a"], {"a"}, 1)
        assert outbox.drain(0)  # a worker that stops must not wait for it
        until(lambda: bad.asked > 2, 60, "it to be tried again")
    assert {(line["event"], line["log_level"], line["tag"]) for line in lines} == {("transition.failed", "error", "a")}
    bad.failing = None
    until(lambda: done == ["b", "a"] and not len(outbox), 60)


def test_a_quarantined_transition_is_tried_at_least_once_a_minute() -> None:
    """The interval doubles from a second up to 60 s, and stays there."""
    outbox = Outbox(RedisTransport.is_transient)
    refused = module.Quarantined("a", Asked("a", [], failing=TypeError("a bug")), lambda _: None, wait=1.0, at=0.0)
    waits = []
    for _ in range(9):
        outbox._try_quarantined([refused])
        waits.append(refused.wait)
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert refused.at <= time.monotonic() + 60


def test_only_the_first_thousand_quarantined_transitions_give_their_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a worker with only refused transitions would receive every message of the queue."""
    monkeypatch.setattr(Outbox, "_ensure_thread", lambda _: None)
    freed: list[str] = []
    outbox = Outbox(RedisTransport.is_transient, freed.append)
    counts = []
    for at in range(1002):
        outbox.carry_out(str(at), Asked("a", [], failing=TypeError("a bug")), lambda _: None)
        counts.append(len(freed))
    assert counts[998:] == [999, 1000, 1000, 1000]


def test_one_that_is_refused_in_line_lets_the_others_pass() -> None:
    """The broker comes back, and refuses the first transition that waits."""
    outbox, done = Outbox(RedisTransport.is_transient), list[str]()
    first = Asked("a", done, failing=exceptions.ConnectionError("gone"))
    outbox.carry_out("a", first, lambda _: None)
    outbox.carry_out("b", Asked("b", done), lambda _: None)
    first.failing = exceptions.ResponseError("WRONGTYPE")
    assert outbox.drain(60)
    assert (done, outbox.tags()) == (["b"], {"a"})
    first.failing = None
    until(lambda: done == ["b", "a"] and not len(outbox), 60)


def test_who_is_told_may_fail() -> None:
    """If the callback raises, the transition is carried out all the same, and the thread goes on."""
    outbox, done = Outbox(RedisTransport.is_transient), list[str]()
    first = Asked("a", done, failing=exceptions.ConnectionError("gone"))

    def fails(_: Answer) -> None:
        raise RuntimeError

    outbox.carry_out("a", first, fails)
    outbox.carry_out("b", Asked("b", done), lambda _: None)
    first.failing = None
    assert outbox.drain(60)
    assert done == ["a", "b"]


def test_many_threads_put_their_transitions_in_one_line() -> None:
    """None is lost, and none is carried out twice."""
    outbox, done = Outbox(RedisTransport.is_transient), list[str]()
    head = Asked("head", done, failing=exceptions.ConnectionError("gone"))
    outbox.carry_out("head", head, lambda _: None)

    def ask(number: int) -> None:
        for each in range(50):
            outbox.carry_out(f"{number}.{each}", Asked(f"{number}.{each}", done), lambda _: None)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    head.failing = None
    assert outbox.drain(60)
    assert sorted(done) == sorted(["head", *(f"{number}.{each}" for number in range(4) for each in range(50))])
    for number in range(4):
        assert [name for name in done if name.startswith(f"{number}.")] == [f"{number}.{each}" for each in range(50)]


def test_a_letter_that_its_queue_refuses_waits_until_somebody_mends_it(shop: Callable[..., Shop]) -> None:
    """The DLQ is a key of another type. More tasks die than the worker has slots: it works on, and all are kept later."""
    here = shop(settings={"queues": {"#": {"max_delivery_attempts": 1}}})
    worker = here.start("--prefetch-multiplier", "1", concurrency=2)
    here.server.client.hset("DLQ.celery", "not", "a list")  # with this key the worker would refuse to start
    dead = [here.send("fails") for _ in range(6)]
    until(lambda: {run["id"] for run in here.runs()} == set(dead), 60, "all to have failed")
    here.ended(here.send("ok"), "succeeded")
    until(lambda: "transition.failed" in worker.text, 60, "the error line")
    assert "WRONGTYPE" in worker.text
    assert here.server.client.hlen("unacked") == len(dead)
    here.server.client.delete("DLQ.celery")
    for task_id in dead:
        here.ended(task_id, "dead_lettered")
        assert here.outcomes_of(task_id) == ["published", "dead_lettered"]
    assert {letter["headers"]["id"] for letter in here.letters()} == set(dead)
    assert [len(here.runs(task_id)) for task_id in dead] == [1] * 6
    until(lambda: here.leftovers() == {}, 60)


def test_a_start_that_cannot_be_recorded_gives_the_message_and_the_place_back(shop: Callable[..., Shop]) -> None:
    """The message is delivered again every second, uncounted, until the cause is repaired. Nothing runs meanwhile."""
    here = shop(settings={"queues": {"#": {"persist_delivery_count": "always"}}})
    here.server.client.set("redelivery:starts", "no hash")
    worker = here.start(concurrency=1)
    ids = [here.send("ok") for _ in range(5)]
    until(lambda: worker.text.count("message.set_back") >= len(ids) + 1, 60, "all of them to be given back, one again")
    assert here.runs() == []
    here.server.client.delete("redelivery:starts")
    for task_id in ids:
        assert here.ended(task_id, "succeeded").attempt == 1
        assert len(here.runs(task_id)) == 1
    until(lambda: here.leftovers() == {}, 60)


def test_the_broker_tells_one_kind_from_the_other(any_server: Server) -> None:
    """Real answers of each server to a script: the outbox waits if it is full, read-only or loading, and not for a wrong type."""
    desk = Desk(any_server)
    desk.publish()
    tag = desk.hold()
    desk.client.set("DLQ", "no list")
    outbox = Outbox(RedisTransport.is_transient)
    dead = Event(task_id="a", outcome=Outcome.DEAD_LETTERED)
    with capture_logs() as lines:
        outbox.carry_out(
            tag, lambda: desk.transport.dead_letter(tag, b"m", dead_letter_queue="DLQ", queue="q", event=dead), lambda _: None
        )
    assert lines[0]["event"] == "transition.failed"
    desk.client.config_set("maxmemory", 1)
    event = Event(task_id="a", outcome=Outcome.PUBLISHED)
    with capture_logs() as lines:
        outbox.carry_out("p", lambda: publish(desk, event), lambda _: None)
    assert lines[0]["event"] == "transition.postponed"
    desk.client.config_set("maxmemory", 0)
    assert outbox.drain(60)
    desk.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    with capture_logs() as lines:
        outbox.carry_out(tag, lambda: desk.transport.acknowledge(tag, None), lambda _: None)
    assert lines[0]["event"] == "transition.postponed"
    desk.client.execute_command("REPLICAOF", "NO", "ONE")
    assert outbox.drain(60)
    assert desk.client.hlen("unacked") == 0
    desk.client.delete("DLQ")
    until(lambda: not len(outbox), 60, "the quarantined one to be found out of date")
