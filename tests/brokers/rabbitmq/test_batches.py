"""Batches on RabbitMQ: what a group publishes goes out together, and its confirmations are awaited together."""

from __future__ import annotations

import os
import select
import signal
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from amqp.exceptions import ChannelError, NotFound
from celery import Celery, group
from kombu.exceptions import OperationalError
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.errors import InputError
from redelivery.middleware.brokers import batches
from redelivery.middleware.brokers.rabbitmq.batch import Together
from redelivery.middleware.brokers.rabbitmq.channel import RabbitTransport
from redelivery.middleware.brokers.rabbitmq.names import OUTCOMES
from redelivery.middleware.messages.envelope import ANNOUNCED, EXPIRATION
from redelivery.middleware.messages.publication import Batch, Publication
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit

NAME = "shop.pack"
RETRY = {"max_retries": 5, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2}
QUEUE = "celery"


def pack(*_: Any) -> None:
    """The task."""


class Producer:
    """An app that publishes to a virtual host."""

    def __init__(self, rabbit: Rabbit, *, url: str = "") -> None:
        self.rabbit = rabbit
        self.app = Celery("producer", broker=url or rabbit.url, set_as_current=False)
        self.install = Redelivery(self.app)
        self.pack = self.app.task(name=NAME)(pack)

    def group(self, count: int, **options: Any) -> list[str]:
        """Publish a group of so many; their ids."""
        made = group([self.pack.s(number) for number in range(count)], app=self.app).apply_async(**options)
        return [str(each.id) for each in made.results]

    def limit_log(self) -> None:
        """Make the outcome log, so that it takes one message and refuses the others."""
        with self.rabbit.connection() as connection:
            arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
            connection.default_channel.queue_declare(OUTCOMES, durable=True, auto_delete=False, arguments=arguments)

    def taken(self, queue: str = QUEUE) -> list[dict[str, Any]]:
        """The headers of all messages of a queue, the oldest first; the messages are removed."""
        found = []
        with self.rabbit.connection() as connection:
            channel = connection.default_channel
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                found.append(message.headers)
        return found

    def published(self) -> list[str]:
        """What is recorded."""
        return [event.task_id for event in self.rabbit.events() if event.outcome == "published"]


@pytest.fixture
def producer(rabbit: Rabbit) -> Iterator[Producer]:
    """A producer on a virtual host of its own."""
    made = Producer(rabbit)
    yield made
    made.app.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_task_id_that_amqp_cannot_hold_is_refused_and_not_recorded(producer: Producer, count: int) -> None:
    """255 bytes is the most. py-amqp's own error would name neither the id nor the limit."""
    long = producer.pack.s().set(task_id="\u00e9" * 128)
    sent = long if count == 1 else group([long, *(producer.pack.s() for _ in range(count - 1))], app=producer.app)
    with pytest.raises(InputError, match="has 256 bytes: RabbitMQ takes 255 at most"):
        sent.apply_async()
    assert (producer.rabbit.depth(QUEUE) or 0, producer.published()) == (0, [])
    producer.group(2)
    numbers = [int(event.event_id.rpartition(".")[2]) for event in producer.rabbit.events()]
    assert numbers == [1, 2], "a gap would look like lost events"
    producer.taken()
    producer.pack.apply_async(task_id="i" * 255)
    assert producer.published()[2:] == ["i" * 255]


def test_a_group_is_on_the_broker_when_it_has_returned(producer: Producer) -> None:
    """All of it is there, in order, each task recorded once, although the app has not switched confirms on."""
    ids = producer.group(1100)
    assert producer.rabbit.depth(QUEUE) == 1100
    headers = producer.taken()
    assert [each["id"] for each in headers] == ids
    assert {each[ANNOUNCED] for each in headers} == {1}
    assert sorted(producer.published()) == sorted(ids)


def test_a_block_publishes_at_its_end_and_mixes_with_what_goes_at_once(producer: Producer) -> None:
    """Large messages, expiry and priorities among it."""
    with producer.install.publishing() as block:
        ids = [producer.pack.apply_async(("x" * 300_000,), expires=600).id for _ in range(3)]
        assert not producer.rabbit.depth(QUEUE)
        block.flush()
        assert producer.rabbit.depth(QUEUE) == 3
        ids += [producer.pack.apply_async((), priority=5).id for _ in range(2)]
    ids.append(producer.pack.delay().id)
    headers = producer.taken()
    assert [each["id"] for each in headers] == ids
    assert [EXPIRATION in each for each in headers] == [True] * 3 + [False] * 3
    assert sorted(producer.published()) == sorted(ids)


def test_a_message_for_an_exchange_of_the_apps_opens_its_life_in_the_worker(producer: Producer) -> None:
    """As without a batch: the producer does not know which queues it reaches."""
    with producer.rabbit.connection() as connection:
        channel = connection.default_channel
        channel.exchange_declare("twins", "fanout", durable=True, auto_delete=False)
        for name in ("left", "right"):
            channel.queue_declare(name, durable=True, auto_delete=False)
            channel.queue_bind(name, "twins", "")
    ids = producer.group(3, exchange="twins", routing_key="all")
    assert [each["id"] for each in producer.taken("left")] == [each["id"] for each in producer.taken("right")] == ids
    assert producer.published() == []


def test_what_the_broker_refuses_is_named_and_the_rest_is_published(producer: Producer) -> None:
    """The queue is full and rejects: it takes as many as it has room for."""
    with producer.rabbit.connection() as connection:
        arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
        connection.default_channel.queue_declare("brief", durable=True, auto_delete=False, arguments=arguments)
    with capture_logs() as lines, producer.install.publishing() as block:
        ids = [producer.app.send_task(NAME, queue="brief", declare=[], retry=False).id for _ in range(9)]
        other = producer.pack.apply_async((), retry=False).id
        with pytest.raises(OperationalError, match="refused 4 of 10"):
            block.flush()
        assert block.not_published == tuple(ids[5:])
    assert [each["id"] for each in producer.taken("brief")] == ids[:5]
    assert [each["id"] for each in producer.taken()] == [other]
    (line,) = [each for each in lines if each["event"] == "publish.failed"]
    assert (line["messages"], line["not_published"], line["task_ids"]) == (10, 4, ids[5:])


def test_what_cannot_be_written_in_amqp_is_named_and_the_rest_is_published(producer: Producer) -> None:
    """Nothing of it goes out; the events of the others have no gap."""
    with producer.install.publishing() as block:
        ids = [producer.pack.apply_async((), retry=False, priority=priority).id for priority in (1, 300, 2)]
        with pytest.raises(struct.error):
            block.flush()
        assert block.not_published == (ids[1],)
        later = producer.pack.apply_async((), retry=False).id
    assert [each["id"] for each in producer.taken()] == [ids[0], ids[2], later] == producer.published()


def test_a_mandatory_message_that_reaches_no_queue_fails_its_own_call(producer: Producer) -> None:
    """The others are published once, and none of them is named."""
    with producer.install.publishing() as block:
        first = producer.pack.apply_async((), retry=False).id
        with pytest.raises(ChannelError, match="NO_ROUTE"):
            producer.pack.apply_async((), task_id="lost", mandatory=True, exchange="amq.direct", routing_key="x", declare=[])
        second = producer.pack.apply_async((), retry=False).id
    assert block.not_published == ("lost",)
    assert [each["id"] for each in producer.taken()] == [first, second]


def test_tasks_that_the_outcome_log_refuses_to_record_are_published_as_one_by_one(producer: Producer) -> None:
    """The caller gets no error, because it would publish them again; a log line says that they are not recorded."""
    producer.limit_log()
    ids = [*producer.group(1), producer.pack.apply_async((), retry=False).id]
    with capture_logs() as lines, producer.install.publishing() as block:
        ids += [producer.pack.apply_async((), retry=False).id for _ in range(3)]
        block.flush()
        assert not block.not_published
    until(lambda: producer.rabbit.depth(QUEUE) == 5, what="the one that was published alone, which nobody confirms")
    assert {each["id"] for each in producer.taken()} == set(ids)
    assert producer.rabbit.depth(OUTCOMES) == 1
    assert [(each["event"], each["count"]) for each in lines] == [("publish.not_recorded", 3)]


def test_a_confirmed_task_that_the_outcome_log_refuses_to_record_is_published(producer: Producer) -> None:
    """With `confirm_publish` as in a batch."""
    producer.limit_log()
    producer.app.conf.broker_transport_options = {"confirm_publish": True}
    with capture_logs() as lines:
        ids = [producer.pack.apply_async((), retry=False).id for _ in range(3)]
    assert [each["id"] for each in producer.taken()] == ids
    assert [(each["event"], each["count"]) for each in lines] == [("publish.not_recorded", 1)] * 2
    assert producer.rabbit.depth(OUTCOMES) == 1


def test_an_exchange_that_is_missing_is_said_and_the_next_batch_has_a_channel(producer: Producer) -> None:
    """The broker closes only the channel of this batch; the caller gets the error."""
    with pytest.raises(NotFound):
        producer.group(2, exchange="nowhere", routing_key="x", declare=[], retry=False)
    ids = producer.group(3)
    assert [each["id"] for each in producer.taken()] == ids


@pytest.fixture
def proxy(rabbit: Rabbit) -> Iterator[Proxy]:
    """The proxy between a producer and its broker."""
    made = Proxy(rabbit.node.port).start()
    yield made
    made.stop()


@pytest.fixture
def behind(rabbit: Rabbit, proxy: Proxy) -> Iterator[Producer]:
    """A producer behind the proxy, which has published before."""
    made = Producer(rabbit, url=rabbit.url.replace(f":{rabbit.node.port}/", f":{proxy.port}/"))
    made.group(2)
    made.taken()
    yield made
    made.app.close()


def all_are_there(producer: Producer, ids: list[str]) -> None:
    """Each task is there, once or twice, and is recorded once."""
    there = [each["id"] for each in producer.taken()]
    assert set(there) == set(ids)
    assert max(map(there.count, ids)) <= 2
    recorded = [each for each in producer.published() if each in set(ids)]
    assert sorted(recorded) == sorted(ids)


def test_a_connection_that_is_cut_while_a_batch_is_confirmed_loses_nothing(behind: Producer, proxy: Proxy) -> None:
    """Celery's retry policy publishes the batch again."""
    proxy.swallow_reply(b"shop.pack")
    ids = behind.group(40, retry_policy=RETRY)
    assert proxy.swallowed == 1
    all_are_there(behind, ids)


def test_a_group_on_rabbitmq_goes_on_until_its_next_batch_is_complete(
    behind: Producer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then does it wait for the confirmations: a broker that answers nothing does not stop it before."""
    monkeypatch.setattr(batches, "MAX_WAIT", 60.0)  # on a slow machine a batch would be sent before it is complete
    monkeypatch.setattr(RabbitTransport, "publishes_together", 50)
    depths: list[int | None] = []

    def numbers() -> Iterator[Any]:
        for number in range(120):
            if number == 49:
                proxy.black_hole()
            elif number == 75:
                depths.append(behind.rabbit.depth(QUEUE))
                proxy.let_through()
            yield behind.pack.s(number)

    made = group(numbers(), app=behind.app).apply_async()
    assert depths == [0]
    assert [each["id"] for each in behind.taken()] == [each.id for each in made.results]


def test_a_connection_that_is_cut_while_the_group_goes_on_loses_nothing(
    behind: Producer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unanswered batch is published again before the next."""
    monkeypatch.setattr(RabbitTransport, "publishes_together", 50)

    def numbers() -> Iterator[Any]:
        for number in range(120):
            if number == 10:
                proxy.swallow_reply(b"shop.pack")
            elif number == 75:
                until(lambda: proxy.swallowed, what="the cut")
            yield behind.pack.s(number)

    made = group(numbers(), app=behind.app).apply_async(retry_policy=RETRY)
    all_are_there(behind, [each.id for each in made.results])


def test_a_group_inside_of_a_groups_generator_hides_no_refusal(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have the producer that their caller gave, and so one channel: each batch gets its own confirmations."""
    monkeypatch.setattr(RabbitTransport, "publishes_together", 2)
    with producer.rabbit.connection() as connection:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        connection.default_channel.queue_declare("brief", durable=True, auto_delete=False, arguments=arguments)
        connection.default_channel.basic_publish(amqp.Message("full"), routing_key="brief")
    until(lambda: producer.rabbit.depth("brief") == 1, what="the full queue")
    inner: list[str] = []

    def numbers(given: Any) -> Iterator[Any]:
        for number in range(3):
            if number == 2:
                made = group([producer.pack.s(), producer.pack.s()], app=producer.app).apply_async(producer=given)
                inner.extend(each.id for each in made.results)
            yield producer.pack.s(number)

    with producer.app.producer_pool.acquire() as given, pytest.raises(OperationalError, match="refused 2 of 2"):
        group(numbers(given), app=producer.app).apply_async(producer=given, queue="brief", declare=[], retry=False)
    assert [each["id"] for each in producer.taken()] == inner


def await_answer(connection: Any) -> None:
    """Wait until the broker's answer to the last batch lies unread, or was read already."""
    together = connection.together

    def is_there() -> bool:
        unread, _, _ = select.select([connection.transport.sock], [], [], 0)
        return bool(unread or together._channel.closed_by or together._returned)

    until(is_there, what="the answer")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"exchange": "nowhere", "routing_key": "x"}, NotFound),
        ({"exchange": "amq.direct", "routing_key": "x", "mandatory": True}, ChannelError),
    ],
)
def test_an_error_that_comes_while_something_else_is_sent_is_not_swallowed(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: type[Exception]
) -> None:
    """py-amqp reads answers before each publication, and another caller may ignore what comes there."""
    monkeypatch.setattr(RabbitTransport, "publishes_together", 2)
    producer.app.conf.task_send_sent_event = True

    def numbers(given: Any) -> Iterator[Any]:
        for number in range(6):
            if number == 2 - ("mandatory" in options):  # the first batch was sent: a mandatory message goes alone
                await_answer(given.connection.connection)
                with suppress(ChannelError):
                    given.publish({}, exchange="", routing_key="another")
            yield producer.pack.s(number)

    began = time.monotonic()
    with producer.app.producer_pool.acquire() as given, pytest.raises(error):
        group(numbers(given), app=producer.app).apply_async(producer=given, declare=[], retry=False, **options)
    assert time.monotonic() - began < 20, "nothing waited for a confirmation that cannot come"


def test_the_error_of_a_closed_channel_is_raised_again_for_its_batch(producer: Producer) -> None:
    """Another caller on this connection read it. The confirmation cannot come any more, and is not waited for."""
    how = {"exchange": "nowhere", "routing_key": "x", "timeout": None, "confirm_timeout": 20.0}
    batch = Batch([Publication(b"[]", 0, "application/json", "utf-8", {"id": "a", "task": NAME}, {}, how)])
    with producer.app.producer_pool.acquire() as given:
        given.channel.send_together(batch)
        with pytest.raises(NotFound):
            given.connection.connection.drain_events(timeout=60)
        with pytest.raises(NotFound):
            given.channel.publish_together(batch)


def test_a_broker_that_is_gone_is_celerys_error(rabbit: Rabbit) -> None:
    """The error names each task that was not confirmed."""
    proxy = Proxy(rabbit.node.port).start()
    producer = Producer(rabbit, url=rabbit.url.replace(f":{rabbit.node.port}/", f":{proxy.port}/"))
    producer.group(2)
    with capture_logs() as lines, producer.install.publishing() as block:
        ids = [producer.pack.apply_async((), retry_policy=RETRY).id for _ in range(30)]
        proxy.stop()
        with pytest.raises(OperationalError):
            block.flush()
    assert block.not_published == tuple(ids)
    (line,) = [each for each in lines if each["event"] == "publish.failed"]
    assert (line["not_published"], len(line["task_ids"])) == (30, batches.MAX_NAMED)
    assert producer.rabbit.depth(QUEUE) == 2


class Interrupted(Exception):
    """What a signal's handler raises, as Celery's soft time limit does."""


def interrupts(_: int, frame: Any) -> None:
    """Raise, but only while a batch is being written."""
    while frame is not None:
        if frame.f_code is Together._send.__code__:
            raise Interrupted
        frame = frame.f_back


def ring(is_over: threading.Event) -> None:
    """Send this process a signal ten times a second; not SIGALRM, which pytest's timeout uses."""
    while not is_over.wait(0.1):
        os.kill(os.getpid(), signal.SIGUSR1)


def test_nothing_is_written_behind_a_batch_that_was_half_written(behind: Producer, proxy: Proxy) -> None:
    """The broker would take later bytes for the rest of the batch, and they would be lost: the next batch uses a new connection."""
    proxy.black_hole()
    previous, is_over = signal.signal(signal.SIGUSR1, interrupts), threading.Event()
    ringing = threading.Thread(target=ring, args=(is_over,))
    ringing.start()
    try:
        with pytest.raises(Interrupted), behind.install.publishing():
            behind.pack.apply_async(("x" * 40_000_000,), retry=False)
    finally:
        is_over.set()
        ringing.join()
        signal.signal(signal.SIGUSR1, previous)
    proxy.let_through()
    later = behind.pack.apply_async((), retry=False).id
    until(lambda: behind.rabbit.depth(QUEUE), what="the message behind it")
    assert [each["id"] for each in behind.taken()] == [later]


@pytest.mark.full
def test_a_blocked_broker_confirms_nothing_and_the_caller_hears_so(private_rabbit: Rabbit) -> None:
    """The caller gets an error after `confirm_timeout`; the batch is not sent again."""
    producer = Producer(private_rabbit)
    producer.group(2)
    private_rabbit.node.evaluate("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")
    began = time.monotonic()
    with pytest.raises(OperationalError, match="blocked by an alarm"):
        producer.group(20, confirm_timeout=2.0)
    assert 2 <= time.monotonic() - began < 60
    private_rabbit.node.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")
    assert len(producer.group(3)) == 3
    producer.app.close()


def test_workers_run_what_a_batch_has_published(rabbit: Rabbit, folder: Path) -> None:
    """Once each."""
    server: Any = rabbit
    here = Shop(server, folder, settings={"queues": {"#": {"max_delivery_attempts": 2, "redelivery_delay": 0.1}}})
    here.start()
    with here.app.redelivery.publishing():
        ids = [here.send("ok", number) for number in range(40)]
        doomed = here.send("raises", "dead_letter")
    for each in ids:
        here.ended(each, "succeeded")
    here.ended(doomed, "dead_lettered")
    assert here.leftovers() == {}
    here.stop()
