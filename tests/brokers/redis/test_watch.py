"""One push wakes one worker: which worker watches a queue, which is woken next, and what happens if the watcher does not come."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from redis import ConnectionPool, Redis, UnixDomainSocketConnection

from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.middleware.brokers.redis.scripts import encoded
from redelivery.middleware.messages.events import Event, Outcome
from tests.support.bench import QUEUE, Bench
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.running import Shop
    from tests.support.servers import Server

#: When an owner must look again, in milliseconds: one that watches or waits, and a deputy.
LOOK, SECOND_LOOK = 5000, 1000
#: How long a queue without any look is remembered, in milliseconds.
MONTH = 30 * 86_400_000


class OneConnection(ConnectionPool):
    """A pool of one connection, on which pushes may wait."""

    def __init__(self, path: str) -> None:
        super().__init__(UnixDomainSocketConnection, path=path, protocol=3)
        self.one: Any = self.make_connection()
        self.one.connect()

    def get_connection(self, *_: Any, **__: Any) -> Any:
        """As redis-py's, which would drop a connection that has unread data."""
        return self.one

    def release(self, connection: Any) -> None:
        """Keep the connection."""


class Owner:
    """An owner without a worker: a connection that hears pushes, as a worker's does."""

    def __init__(self, bench: Bench, server: Server, token: str, processes: int = 1) -> None:
        self.bench, self.token, self.free, self.calls, self.pushes, self.held = bench, token, processes, 0, 0, list[str]()
        bench.transport.leases.register(token, {})
        pool = OneConnection(server.socket)
        self.client: Any = Redis(connection_pool=pool)
        pool.one._parser.set_invalidation_push_handler(self._pushed)
        self.client.execute_command("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
        self._look(bench.keys.woken(token))

    def _pushed(self, push: list[Any]) -> None:
        self.pushes += len(push[1])

    def _look(self, *keys: str) -> int:
        """Have the server report changes of these keys; returns their number."""
        self.client.execute_command("CLIENT", "CACHING", "YES")
        return int(self.client.exists(*keys))

    def ask(self, budget: int = 10, *, is_look: bool = False, queues: tuple[str, ...] = (QUEUE,)) -> tuple[list[str], int]:
        """The messages that it gets, and when it must look again; each message keeps a process busy."""
        self.calls, keys = self.calls + 1, self.bench.keys
        self.bench.let_pass(1)  # the key that woke it is gone: if it goes again later, that is another push
        self._look(keys.woken(self.token))
        answer = self.bench.receive(
            budget, number=self.calls, token=self.token, queues=queues, free=self.free, is_look=is_look, client=self.client
        )
        bodies = self.bench.bodies(answer)
        self.held += [answer[at].decode() for at in range(4, len(answer), 3)]
        self.free -= len(bodies)
        watched = [queue for queue, flag in zip(queues, answer[3].decode(), strict=True) if flag == "1"]
        if watched:
            assert not self._look(*(keys.list(each) for queue in watched for each in keys.list_names(queue)))
        return bodies, int(answer[2])

    def acknowledge(self) -> bool:
        """End a message, which frees a process; returns whether this owner now waits as a free one, and need not ask."""
        keys, tag = self.bench.keys, self.held.pop(0)
        held = [keys.unacked, keys.unacked_index, keys.starts, keys.leases, keys.outcomes]
        lists = [keys.list(name) for name in keys.list_names(QUEUE)]
        names = [*held, keys.received(self.token), keys.watch(QUEUE), keys.idle(QUEUE), *lists]
        event = Event(task_id=tag, outcome=Outcome.SUCCEEDED, queue=QUEUE)
        answer = self.bench.acknowledge_script(self.bench.client, names, [tag, self.token, self.calls, *encoded(event)])
        self.free += 1
        assert answer in {b"done", self.calls}
        assert not self.bench.client.hexists(keys.unacked, tag)
        return bool(answer == self.calls)

    def was_woken(self) -> bool:
        """Whether the server has pushed since it was asked last."""
        self.client.ping()  # what was pushed before is read before its answer
        pushes, self.pushes = self.pushes, 0
        return bool(pushes)


@pytest.fixture
def bench(any_server: Server) -> Bench:
    """A bench on each kind of server."""
    return Bench(any_server)


@pytest.fixture
def owners(bench: Bench, any_server: Server) -> Iterator[Callable[..., list[Owner]]]:
    """Makes owners; each asks in turn and finds nothing, and the first of them watches."""
    made: list[Owner] = []

    def make(count: int, processes: int = 1) -> list[Owner]:
        fresh = [Owner(bench, any_server, f"o{len(made) + number}", processes) for number in range(count)]
        for each in fresh:
            assert each.ask()[0] == []
            bench.let_pass(1)  # the order of waiting is known by the millisecond
        made.extend(fresh)
        return fresh

    yield make
    for each in made:
        each.client.close()


def woken(owners: list[Owner]) -> list[int]:
    """The numbers of the owners that were woken."""
    return [number for number, each in enumerate(owners) if each.was_woken()]


def test_one_push_wakes_one_of_many(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """This holds for a plain producer too, because the list itself is watched."""
    five = owners(5)
    bench.publish("a")
    assert woken(five) == [0]


def test_who_becomes_busy_wakes_the_one_that_has_waited_longest(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """Each message wakes the watcher, which takes it and makes the next one the watcher."""
    four = owners(4)
    for number in range(3):
        bench.publish(f"message {number}")
        assert woken(four) == [number]
        assert four[number].ask() == ([f"message {number}"], -LOOK)
        assert woken(four) == [number + 1]
        assert four[number + 1].ask() == ([], LOOK)


def test_where_many_wait_each_looks_less_often(owners: Callable[..., list[Owner]]) -> None:
    """The watcher and the deputy look as often as in a small fleet; the others look half as often, or a quarter as often."""
    ten = owners(10)
    assert [each.ask()[1] for each in (*ten[:3], ten[9])] == [LOOK, SECOND_LOOK, 2 * LOOK, 2 * LOOK]
    assert {each.ask()[1] for each in owners(24)} == {4 * LOOK}
    assert [each.ask()[1] for each in ten[:3]] == [LOOK, SECOND_LOOK, 4 * LOOK]


def test_where_few_wait_each_looks_as_often(owners: Callable[..., list[Owner]]) -> None:
    """With one watcher and eight that wait, each looks at the usual interval."""
    assert [each.ask()[1] for each in owners(9)] == [LOOK, SECOND_LOOK, *[LOOK] * 7]


def test_who_has_a_process_left_goes_on_watching(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """With two processes the first message wakes nobody else."""
    two = owners(2, processes=2)
    bench.publish("a")
    assert woken(two) == [0]
    assert two[0].ask() == (["a"], LOOK)
    assert woken(two) == []
    bench.publish("b")
    assert woken(two) == [0]
    assert two[0].ask() == (["b"], -LOOK)
    assert woken(two) == [1]


def test_as_many_are_woken_as_there_is_work_for(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """An owner that cannot take all messages wakes the next one."""
    three = owners(3)
    bench.publish("a", "b", "c", "d", "e")
    assert woken(three) == [0]
    assert three[0].ask(2) == (["a", "b"], 0)
    assert woken(three) == [1]
    assert three[1].ask(2) == (["c", "d"], 0)
    assert woken(three) == [2]
    assert three[2].ask(2) == (["e"], LOOK)  # no other owner waits


def test_who_is_woken_without_room_hands_on(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """It takes no message, and wakes the next owner instead."""
    two = owners(2)
    bench.publish("a")
    assert woken(two) == [0]
    assert two[0].ask(0) == ([], 0)
    assert woken(two) == [1]
    assert two[1].ask()[0] == ["a"]


def test_a_busy_owner_watches_where_all_are_busy_and_the_first_free_one_instead(
    bench: Bench, owners: Callable[..., list[Owner]]
) -> None:
    """A worker that runs tasks in its main process notices no push meanwhile, so a free one takes over the watch."""
    two = owners(2)
    bench.publish("a", "b")
    assert two[0].ask(1)[0] == ["a"]
    assert two[1].ask()[0] == ["b"]
    woken(two)
    two[0].free = 1
    assert two[0].ask() == ([], LOOK)
    bench.publish("c")
    assert 0 in woken(two)
    assert two[0].ask()[0] == ["c"]


def test_who_is_free_again_says_so_with_its_acknowledgement(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """It joins the end of the free owners, before all busy ones, and need not ask."""
    four = owners(4)
    for number in range(2):  # 0 and 1 are busy, 2 watches, and 3 waits
        bench.publish(f"message {number}")
        assert four[number].ask() == ([f"message {number}"], -LOOK)
        assert four[number + 1].ask() == ([], LOOK)
    assert four[3].ask() == ([], SECOND_LOOK)
    woken(four)
    bench.let_pass(1)
    assert four[1].acknowledge()
    assert woken(four) == []
    for number, after in ((2, 3), (3, 1), (1, 0)):
        bench.publish(f"for {number}")
        assert woken(four) == [number]
        bodies, look = four[number].ask()
        assert bodies == [f"for {number}"]
        if after:
            assert woken(four) == [after]
            assert four[after].ask()[0] == []
        else:
            assert look == LOOK  # all are busy, so it stays the watcher


def _leave(bench: Bench, owner: Owner) -> None:
    bench.transport.leases.unregister(owner.token)


@pytest.mark.parametrize("gone", ["watcher", "deputy", "both", "nobody"])
def test_who_may_be_needed_for_one_that_has_left_asks(bench: Bench, owners: Callable[..., list[Owner]], gone: str) -> None:
    """Workers that have stopped are still recorded as watcher and deputy, so it must ask itself."""
    three = owners(3)
    bench.publish("a")
    assert three[0].ask()[0] == ["a"]
    assert (three[1].ask(), three[2].ask()) == (([], LOOK), ([], SECOND_LOOK))
    for number, name in ((1, "watcher"), (2, "deputy")):
        if gone in {name, "both"}:
            _leave(bench, three[number])
    assert three[0].acknowledge() is (gone == "nobody")


def test_who_is_free_again_takes_what_lies_there(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """The watcher may have died or be busy with something else."""
    three = owners(3)
    bench.publish("a")
    assert three[0].ask()[0] == ["a"]
    assert (three[1].ask(), three[2].ask()) == (([], LOOK), ([], SECOND_LOOK))
    bench.publish("urgent", priority=9)
    assert not three[0].acknowledge()
    assert three[0].ask()[0] == ["urgent"]


def test_who_is_needed_asks_when_it_is_free_again(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """There is no deputy, the watcher is busy, or this owner was woken or has asked since: the acknowledgement is not enough."""
    three = owners(3)
    bench.publish("a", "b", "c", "d")
    assert three[0].ask(1)[0] == ["a"]
    assert three[1].ask(1)[0] == ["b"]
    assert not three[0].acknowledge()  # it was the watcher when it asked, and is not recorded as waiting
    assert three[0].ask(1) == (["c"], 0)
    assert three[2].ask() == (["d"], LOOK)  # all are busy, and this one watches
    assert three[1].ask() == ([], -LOOK)
    assert not three[1].acknowledge()
    assert three[1].ask() == ([], LOOK)
    assert three[0].ask() == ([], -LOOK)
    assert not three[0].acknowledge()  # there is no deputy
    assert three[0].ask() == ([], SECOND_LOOK)
    assert three[2].ask() == ([], -LOOK)
    bench.client.hset(bench.keys.received("o2"), "number", three[2].calls + 1)
    assert not three[2].acknowledge()


@pytest.mark.parametrize("key", ["watch", "idle", "received"])
def test_keys_of_another_type_end_no_acknowledgement(bench: Bench, owners: Callable[..., list[Owner]], key: str) -> None:
    """The message is ended and recorded, and its worker then asks."""
    three = owners(3)
    bench.publish("a")
    assert three[0].ask()[0] == ["a"]
    assert three[2].ask()[1] == SECOND_LOOK
    names = {"watch": bench.keys.watch(QUEUE), "idle": bench.keys.idle(QUEUE), "received": bench.keys.received("o0")}
    bench.client.set(names[key], "another type")
    assert not three[0].acknowledge()
    assert [each.outcome for each in bench.events] == [Outcome.SUCCEEDED]


def test_a_watcher_whose_lease_has_ended_has_lost_the_watch(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """The next owner that asks becomes the watcher."""
    two = owners(2)
    assert bench.transport.leases.fence("o0", b"0")
    assert two[1].ask() == ([], LOOK)
    bench.publish("a")
    assert 1 in woken(two)


def test_the_deputy_looks_each_second_and_takes_the_watch_from_one_that_does_not_come(
    bench: Bench, owners: Callable[..., list[Owner]]
) -> None:
    """A watcher that was killed a moment ago still has a lease."""
    three = owners(3, processes=2)
    assert [each.ask()[1] for each in three] == [LOOK, SECOND_LOOK, LOOK]
    bench.publish("a")
    assert woken(three) == [0]
    assert three[1].ask(is_look=True) == (["a"], LOOK)
    bench.publish("b")
    assert 1 in woken(three)


def test_one_that_was_handed_the_watch_and_does_not_come_loses_it(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """It died after it was made the watcher and before it looked; the next owner that waits becomes the deputy."""
    three = owners(3)
    bench.publish("a")
    assert three[0].ask()[0] == ["a"]
    assert bench.client.hget(bench.keys.watch(QUEUE), "watcher") == b"o1"
    three[0].free = 1
    assert three[0].ask() == ([], SECOND_LOOK)
    assert woken(three) == [0, 1]  # by the first message, and by its own key
    bench.publish("b")
    assert woken([three[0], three[2]]) == []
    three[0].free = 2
    assert three[0].ask(is_look=True) == (["b"], LOOK)
    bench.publish("c")
    assert 0 in woken(three)


def test_each_queue_has_a_watcher_of_its_own(bench: Bench, owners: Callable[..., list[Owner]], any_server: Server) -> None:
    """An owner of two queues is woken by the one that it watches; while it is busy, others watch both."""
    both = Owner(bench, any_server, "both", processes=2)
    assert both.ask(queues=(QUEUE, "other")) == ([], LOOK)
    (single,) = owners(1)
    bench.publish("a", queue="other")
    assert (both.was_woken(), single.was_woken()) == (True, False)
    assert both.ask(queues=(QUEUE, "other")) == (["a"], LOOK)
    bench.publish("b")
    assert (both.was_woken(), single.was_woken()) == (True, False)
    assert both.ask(queues=(QUEUE, "other")) == (["b"], -LOOK)
    assert single.was_woken()
    both.client.close()


def test_a_watch_of_another_type_has_everybody_look_each_second(bench: Bench) -> None:
    """Messages are still received."""
    bench.client.set(bench.keys.watch(QUEUE), "no hash")
    bench.publish("a")
    answer = bench.receive(10, free=2)
    assert (bench.bodies(answer), answer[2]) == (["a"], SECOND_LOOK)


def test_who_hears_no_pushes_never_watches(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """It polls, and owners that get pushes are woken as usual."""
    (one,) = owners(1)
    answer = bench.receive(10, free=-1)
    assert answer[2] == 0
    until(lambda: bench.client.hget(bench.keys.watch(QUEUE), "watcher") in {b"o0", None}, what="nobody else to watch")
    one.ask()
    bench.publish("a")
    assert one.was_woken()


@pytest.mark.parametrize("pool", first_quick(["solo", "prefork"]))
def test_an_idle_worker_takes_what_comes_while_another_one_is_busy(shop: Callable[..., Shop], pool: str) -> None:
    """A worker that runs a task in its main process notices no push meanwhile, so it has passed the watch on before."""
    here = shop()
    gate, client, keys = here.folder / "gate", here.server.client, Keys()
    for _ in range(2):
        here.start(pool=pool, concurrency=1)
    until(lambda: client.hget(keys.watch("celery"), "watcher") and client.zcard(keys.idle("celery")) == 1, what="both to wait")
    long = here.send("waits", str(gate))
    until(lambda: here.runs(long), what="the long task to begin")
    for _ in range(5):
        here.ended(here.send("ok"), "succeeded")
    assert [run["event"] for run in here.runs(long)] == ["start"]
    gate.touch()
    here.ended(long, "succeeded")


def test_a_worker_that_hears_a_push_asks_for_the_message_before_it_looks_at_its_queue(shop: Callable[..., Shop]) -> None:
    """There is only one round trip between the push and the message."""
    here = shop()
    here.start(pool="solo")
    here.ended(here.send("ok"), "succeeded")
    with here.server.client.monitor() as heard:
        task_id, named = here.send("ok"), []
        while "EXISTS" not in named:
            seen = heard.next_command()
            command, *said = seen["command"].split()
            is_receive = Keys().watch("celery") in said and seen["client_type"] != "lua"
            if is_receive or (command == "EXISTS" and "celery" in said):
                named.append(command)
    assert named == ["EVALSHA", "EXISTS"]
    here.ended(task_id, "succeeded")


@pytest.mark.parametrize("pool", first_quick(["solo", "prefork", "threads"]))
def test_a_task_costs_a_fleet_that_waits_one_asking(shop: Callable[..., Shop], pool: str) -> None:
    """The worker that has run it waits again with its acknowledgement, unless it becomes the deputy, which looks each second."""
    here, count = shop(), 40
    for _ in range(6):
        here.start(pool=pool, concurrency=1)
    until(lambda: here.server.client.zcard(Keys().idle("celery")) == 5, what="all to wait")
    asked, began = 0, time.monotonic()
    with here.server.client.monitor() as heard:
        for _ in range(count):
            here.ended(here.send("ok"), "succeeded")
        here.server.client.echo("over")
        while not (seen := heard.next_command())["command"].startswith("ECHO"):
            words = seen["command"].split()
            asked += seen["client_type"] != "lua" and Keys().watch("celery") in words and Keys().woken("") in seen["command"]
    assert count <= asked <= count * 1.6 + 1.5 * (time.monotonic() - began), asked


def test_what_comes_after_the_watcher_was_killed_is_taken_by_the_others(shop: Callable[..., Shop]) -> None:
    """The others look by themselves before its lease has ended."""
    here = shop(settings={"lease": 600})
    workers = [here.start(pool="solo", concurrency=1) for _ in range(3)]
    here.ended(here.send("ok"), "succeeded")
    keys, client = Keys(), here.server.client
    token = until(lambda: client.hget(keys.watch("celery"), "watcher"), what="a watcher")
    (watching,) = [each for each in workers if each.process.pid == json.loads(client.hget(keys.owners, token))["pid"]]
    watching.kill()
    for _ in range(3):
        here.ended(here.send("ok"), "succeeded", 30)
    assert client.hexists(keys.leases, token)


def test_what_is_known_of_a_queue_that_nobody_consumes_any_more_goes_by_itself(
    bench: Bench, owners: Callable[..., list[Owner]]
) -> None:
    """Its keys expire thirty days after the last look: an app that makes a queue for each tenant leaves none behind for ever."""
    _, second = owners(2)
    watch, idle = bench.keys.watch(QUEUE), bench.keys.idle(QUEUE)
    assert MONTH - 60_000 < bench.client.pttl(watch) <= MONTH
    second.ask(is_look=True)
    assert MONTH - 60_000 < bench.client.pttl(idle) <= MONTH
    for key in (watch, idle):
        bench.client.pexpire(key, 60_000)
    second.ask(is_look=True)
    assert min(bench.client.pttl(watch), bench.client.pttl(idle)) > MONTH - 60_000


def test_what_wakes_an_owner_renews_nothing(bench: Bench, owners: Callable[..., list[Owner]]) -> None:
    """Waking an owner needs no extra command for a task."""
    first, _ = owners(2)
    bench.client.pexpire(bench.keys.watch(QUEUE), 60_000)
    first.ask()
    assert bench.client.pttl(bench.keys.watch(QUEUE)) <= 60_000
