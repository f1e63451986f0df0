"""The result of a success is stored in the step that acknowledges the message, where backend and broker are one server."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Self

import pytest
from celery import chain, chord
from redis import Redis
from redis.exceptions import RedisError

from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.ports import Answer, TaskResult
from tests.support.desk import Desk
from tests.support.lanes import first_quick
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import Server

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's backend, in this process

DAY = 86_400
APP = "tests.support.apps.resulting"


def key_of(task_id: str) -> str:
    """Where Celery keeps a result."""
    return f"celery-task-meta-{task_id}"


class Monitor:
    """Which client changes results on a server, and how: the kind of the caller (`lua` is a script) and the command."""

    def __init__(self, server: Server) -> None:
        self._client = server.client
        self._seen: list[tuple[str, str]] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._is_open = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_open.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.publish("the end", "")
        self._thread.join(20)

    def _listen(self) -> None:
        with self._client.monitor() as monitor:
            self._is_open.set()
            for each in monitor.listen():
                if each["command"].startswith("PUBLISH the end"):
                    return
                self._seen.append((each["client_type"], each["command"]))

    def of(self, task_id: str) -> list[tuple[str, str]]:
        """Each caller and command for this task's result."""
        return [(kind, words.split()[0].upper()) for kind, words in self._seen if words.split()[1:2] == [key_of(task_id)]]


#: What a script does; and who stores a result where the child does.
BY_SCRIPT = [("lua", "GET"), ("lua", "SET"), ("lua", "PUBLISH")]
BY_CHILD = ("unix", "SETEX")


def stored_by(seen: Monitor, task_id: str) -> list[tuple[str, str]]:
    """Who has stored this task's result."""
    return [step for step in seen.of(task_id) if step[1].startswith("SET")]


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads", "solo", "gevent"]))
def test_a_result_is_stored_by_the_step_that_acknowledges_its_message(any_server: Server, folder: Path, pool: str) -> None:
    """No other client stores it; a waiting caller is notified; it expires like Celery's own results."""
    if pool == "gevent":
        pytest.importorskip("gevent")  # the oldest Celery's result has none
    here = Shop(any_server, folder, backend=True)
    here.start(pool=pool)
    with Monitor(any_server) as seen:
        results = [here.app.send_task("tests.support.shop.ok", (number,)) for number in range(5)]
        assert [each.get(timeout=60) for each in results] == list(range(5))
        for each in results:
            here.ended(each.id, "succeeded")
    for each in results:
        assert [step for step in seen.of(each.id) if step[0] == "lua"] == BY_SCRIPT
        assert BY_CHILD not in seen.of(each.id)
        assert DAY - 60 < any_server.client.ttl(key_of(each.id)) <= DAY
    assert here.leftovers() == {}
    here.stop()


def test_a_result_is_what_plain_celery_stores(server: Server, folder: Path) -> None:
    """Every field is equal, with and without extended results, except the time."""
    stored = {}
    for plain in (False, True):
        (folder / str(plain)).mkdir()
        here = Shop(server, folder / str(plain), backend=True, plain=plain, conf={"result_extended": True})
        here.start()
        found = here.app.send_task("tests.support.shop.ok", ({"a": ["ä", 1.5, None]},), task_id="same")
        assert found.get(timeout=60) == {"a": ["ä", 1.5, None]}
        stored[plain] = json.loads(server.client.get(key_of("same")))
        server.client.delete(key_of("same"))
        here.stop()
    assert stored[False].keys() == stored[True].keys()
    assert {name for name in stored[True] if stored[False][name] != stored[True][name]} <= {"date_done"}


@pytest.fixture
def asking(server: Server, folder: Path) -> Iterator[Shop]:
    """A worker with tasks whose results are asked for before the acknowledgement."""
    here = Shop(server, folder, backend=True, module=APP, settings={"queues": {"#": {"max_delivery_attempts": 1}}})
    here.start()
    yield here
    here.stop()


@pytest.mark.parametrize(("task", "where"), [("asks", "on_success"), ("asks_at_last", "after_return"), ("heard", "task_success")])
def test_who_asks_before_the_acknowledgement_finds_the_result(asking: Shop, task: str, where: str) -> None:
    """For tasks with such hooks or signal receivers, the child stores the result, as Celery does."""
    ran = asking.send(task)
    asking.ended(ran, "succeeded")
    assert [(run["where"], run["state"]) for run in asking.runs(ran)] == [(where, "SUCCESS")]


def test_what_is_large_or_the_tasks_own_is_stored_by_the_child(asking: Shop, server: Server) -> None:
    """64 KiB do not go through the pool's pipe; a script replaces what was stored at the start of the task."""
    with Monitor(server) as seen:
        sent = {
            name: asking.app.send_task(f"{APP}.{name}", args)
            for name, args in (("large", (65_536,)), ("apart", ()), ("tracked", ()))
        }
        got = {name: each.get(timeout=60) for name, each in sent.items()}
    assert (len(got.pop("large")), got) == (65_536, {"apart": 1, "tracked": 1})
    assert stored_by(seen, sent["large"].id) == [BY_CHILD]
    assert stored_by(seen, sent["apart"].id) == [BY_CHILD]
    assert [step for step in seen.of(sent["tracked"].id) if step[0] == "lua"] == BY_SCRIPT


def test_a_result_that_is_no_json_is_a_death(asking: Shop) -> None:
    """As without this feature: the task has run, and its result cannot be stored."""
    ran = asking.send("unserializable")
    assert asking.ended(ran, "dead_lettered").reason == "result_not_stored"
    assert asking.app.AsyncResult(ran).state == "FAILURE"


def test_chords_chains_and_links_know_the_results_that_they_follow(asking: Shop, server: Server) -> None:
    """The child stores results that a following task may ask for."""
    ok = asking.app.signature("tests.support.shop.ok", queue="celery")
    with Monitor(server) as seen:
        chained = chain(ok.clone((1,)), ok.clone())()
        joined = chord([ok.clone((number,)) for number in range(3)], ok.clone())()
        linked = asking.app.send_task("tests.support.shop.ok", (2,), link=ok.clone())
        assert (chained.get(timeout=60), joined.get(timeout=60), linked.get(timeout=60)) == (1, [0, 1, 2], 2)
        until(lambda: linked.children, what="what it has called")
        assert linked.children[0].get(timeout=60) == 2
        until(chained.parent.ready, what="the first of the chain, which calls the next task before it is stored")
    for first in (chained.parent, linked, *joined.parent):
        assert stored_by(seen, first.id) == [BY_CHILD], seen.of(first.id)
    assert ("lua", "SET") in seen.of(chained.id)


def test_with_the_setting_off_the_child_stores(shop: Callable[..., Shop], server: Server) -> None:
    """`fast_results = false`."""
    here = shop(backend=True, settings={"fast_results": False})
    here.start()
    with Monitor(server) as seen:
        ran = here.app.send_task("tests.support.shop.ok", (1,))
        assert ran.get(timeout=60) == 1
    assert stored_by(seen, ran.id) == [BY_CHILD]


def test_a_compressed_result_is_a_result(shop: Callable[..., Shop]) -> None:
    """`result_compression`, which Celery 5.6 does not know: the child stores it."""
    here = shop(conf={"result_compression": "gzip"}, backend=True)
    here.start()
    task_id = here.send("ok", "mine")
    here.ended(task_id, "succeeded")
    assert here.app.AsyncResult(task_id).get(timeout=60) == "mine"


def test_the_child_stores_where_somebody_listens_to_events(shop: Callable[..., Shop], server: Server) -> None:
    """The event `task-succeeded` must come after the result is stored."""
    here = shop(backend=True)
    here.start("-E")
    with Monitor(server) as seen:
        ran = here.app.send_task("tests.support.shop.ok", (1,))
        assert ran.get(timeout=60) == 1
    assert stored_by(seen, ran.id) == [BY_CHILD]


# where something goes wrong


def test_a_message_that_is_not_acknowledged_has_no_result(shop: Callable[..., Shop], server: Server) -> None:
    """The worker dies after its task has returned and before the acknowledgement: the task runs again, and its caller waits."""
    here = shop(backend=True, settings={"lease": 2})
    worker = here.start()
    ran = here.app.send_task("tests.support.shop.naps", (0.5,))
    until(lambda: len(here.runs(ran.id)) == 1, what="it to begin")
    server.client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    until(lambda: len(here.runs(ran.id)) == 2, what="it to end")
    until(lambda: "succeeded in" in worker.text, what="its child to say so")
    worker.kill()
    server.client.execute_command("CLIENT", "UNPAUSE")
    assert ran.state == "PENDING"
    here.start()
    ran.get(timeout=60)
    assert [run["event"] for run in here.runs(ran.id)] == ["start", "end"] * 2


def test_a_result_waits_for_a_broker_that_is_away(shop: Callable[..., Shop], server: Server) -> None:
    """The result waits in the outbox, with the acknowledgement."""
    server.keep_everything()
    here = shop(backend=True)
    here.start()
    ran = here.app.send_task("tests.support.shop.naps", (1.0,))
    until(lambda: here.runs(ran.id), what="it to begin")
    server.kill()
    until(lambda: len(here.runs(ran.id)) == 2, what="it to end")
    server.start()
    here.ended(ran.id, "succeeded")
    assert ran.state == "SUCCESS"
    assert len(here.runs(ran.id)) == 2


def test_a_full_server_stores_the_result(any_server: Server, folder: Path) -> None:
    """The step also frees memory: the acknowledged message is larger."""
    here = Shop(any_server, folder, backend=True)
    here.start()
    ran = here.app.send_task("tests.support.shop.naps", (1.0,))
    until(lambda: here.runs(ran.id), what="it to begin")
    any_server.client.config_set("maxmemory", 1)
    here.ended(ran.id, "succeeded")
    assert json.loads(any_server.client.get(key_of(ran.id)))["status"] == "SUCCESS"
    any_server.client.config_set("maxmemory", 0)
    here.stop()


def test_what_the_brokers_user_may_not_write_is_stored_by_the_child(server: Server, folder: Path) -> None:
    """The broker's user may not write results, but the backend's may: the worker tries, logs that, and the child stores them."""
    rights = ("+@all", "~celery", "~celery\x06*", "~_kombu*", "~*pidbox*", "~unacked*", "~redelivery:*", "~DLQ*", "&*")
    server.client.execute_command("ACL", "SETUSER", "app", "on", ">secret", *rights)
    here = Shop(server, folder, backend=True, broker=f"redis+socket://app:secret@{server.socket}")
    worker = here.start()
    with Monitor(server) as seen:
        ran = here.app.send_task("tests.support.shop.ok", (1,))
        assert ran.get(timeout=60) == 1
    here.ended(ran.id, "succeeded")
    assert stored_by(seen, ran.id) == [BY_CHILD]
    assert "results.apart" in worker.text
    here.stop()


def test_a_backend_in_another_database_of_the_server(shop: Callable[..., Shop], server: Server) -> None:
    """The script selects that database and then returns to its own."""
    here = shop(backend=f"{server.url}?virtual_host=3")
    here.start()
    with Monitor(server) as seen:
        ran = here.app.send_task("tests.support.shop.ok", (1,))
        assert ran.get(timeout=60) == 1
    assert [step for step in seen.of(ran.id) if step[0] == "lua"] == BY_SCRIPT
    here.ended(ran.id, "succeeded")
    other = Redis(unix_socket_path=server.socket, db=3)
    assert (other.exists(key_of(ran.id)), server.client.exists(key_of(ran.id))) == (1, 0)
    assert here.leftovers() == {}


# the script


def result(text: str = "{}", seconds: int | None = 60, database: int = 0) -> TaskResult:
    """A result, as a child makes it."""
    return TaskResult(key_of("t").encode(), text.encode(), seconds, database)


EVENT = Event(task_id="t", outcome=Outcome.SUCCEEDED)


def test_a_success_that_is_stored_stays(any_server: Server) -> None:
    """As in Celery, a stored success is not replaced; any other state is, even if it cannot be read."""
    desk = Desk(any_server)
    for before, after in (
        ('{"status": "SUCCESS"}', '{"status": "SUCCESS"}'),
        ('{"status": "FAILURE"}', "{}"),
        ("[" * 20_000, "{}"),
        ("3", "{}"),
    ):
        desk.client.set(key_of("t"), before)
        desk.publish()
        assert desk.transport.acknowledge(desk.hold(), EVENT, result()) is Answer.DONE
        assert desk.client.get(key_of("t")) == after.encode()
    desk.transport.close()


@pytest.mark.parametrize("seconds", [None, 0])
def test_a_result_without_an_end_stays(any_server: Server, seconds: int | None) -> None:
    """`result_expires` of 0 and None both mean that a result does not expire, as in Celery."""
    desk = Desk(any_server)
    desk.publish()
    assert desk.transport.acknowledge(desk.hold(), EVENT, result(seconds=seconds)) is Answer.DONE
    assert desk.client.ttl(key_of("t")) == -1
    desk.transport.close()


def test_a_message_that_was_given_to_another_worker_stores_nothing(any_server: Server) -> None:
    """The other worker stores the result; a repeated call does not store it twice."""
    desk = Desk(any_server)
    desk.publish()
    tag = desk.hold()
    assert desk.transport.acknowledge("gone:1", EVENT, result()) is Answer.REFUSED
    assert desk.client.exists(key_of("t")) == 0
    assert desk.transport.acknowledge(tag, EVENT, result()) is Answer.DONE
    desk.client.delete(key_of("t"))
    desk.transport.acknowledge(tag, EVENT, result())
    assert desk.client.exists(key_of("t")) == 0
    desk.transport.close()


@pytest.mark.parametrize("database", [0, 3])
def test_a_key_that_refuses_the_result_leaves_the_message_held(any_server: Server, database: int) -> None:
    """If the key holds a list, for instance, the error is reported and nothing is recorded."""
    desk = Desk(any_server)
    desk.publish()
    tag = desk.hold()
    other = Redis(unix_socket_path=any_server.socket, db=database)
    other.rpush(key_of("t"), "x")
    with pytest.raises(RedisError, match="WRONGTYPE"):
        desk.transport.acknowledge(tag, EVENT, result(database=database))
    assert [desk.client.hexists(desk.keys.unacked, tag), len(desk.events)] == [True, 0]
    other.delete(key_of("t"))
    assert desk.transport.acknowledge(tag, EVENT, result(database=database)) is Answer.DONE
    assert other.get(key_of("t")) == b"{}"
    desk.transport.close()
