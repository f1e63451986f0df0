"""Receiving on Redis, by its script on real servers and by a worker: what is taken, in which order, and when it asks again."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Consumer, Queue
from kombu.utils import eventio
from redis import Redis
from redis.exceptions import ResponseError

from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.middleware.brokers.redis.receiving.channel import Receiving
from redelivery.middleware.brokers.redis.receiving.receiver import Receiver
from redelivery.middleware.brokers.redis.scripts import Script, encoded
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.ports import ignore
from tests.support.bench import QUEUE, Bench
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import Server


@pytest.fixture
def bench(any_server: Server) -> Bench:
    """A bench on each kind of server."""
    return Bench(any_server)


def test_receive_takes_in_the_order_of_publication_and_holds_what_it_takes(bench: Bench) -> None:
    """The oldest is first; each is in `unacked` under a new tag, to be restored to its own queue only."""
    bench.publish("a", "b", "c")
    answer = bench.receive(2)
    assert bench.bodies(answer) == ["a", "b"]
    assert [answer[4], answer[7]] == [b"w:1", b"w:2"]
    assert bench.waiting() == ["c"]
    raw, exchange, queue = json.loads(bench.client.hget("unacked", "w:1"))
    assert (raw["body"], exchange, queue) == ("a", "", QUEUE)


def test_held_messages_are_hidden_from_plain_workers_sweeps_for_a_day(bench: Bench) -> None:
    """The score in kombu's index lies a day ahead of the server's clock."""
    tag = bench.take()
    assert bench.client.zscore("unacked_index", tag) == pytest.approx(time.time() + 86_400, abs=60)


def test_receive_takes_the_most_urgent_first_and_one_of_each_queue_in_turn(bench: Bench) -> None:
    """Priority 0 is kombu's most urgent; within a priority no queue starves."""
    bench.publish("slow", priority=9)
    bench.publish("a1", "a2", "a3")
    bench.publish("b1", queue="other")
    assert bench.bodies(bench.receive(4, queues=(QUEUE, "other"))) == ["a1", "b1", "a2", "a3"]
    assert bench.bodies(bench.receive(4)) == ["slow"]


@pytest.mark.parametrize("budget", [2, 3, 4])
def test_receive_keeps_its_budget(bench: Bench, budget: int) -> None:
    """The number of messages is one below, exactly at and one above the budget."""
    bench.publish("a", "b", "c")
    assert len(bench.bodies(bench.receive(budget))) == min(budget, 3)


def test_receive_stops_after_the_message_that_passes_the_byte_bound(bench: Bench) -> None:
    """One message always goes through, however large it is."""
    bench.publish("x" * 500, "b")
    assert len(bench.bodies(bench.receive(10, room=100))) == 1
    assert bench.waiting() == ["b"]


def test_a_repeated_number_returns_the_same_batch(bench: Bench) -> None:
    """If an answer is lost, the same batch is asked for again, and nothing more is taken."""
    bench.publish("a", "b", "c")
    first = bench.receive(2)
    bench.transport.acknowledge("w:1", None)
    again = bench.receive(2, number=1)
    assert bench.bodies(first) == ["a", "b"]
    assert bench.bodies(again) == ["b"]
    assert bench.waiting() == ["c"]


def test_an_overtaken_number_returns_nothing(bench: Bench) -> None:
    """A late request takes nothing for a reader that has gone on."""
    bench.publish("a")
    bench.receive(1, number=1)
    bench.receive(1, number=2)
    bench.publish("b")
    assert bench.receive(1, number=1)[0] == b"stale"
    assert bench.waiting() == ["b"]


def test_a_fenced_owner_is_given_nothing(bench: Bench) -> None:
    """Its lease has ended: it needs a new token first."""
    bench.publish("a")
    assert bench.transport.leases.fence("w", b"0")
    assert bench.receive(1)[0] == b"fenced"
    assert bench.waiting() == ["a"]


def test_garbage_is_received_as_bytes(bench: Bench) -> None:
    """The script never decodes, so what cannot be decoded does not stop it."""
    bench.client.lpush(QUEUE, b"\xff\x00{not json")
    assert bench.receive(1)[6] == b"\xff\x00{not json"


def test_a_message_that_cannot_be_held_stays_in_its_list(bench: Bench) -> None:
    """If the record cannot be written, the same step puts the message back."""
    bench.publish("a")
    bench.client.set("unacked", "not a hash")
    with pytest.raises(ResponseError):
        bench.receive(1)
    assert bench.waiting() == ["a"]


def test_a_list_of_another_type_has_nobody_watch(bench: Bench) -> None:
    """No owner becomes the watcher: messages in other lists are taken, and the next call gets the error."""
    bench.publish("a")
    bench.client.set(bench.keys.list(bench.keys.list_name(QUEUE, 9)), "no list")
    answer = bench.receive(10, free=4)
    assert (bench.bodies(answer), answer[2]) == (["a"], 0)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        bench.receive(10, free=4)


def test_an_idle_worker_asks_once_for_each_task(shop: Callable[..., Shop]) -> None:
    """It is woken, takes the task, and watches again; besides that it asks every four or five seconds, to be safe."""
    here = shop()
    here.start()
    client, keys = here.server.client, Keys()

    def asked() -> int:
        (token,) = client.hkeys(keys.leases)
        return int(client.hget(keys.received(token.decode()), "number") or 0)

    here.ended(here.send("ok"), "succeeded")
    until(lambda: client.hexists(keys.watch("celery"), "watcher"), what="the worker to watch")
    before, began = asked(), time.monotonic()
    for _ in range(20):
        here.ended(here.send("ok"), "succeeded")
    assert 20 <= asked() - before <= 21 + (time.monotonic() - began) / 4


@pytest.mark.parametrize("refused", ["", "-ping"])
def test_a_producer_is_answered_behind_a_word_and_by_its_own_answer(any_server: Server, refused: str) -> None:
    """The producer sends a PING with its script, so that the server wakes the waiting worker first; PING may be forbidden."""
    any_server.client.execute_command("ACL", "SETUSER", "producer", "on", ">secret", "~*", "&*", "+@all", *refused.split())
    client = Redis(unix_socket_path=any_server.socket, username="producer", password="secret")
    publish = Script("publish", answers_last=True)
    event = encoded(Event(task_id="a", outcome=Outcome.PUBLISHED))
    assert [publish(client, ["redelivery:outcomes", QUEUE], [message, "", *event]) for message in "abc"] == [1, 2, 3]
    assert client.get("another command") is None


def test_what_changes_while_it_asks_is_asked_about_at_once() -> None:
    """The answer to a request that was already sent does not include a queue that was added since."""
    owner: Any = type("Owner", (), {"held": {}})()
    receiver = Receiver(owner, lambda: 8, lambda: 2, lambda *_: None)
    receiver.asked()
    receiver.wake()
    receiver.waits(5000)
    assert receiver.seconds_to_wait() == 0
    receiver.asked()
    receiver.waits(5000)
    assert receiver.seconds_to_wait() > 3


def test_a_busy_worker_asks_again_when_a_process_is_free() -> None:
    """The server then wakes it before workers that are still busy."""
    owner: Any = type("Owner", (), {"held": {"w:1": None, "w:2": None}, "calls": 7})()
    receiver = Receiver(owner, lambda: 8, lambda: 2, lambda *_: None)
    receiver.asked()
    receiver.waits(-5000)
    assert receiver.seconds_to_wait() > 3
    del owner.held["w:1"]
    assert receiver.seconds_to_wait() == 0
    receiver.asked()
    receiver.waits(5000)
    assert receiver.seconds_to_wait() > 3


def test_a_busy_worker_lets_the_server_know_with_the_end_that_frees_a_process() -> None:
    """The acknowledgement of such a message says that the worker is free. It need not ask, unless it has asked in between."""
    owner: Any = type("Owner", (), {"held": {"w:1": None, "w:2": None, "w:3": None}, "calls": 7})()
    receiver = Receiver(owner, lambda: 2, lambda: 2, lambda *_: None)
    nothing: tuple[tuple[str, ...], str] = (), ""
    receiver.asked()
    receiver.waits_for, receiver.place = frozenset((b"orders",)), ("received", "watch", "idle", "orders")
    receiver.waits(-5000)
    assert receiver.place_of("w:1") == nothing  # it has two others
    del owner.held["w:1"]
    assert receiver.place_of("w:1") == receiver.place_of("") == nothing
    assert receiver.place_of("w:2") == (receiver.place, "7")
    receiver.waits_as_free(6)
    del owner.held["w:2"]
    assert receiver.seconds_to_wait() == 0
    receiver.waits_as_free(7)
    assert receiver.seconds_to_wait() > 3
    receiver.leaves()
    assert receiver.place_of("w:3") == nothing
    receiver.asked()
    receiver.waits(-5000)
    assert receiver.seconds_to_wait() == 0


def test_a_solo_worker_does_not_sleep_while_it_has_work() -> None:
    """The loop has chosen how long to wait before it lets the channel run tasks: after each, it looks around or asks for more."""

    class Channel(Receiving):
        """Its tasks take long: each call hands over one message."""

        _in_poll = None

        def look_around(self) -> bool:
            done.append("looks")
            return True

        def _hand_over(self: Any, *_: Any) -> int:
            done.append(channel.receiver.pending.popleft())
            channel.receiver.was_cut_short = bool(channel.receiver.pending)
            return 1

        def _budget(self) -> int:
            done.append("has room")
            return 0

    done: list[Any] = []
    channel: Any = Channel()
    owner: Any = type("Owner", (), {"held": {}, "calls": 7})()
    channel.connection, channel.receiver = channel, Receiver(owner, lambda: 8, lambda: 1, lambda *_: None)
    channel.receiver.asked()
    channel.receiver.pending.extend(["first", "second"])
    channel._brpop_start()
    channel._brpop_start()
    assert done == ["first", "looks", "second", "has room"]


@pytest.mark.parametrize("poller", [eventio._epoll, eventio._select], ids=["of a hub", "of greenlets"])
def test_the_connection_of_mingle_is_read_no_more(any_server: Server, folder: Path, poller: type[Any]) -> None:
    """Its number may become that of another connection, whose data would make the worker wait for an answer that is not due."""
    with Shop(any_server, folder).app.connection_for_read() as connection, Consumer(connection, [Queue("replies")]):
        cycle, channel = connection.transport.cycle, connection.default_channel
        cycle.poller = poller()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.01)
        (before,) = cycle.fds
        near, far = socket.socketpair()
        with near, far:
            owner: Any = None
            channel.arm(Receiver(owner, lambda: 1, lambda: 1, ignore))
            os.dup2(near.fileno(), before)
            try:
                far.send(b"!")
                assert before not in cycle.fds
                assert not cycle.poller.poll(0)
            finally:
                os.close(before)


def test_a_queue_without_acknowledgements_is_received_as_any_other(shop: Callable[..., Shop]) -> None:
    """It was added by remote control: at its start, a worker refuses such a queue."""
    made = shop()
    made.start("-Q", "celery")
    add = functools.partial(made.app.control.add_consumer, "fast", options={"no_ack": True}, reply=True, timeout=1)
    until(add, what="the worker to answer: what is broadcast before it listens is lost")
    task_id = made.send("fails", 1, queue="fast")
    made.ended(task_id, "succeeded")
    assert made.outcomes_of(task_id) == ["published", "redelivery_scheduled", "succeeded"]
