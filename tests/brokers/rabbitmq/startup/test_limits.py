"""RabbitMQ settings that could cause trouble: the consumer timeout, quorum detection, the options of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kombu import Queue

from redelivery.middleware.messages.envelope import Envelope
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit

#: Seconds that the broker lets a message be held unacknowledged.
TIMEOUT = 3


@pytest.fixture
def impatient(private_rabbit: Rabbit) -> Rabbit:
    """A node with a short consumer timeout, which it looks at often."""
    settings = {"consumer_timeout": TIMEOUT * 1000, "channel_tick_interval": 200}
    for name, value in settings.items():
        private_rabbit.node.evaluate(f"application:set_env(rabbit, {name}, {value}).")
    return private_rabbit


@pytest.fixture
def impatient_shop(impatient: Rabbit, folder: Path) -> Iterator[Shop]:
    """A shop on it."""
    server: Any = impatient
    policy = {"redelivery_delay": 2 * TIMEOUT, "redelivery_collision_avoidance_factor": 0.0, "max_delivery_attempts": 2}
    short = {"tests.support.shop.naps": {"max_delivery_attempts": 1}}
    shop = Shop(server, folder, settings={"queues": {"#": policy}, "tasks": short})
    yield shop
    shop.stop()


@pytest.mark.full
@pytest.mark.slow
def test_what_waits_for_its_time_outlasts_the_consumer_timeout(impatient_shop: Shop) -> None:
    """A countdown and a redelivery of twice that time wait in the broker, acknowledged: no channel is closed."""
    worker = impatient_shop.start(concurrency=1)
    later, again = impatient_shop.send("ok", countdown=2 * TIMEOUT), impatient_shop.send("fails", 1)
    for task_id, runs in ((later, 1), (again, 2)):
        impatient_shop.ended(task_id, "succeeded")
        assert len(impatient_shop.runs(task_id)) == runs
    assert "message.handed_over_again" not in worker.text
    assert "PRECONDITION_FAILED" not in worker.text


@pytest.mark.full
@pytest.mark.slow
def test_what_runs_longer_than_the_consumer_timeout_is_kept_in_the_end(impatient_shop: Shop) -> None:
    """The broker closes the channel and redelivers the running task, three times uncounted, then counted, until it dies."""
    worker = impatient_shop.start("--without-heartbeat", concurrency=4, pool="threads")
    task_id = impatient_shop.send("naps", 3 * TIMEOUT)
    assert impatient_shop.ended(task_id, "dead_lettered", 120).reason == "worker_lost"
    (letter,) = until(impatient_shop.letters, what="the letter")
    assert Envelope.of(letter["headers"]).attempt == 1
    assert "delivery.timed_out" in worker.text
    fine = impatient_shop.send("ok")
    impatient_shop.ended(fine, "succeeded")
    assert worker.process.poll() is None


def test_a_quorum_queue_without_its_detection_is_refused_by_the_broker(rabbit: Rabbit, folder: Path) -> None:
    """With `worker_detect_quorum_queues` off, Celery asks for a prefetch window per channel, which such a queue refuses."""
    server: Any = rabbit
    shop = Shop(server, folder, conf={"task_default_queue_type": "quorum", "worker_detect_quorum_queues": False})
    try:
        worker = shop.start(wait=False)
        until(lambda: "does not support global qos" in worker.text, what="the broker to say so")
    finally:
        shop.stop()


def test_every_connection_is_given_the_apps_transport_options(rabbit: Rabbit, folder: Path) -> None:
    """`broker_transport_options` apply to the connections of consumers, publishers and operators' looks."""
    server: Any = rabbit
    options = {"client_properties": {"connection_name": "of the shop"}}
    shop = Shop(server, folder, conf={"broker_transport_options": options})
    try:
        shop.start(pool="threads")
        shop.ended(shop.send("ok"), "succeeded")
        of_this = (
            f'[I || I <- rabbit_networking:connection_info_all([vhost, client_properties]), {{vhost, <<"{rabbit.name}">>}} <- I]'
        )
        shown = rabbit.node.evaluate(f"{of_this}.")
        assert shown.count(",".join(map(str, b"of the shop"))) == shown.count("client_properties") >= 3
    finally:
        shop.stop()


def test_a_quorum_queue_keeps_priorities_without_heeding_them(rabbit: Rabbit) -> None:
    """RabbitMQ 3 refuses a quorum queue with priorities; the priority of a message is kept as a property."""
    with rabbit.connection() as connection:
        channel = connection.default_channel
        with pytest.raises(Exception, match="x-max-priority"):
            Queue("urgent", queue_arguments={"x-queue-type": "quorum", "x-max-priority": 9}).bind(channel).declare()
