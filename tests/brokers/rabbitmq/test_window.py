"""How many messages a worker on RabbitMQ gets: a prefetch window of the channel can change, a fixed one gets a second consumer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lanes import first_quick
from tests.support.rabbitmq.amqp_taking import consumed, filled, publish
from tests.support.running import Shop, until
from tests.support.trials.trial import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit

KINDS = pytest.mark.parametrize("kind", first_quick(["classic", "quorum"]))


def test_a_window_of_the_channel_is_as_wide_as_it_is_asked_for(rabbit: Rabbit, opened: Callable[[], Any]) -> None:
    """It grows at once, also when Celery sets its own, and shrinks without taking messages back."""
    connection = opened()
    name = filled(connection, "classic", 40)
    channel = connection.connection.channel()
    channel.basic_qos(0, 4, a_global=True)
    tags = consumed(connection, channel, name, 4)
    assert rabbit.depths()[name] == (36, 4)
    channel.widen(3)
    until(lambda: rabbit.depths()[name] == (33, 7), what="three more")
    channel.basic_qos(0, 5, a_global=True)
    until(lambda: rabbit.depths()[name] == (32, 8), what="Celery's one more")
    while len(tags) < 8:
        connection.drain_events(timeout=60)
    channel.widen(0)
    channel.acknowledge(tags[:4])
    until(lambda: rabbit.depths()[name] == (31, 5), what="one more: four have gone, and there is room for five")


def test_a_window_of_each_consumer_is_left_alone(rabbit: Rabbit, opened: Callable[[], Any]) -> None:
    """Quorum queues allow only this kind of window, and RabbitMQ fixes it when the consumer begins."""
    connection = opened()
    name = filled(connection, "quorum", 20)
    channel = connection.connection.channel()
    channel.basic_qos(0, 4, a_global=False)
    consumed(connection, channel, name, 4)
    channel.widen(3)
    channel.queue_declare(name, passive=True)  # whatever was sent before has arrived
    assert rabbit.depths()[name] == (16, 4)


# a second consumer beside a fixed window


@KINDS
def test_a_second_consumer_takes_its_own_window_and_leaves_it_when_it_ends(
    rabbit: Rabbit, opened: Callable[[], Any], kind: str
) -> None:
    """It begins only once, however often it is asked to; its messages are acknowledged as usual, and it may begin again."""
    connection = opened()
    name, other = filled(connection, kind, 40), filled(connection, kind, 40)
    channel = connection.connection.channel()
    channel.basic_qos(0, 4, a_global=False)
    tags = consumed(connection, channel, name, 4)
    assert rabbit.depths()[name] == (36, 4)
    assert [channel.begin_second(name, 6) for _ in range(2)] == [True, True]
    until(lambda: rabbit.depths()[name] == (30, 10), what="six more")
    while len(tags) < 10:
        connection.drain_events(timeout=60)
    channel.end_second(name)
    channel.acknowledge(tags)
    until(lambda: rabbit.depths()[name] == (26, 4), what="the first one's alone")
    assert channel.begin_second(name, 6)
    until(lambda: rabbit.depths()[name] == (20, 10), what="six more")
    consumed(connection, channel, other, 4, "another")
    assert rabbit.depths()[other] == (36, 4)


@KINDS
def test_a_second_consumer_is_handed_nothing_while_any_first_has_room(rabbit: Rabbit, opened: Callable[[], Any], kind: str) -> None:
    """A worker that comes later gets messages before the first worker's second consumer does; also with a priority."""
    connection = opened()
    name = filled(connection, kind, 0)
    eager, late = (connection.connection.channel() for _ in range(2))
    heard: dict[Any, list[int]] = {eager: [], late: []}
    for channel in (eager, late):
        channel.basic_qos(0, 4, a_global=False)
        callback: Any = lambda message, of=channel: heard[of].append(message.delivery_tag)  # noqa: E731
        channel.basic_consume(queue=name, consumer_tag="first", callback=callback, arguments={"x-priority": 5})
        assert channel is late or channel.begin_second(name, 8)
    publish(connection, name, 8)
    until(lambda: rabbit.depths()[name] == (0, 8), what="all to be handed over")
    while sum(map(len, heard.values())) < 8:
        connection.drain_events(timeout=60)
    assert [len(each) for each in heard.values()] == [4, 4]
    publish(connection, name, 20)
    until(lambda: rabbit.depths()[name] == (12, 16), what="the second consumer to be full")


@KINDS
def test_a_second_consumer_goes_with_the_first(opened: Callable[[], Any], kind: str) -> None:
    """Celery cancels only the first, which it knows; no second one begins afterwards, or without a first one."""
    connection = opened()
    name = filled(connection, kind, 0)
    channel = connection.connection.channel()
    channel.basic_qos(0, 4, a_global=False)
    assert not channel.begin_second(name, 8)
    consumed(connection, channel, name, 0)
    assert channel.begin_second(name, 8)
    assert channel.queue_declare(name, passive=True).consumer_count == 2
    channel.basic_cancel("taker")
    assert channel.queue_declare(name, passive=True).consumer_count == 0
    assert not channel.begin_second(name, 8)


def test_a_window_of_the_whole_channel_needs_no_second_consumer(opened: Callable[[], Any]) -> None:
    """The window is widened instead."""
    connection = opened()
    name = filled(connection, "classic", 0)
    channel = connection.connection.channel()
    channel.basic_qos(0, 4, a_global=True)
    consumed(connection, channel, name, 0)
    assert not channel.begin_second(name, 8)


@pytest.fixture
def quorum_shop(private_rabbit: Rabbit, folder: Path) -> Iterator[Shop]:
    """A shop whose queue is a quorum queue, on a node of its own."""
    server: Any = private_rabbit
    shop = Shop(server, folder, conf={"task_default_queue_type": "quorum", "broker_transport_options": {"confirm_publish": True}})
    yield shop
    shop.stop()


def consumers(rabbit: Rabbit) -> int:
    """How many consumers the shop's queue has."""
    with rabbit.connection() as connection:
        return int(connection.default_channel.queue_declare("celery", passive=True).consumer_count)


def all_have_run(shop: Shop, ids: set[str]) -> None:
    """Wait until each task has begun."""
    until(lambda: {run["id"] for run in shop.runs()} == ids, what="all to have run")


def test_short_tasks_have_a_second_consumer_and_long_ones_have_not(private_rabbit: Rabbit, quorum_shop: Shop) -> None:
    """Eight are held while tasks are long, three times as many while the broker confirms no events, and then eight again."""
    here = quorum_shop
    worker = here.start("--without-heartbeat")
    ids = [here.send("naps", 5) for _ in range(2)] + [here.send("naps", 0) for _ in range(30)]
    until(lambda: private_rabbit.depths()["celery"] == (24, 8), what="a window of them to be held")
    assert consumers(private_rabbit) == 1
    private_rabbit.node.evaluate("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")
    until(lambda: sum(run["event"] == "end" for run in here.runs()) == 24, what="three windows to have ended")
    assert (private_rabbit.depths()["celery"], consumers(private_rabbit)) == ((8, 24), 2)
    private_rabbit.node.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")
    until(lambda: not here.leftovers(), what="all to be acknowledged")
    until(lambda: consumers(private_rabbit) == 1, what="the second consumer to end")
    assert sorted(run["id"] for run in here.runs() if run["event"] == "end") == sorted(ids)
    assert worker.process.poll() is None


@pytest.mark.slow
def test_a_worker_that_is_killed_with_a_second_consumer_loses_nothing(rabbit: Rabbit, folder: Path) -> None:
    """The next worker gets the messages of both consumers; each task has run, and has its end in the books."""
    server: Any = rabbit
    here = Shop(server, folder, conf={"task_default_queue_type": "quorum", "broker_transport_options": {"confirm_publish": True}})
    try:
        ids = [here.send("ok") for _ in range(1500)]
        worker = here.start()
        until(lambda: consumers(rabbit) == 2, what="the second consumer")
        worker.kill()
        assert len({event.task_id for event in here.events if event.outcome == "succeeded"}) < len(ids)
        here.start()
        until(lambda: not here.leftovers(), what="all to be acknowledged")
        ended = [event.task_id for event in here.events if event.outcome == "succeeded"]
        assert set(ended) == set(ids)
        assert {run["id"] for run in here.runs()} == set(ids)
    finally:
        here.stop()


@pytest.mark.full
@pytest.mark.parametrize(("pool", "kind"), first_quick([("gevent", "classic"), ("eventlet", "quorum")]))
def test_greenlets_are_handed_the_next_task_when_one_has_ended(rabbit: Rabbit, folder: Path, pool: str, kind: str) -> None:
    """Celery's loop for greenlets wakes up only every two seconds, and loses 0.1 s for each answer of the broker.

    Twenty tasks in twos take three seconds; they took twenty if they were acknowledged when the loop wakes up. Sixty short ones
    take six seconds, because of Celery itself; they took sixteen if the window is moved.
    """
    if missing(pool):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing(pool))
    server: Any = rabbit
    conf = {"task_default_queue_type": kind, "broker_transport_options": {"confirm_publish": True}}
    here = Shop(server, folder, conf=conf)
    try:
        for task, count, words, multiplier in (("naps", 20, [0.3], "1"), ("ok", 60, [], "4")):
            (folder / "runs").unlink(missing_ok=True)
            ids = {here.send(task, *words) for _ in range(count)}
            worker = here.start("--prefetch-multiplier", multiplier, pool=pool)
            all_have_run(here, ids)
            times = [run["at"] for run in here.runs()]
            assert max(times) - min(times) < 11
            worker.stop()
    finally:
        here.stop()
