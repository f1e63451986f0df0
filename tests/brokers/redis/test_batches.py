"""Batches on Redis: one script publishes a group, wholly or not at all, and only once even if it is asked for again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, group
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from redelivery import Redelivery, errors
from redelivery.middleware.brokers import batches
from redelivery.middleware.brokers.redis.publishing.batch import Stamps
from redelivery.middleware.brokers.redis.scripts import source
from redelivery.middleware.messages.ttl import PUBLISHED
from tests.faults.chaos.processes.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.messages.events import Event
    from tests.support.servers import Server

NAME = "shop.pack"
RETRY = {"max_retries": 3, "interval_start": 0, "interval_step": 0.05, "interval_max": 0.1}
LAST_ID = "18446744073709551615-18446744073709551614"


def pack(*_: Any) -> None:
    """The task."""


class Producer:
    """An app that publishes to a private server."""

    def __init__(self, server: Server, settings: dict[str, Any] | None = None, *, url: str = "", **conf: Any) -> None:
        self.server, self.client = server, server.client
        self.app = Celery("producer", broker=url or server.url, set_as_current=False)
        self.app.conf.update(conf)
        self.install = Redelivery(self.app, settings or {})
        self.pack = self.app.task(name=NAME)(pack)

    def group(self, count: int, *, size: int = 0, **options: Any) -> list[str]:
        """Publish a group of so many; their ids."""
        argument = ["x" * size] if size else []
        made = group([self.pack.s(number, *argument) for number in range(count)], app=self.app).apply_async(**options)
        return [str(each.id) for each in made.results]

    def raw(self, name: str = "celery") -> list[dict[str, Any]]:
        """What lies in a list, the oldest first."""
        return [json.loads(each) for each in reversed(self.client.lrange(name, 0, -1))]

    def ids(self, name: str = "celery") -> list[str]:
        """The ids of what lies in a list, the oldest first."""
        return [each["headers"]["id"] for each in self.raw(name)]

    def recorded(self, outcome: str = "published") -> list[str]:
        """The tasks that have this outcome, in the order of the log."""
        return [event.task_id for event in self.server.events() if event.outcome == outcome]

    def asked(self) -> dict[str, int]:
        """How often each publication script and each other command of a producer was called."""
        stats = self.client.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(each["calls"]) for name, each in stats.items()}


@pytest.fixture
def producer(any_server: Server) -> Iterator[Producer]:
    """A producer on each kind of server."""
    made = Producer(any_server)
    yield made
    made.app.close()


def scripts_of(producer: Producer, publish: Any) -> int:
    """How many scripts run while this function publishes."""
    producer.group(2)  # declares the queue, and loads the scripts
    producer.app.send_task(NAME)
    before = producer.asked().get("evalsha", 0)
    publish()
    return producer.asked()["evalsha"] - before


def bare(event: Event) -> Event:
    """An event without its own id and times."""
    return replace(event, event_id="", at_ms=0, task_id="", root_id="")


def test_a_group_goes_in_few_scripts_in_its_order_with_its_ids(producer: Producer) -> None:
    """Each message is recorded once; 1,234 messages are thirteen scripts."""
    ids: list[str] = []
    assert scripts_of(producer, lambda: ids.extend(producer.group(1234))) == 13
    assert producer.ids()[-1234:] == ids
    assert producer.recorded()[-1234:] == ids


def test_chunks_and_a_chords_header_go_together_and_a_map_is_one_message(producer: Producer) -> None:
    """Each goes in one script; the body of a chord is published later, when the results are there."""
    app = producer.app
    app.conf.result_backend = producer.server.url
    made = producer.pack.chunks([(number,) for number in range(100)], 4)
    assert scripts_of(producer, made.apply_async) == 1
    assert len(producer.ids()) == 3 + 25
    header = group([producer.pack.si(number) for number in range(30)], app=app)
    assert scripts_of(producer, (header | producer.pack.s()).apply_async) == 1
    assert len(producer.ids()) == 3 + 25 + 3 + 30
    assert scripts_of(producer, lambda: producer.pack.map([1, 2, 3]).apply_async()) == 1


def test_what_is_published_in_a_batch_is_what_is_published_one_by_one(producer: Producer) -> None:
    """Messages and events are the same, except for ids and times."""
    options: dict[str, Any] = {"priority": 3, "headers": {"tenant": "t"}, "expires": 600, "countdown": 60}
    (first, second) = producer.group(2, **options)
    single = str(producer.pack.apply_async((1,), group_id="g", **options).id)
    by_id = {each["headers"]["id"]: each for each in producer.raw("celery\x06\x163")}
    assert list(by_id) == [first, second, single]
    messages = [by_id[each] for each in (second, single)]
    own = {"id", "root_id", "group", "eta", "expires", "origin", "argsrepr", "group_index", PUBLISHED}
    for each in messages:
        each["headers"] = {name: value for name, value in each["headers"].items() if name not in own}
        for name in ("correlation_id", "delivery_tag", "reply_to"):
            each["properties"].pop(name)
    assert {**messages[0], "body": 0} == {**messages[1], "body": 0}
    batched, alone = [[event for event in producer.server.events() if event.task_id == each] for each in (second, single)]
    assert [bare(event) for event in batched] == [bare(event) for event in alone]
    assert len(batched) == 1


def test_times_that_count_from_now_count_by_the_servers_clock_from_the_publication(producer: Producer) -> None:
    """This holds in a batch as it does without one."""
    producer.group(3, countdown=60, expires=600)
    at = {event.task_id: event.at_ms for event in producer.server.events()}
    for each in producer.raw():
        assert abs(each["headers"][PUBLISHED] - at[each["headers"]["id"]]) <= 1000
        assert each["headers"]["eta"].endswith("+00:00")


def test_priorities_and_queues_go_together_each_to_its_list(producer: Producer) -> None:
    """In one script, each list in its order."""
    tasks = [producer.pack.s(number).set(priority=number % 10, queue=f"q{number % 2}") for number in range(40)]
    for name in ("q0", "q1"):
        producer.app.send_task(NAME, queue=name)
    made: list[str] = []
    assert scripts_of(producer, lambda: made.extend(each.id for each in group(tasks, app=producer.app).apply_async())) == 1
    for queue in (0, 1):
        for step, suffix in ((0, ""), (3, "\x06\x163"), (6, "\x06\x166"), (9, "\x06\x169")):
            wanted = [made[at] for at in range(40) if at % 2 == queue and step <= at % 10 < (step + 3 if step < 9 else 11)]
            assert [each for each in producer.ids(f"q{queue}{suffix}") if each in made] == wanted


def test_a_message_that_goes_to_several_queues_is_recorded_for_each(any_server: Server) -> None:
    """As without a batch: an exchange may have several queues."""
    twins = Exchange("twins", "direct")
    queues = [Queue(name, twins, routing_key="twins") for name in ("left", "right")]
    producer = Producer(any_server, task_queues=[*queues, Queue("celery")])
    for queue in queues:
        with producer.app.connection_for_write() as connection:
            queue(connection.default_channel).declare()
    ids = producer.group(3, exchange="twins", routing_key="twins")
    assert producer.ids("left") == producer.ids("right") == ids
    assert sorted(producer.recorded()) == sorted(ids * 2)
    producer.app.close()


def test_large_messages_go_in_parts_of_a_mebibyte(producer: Producer) -> None:
    """So neither the producer nor the script holds more than that; a larger message goes alone."""
    assert scripts_of(producer, lambda: producer.group(20, size=100_000)) == 2
    assert scripts_of(producer, lambda: producer.group(3, size=batches.MAX_BYTES)) == 3


# all or none


def test_nothing_is_published_where_one_list_or_the_log_is_of_another_type(producer: Producer) -> None:
    """The caller gets Celery's error, whichever key has the wrong type."""
    producer.client.set("q3", "no list")
    tasks = [producer.pack.s(number).set(queue=f"q{number}") for number in range(5)]
    with pytest.raises(OperationalError, match="WRONGTYPE"):
        group(tasks, app=producer.app).apply_async(retry=False)
    assert producer.recorded() == producer.ids("q0") == producer.ids("q4") == []
    producer.client.delete("q3")
    producer.client.set("redelivery:outcomes", "no stream")
    with pytest.raises(OperationalError, match="WRONGTYPE"):
        producer.group(5, retry=False)
    assert producer.ids() == []


def test_what_fails_in_the_middle_takes_back_what_was_done(producer: Producer) -> None:
    """The log has room for one more id: the first message was pushed and recorded, and the second only pushed."""
    producer.app.send_task(NAME)
    producer.client.delete("redelivery:outcomes")
    producer.client.xadd("redelivery:outcomes", {"t": "x"}, id=LAST_ID)
    before = producer.ids()
    with pytest.raises(OperationalError, match="exhausted"):
        producer.group(5, retry=False)
    assert producer.ids() == before
    assert producer.client.xlen("redelivery:outcomes") == 1


def test_a_full_server_takes_nothing_of_a_batch_and_says_so(producer: Producer) -> None:
    """As for a single message; a log line names the tasks that were not published."""
    producer.group(2)
    producer.client.config_set("maxmemory", 1)
    with capture_logs() as lines, pytest.raises((OperationalError, ResponseError), match="maxmemory") as raised:
        producer.group(30, retry=False)
    producer.client.config_set("maxmemory", 0)
    assert len(producer.ids()) == len(producer.recorded()) == 2
    (line,) = [each for each in lines if each["event"] == "publish.failed"]
    assert (line["messages"], line["not_published"], len(line["task_ids"])) == (30, 30, batches.MAX_NAMED)
    assert "30 of 30 messages that went together are not known to be published" in raised.value.__notes__[0]


# once


@pytest.fixture
def proxy(any_server: Server) -> Iterator[Proxy]:
    """The proxy between a producer and its broker."""
    made = Proxy(any_server.socket).start()
    yield made
    made.stop()


@pytest.fixture
def behind(any_server: Server, proxy: Proxy) -> Iterator[Producer]:
    """A producer behind the proxy, which has published two messages."""
    made = Producer(any_server, url=proxy.url)
    made.group(2)
    yield made
    made.app.close()


def test_a_batch_whose_answer_is_lost_is_published_once(behind: Producer, proxy: Proxy) -> None:
    """The producer asks again, and the server recognises the repeat."""
    proxy.swallow_reply(b"redelivery:published:")
    ids = behind.group(20, retry_policy=RETRY)
    assert proxy.swallowed == 1
    assert behind.ids()[2:] == ids == behind.recorded()[2:]


def test_a_batch_that_did_not_arrive_is_published_when_it_is_tried_again(behind: Producer, proxy: Proxy) -> None:
    """Celery's retry policy for publications applies."""
    proxy.withhold_request(b"redelivery:published:")
    ids = behind.group(20, retry_policy=RETRY)
    assert proxy.withheld == 1
    assert behind.ids()[2:] == ids == behind.recorded()[2:]


def test_a_group_goes_on_until_its_next_batch_is_complete(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then does it wait for the answer: a server that carries nothing out does not stop it before."""
    monkeypatch.setattr(batches, "MAX_WAIT", 60.0)  # on a slow machine a batch would be sent before it is complete
    producer.group(2)
    waiting: list[int] = []

    def numbers() -> Iterator[Any]:
        for number in range(250):
            if number == 99:
                producer.client.execute_command("CLIENT", "PAUSE", "10000", "WRITE")
            elif number == 150:
                waiting.append(producer.client.llen("celery"))
                producer.client.execute_command("CLIENT", "UNPAUSE")
            yield producer.pack.s(number)

    made = group(numbers(), app=producer.app).apply_async()
    assert waiting == [2]
    assert producer.ids()[2:] == [each.id for each in made.results] == producer.recorded()[2:]


def test_an_answer_that_is_lost_while_the_group_goes_on_is_asked_for_again(behind: Producer, proxy: Proxy) -> None:
    """The server recognises the repeat, also if it has lost the script meanwhile."""

    def numbers() -> Iterator[Any]:
        for number in range(350):
            if number == 50:
                proxy.swallow_reply(b"redelivery:published:")
            elif number == 250:
                behind.client.script_flush()
            yield behind.pack.s(number)

    made = group(numbers(), app=behind.app).apply_async(retry_policy=RETRY)
    assert proxy.swallowed == 1
    assert behind.ids()[2:] == [each.id for each in made.results] == behind.recorded()[2:]


def test_a_broker_that_goes_away_leaves_whole_batches(producer: Producer) -> None:
    """Earlier batches stay and later ones are not published: the caller gets Celery's own error."""
    (first, *_), server = producer.group(3), producer.server

    def numbers() -> Iterator[Any]:
        for number in range(1200):
            if number == 700:
                server.kill()
            yield producer.pack.s(number)

    with capture_logs() as lines, pytest.raises(OperationalError):
        group(numbers(), app=producer.app).apply_async(retry_policy=RETRY)
    (line,) = [each for each in lines if each["event"] == "publish.failed"]
    assert (line["messages"], line["not_published"]) in {(100, 100), (200, 200)}  # the batch before may still be on its way
    assert first not in line["task_ids"]
    server.start()


def test_the_key_of_a_producer_is_one_however_many_batches_it_has_published(producer: Producer) -> None:
    """The key expires by itself; a forked child does not reuse its parent's tokens."""
    producer.group(3)
    (key,) = producer.client.keys("redelivery:published:*")
    first = int(producer.client.get(key))
    for _ in range(4):
        producer.group(3)
    assert producer.client.keys("redelivery:published:*") == [key]
    assert int(producer.client.get(key)) == first + 4
    assert 0 < producer.client.pttl(key) <= 600_000
    stamps = Stamps()
    taken = stamps.take()
    stamps.give_back(taken)
    assert stamps.take() == (taken[0], 2)
    assert stamps.take()[1] == 1
    stamps.give_back(taken)
    stamps._pid = -1
    assert stamps.take()[0] != taken[0]


def test_the_same_number_again_changes_nothing_and_the_next_one_does(any_server: Server) -> None:
    """The script itself, called by hand."""
    client = any_server.client
    form = ["published", *[""] * 19]

    def ask(number: int) -> Any:
        return client.eval(source("publish_batch"), 3, "log", "stamp", "list", number, 1000, 1, 0, *form, 3, 1, "id", "", "message")

    assert [ask(1), ask(1), ask(2), ask(2)] == [b"done", b"already", b"done", b"already"]
    assert client.llen("list") == client.xlen("log") == 2
    assert ask(1) == b"already"  # it was sent again meanwhile, and this call arrives late
    assert client.llen("list") == client.xlen("log") == 2


# bounds


def bounded(server: Server, **fields: Any) -> Producer:
    """A producer whose queue holds ten messages."""
    return Producer(server, {"queues": {"celery": {"max_length": 10, **fields}}})


def test_a_queue_with_a_bound_takes_a_batch_that_it_has_room_for(any_server: Server) -> None:
    """It goes in one script; with one message more, the messages go one by one, and the oldest in the queue die."""
    producer = bounded(any_server)
    ids = producer.group(10)
    assert producer.ids() == ids == producer.recorded()
    assert producer.client.exists("DLQ.celery") == 0
    more = producer.group(4)
    assert producer.ids() == [*ids, *more][-10:]
    assert producer.ids("DLQ.celery") == ids[:4] == producer.recorded("dead_lettered")
    assert producer.recorded() == [*ids, *more]
    producer.app.close()


def test_a_queue_that_refuses_takes_what_it_has_room_for_and_the_rest_is_named(any_server: Server) -> None:
    """As with Celery's group: messages before the refused one are published, and those after it are not."""
    producer = bounded(any_server, overflow="refuse_publish")
    with capture_logs() as lines, pytest.raises(errors.QueueFull):
        producer.group(14)
    assert len(producer.ids()) == len(producer.recorded()) == 10
    (line,) = [each for each in lines if each["event"] == "publish.failed"]
    assert (line["messages"], line["not_published"]) == (14, 4)
    assert not set(line["task_ids"]) & set(producer.ids())
    producer.app.close()


def test_a_broadcast_goes_once_where_its_batch_goes_one_by_one(any_server: Server) -> None:
    """The queue beside it has no room for all."""
    producer = bounded(any_server)
    everybody = Broadcast("everybody")
    producer.app.conf.task_queues = [everybody, Queue("celery")]
    with producer.client.pubsub() as ear:
        ear.psubscribe("*")
        assert ear.get_message(timeout=30)
        producer.group(10)
        tasks = [producer.pack.s(1).set(queue="everybody", declare=[everybody]), *(producer.pack.s(each) for each in range(3))]
        sent = [str(each.id) for each in group(tasks, app=producer.app).apply_async().results]
        producer.client.publish("end", "")
        heard = []
        while (message := ear.get_message(timeout=30))["channel"] != b"end":
            heard.append(json.loads(message["data"]))
    assert [each["headers"]["id"] for each in heard if "task" in each["headers"]] == sent[:1]
    assert producer.ids()[-3:] == sent[1:]
    producer.app.close()


def test_batches_can_be_switched_off(any_server: Server) -> None:
    """`fast_publish = false`: one script for each message, and a block that collects nothing."""
    producer = Producer(any_server, {"fast_publish": False})
    ids: list[str] = []
    assert scripts_of(producer, lambda: ids.extend(producer.group(20))) == 20
    with producer.install.publishing():
        one = producer.pack.delay().id
        assert producer.ids()[-1] == one
    producer.app.close()
