"""What a worker on RabbitMQ logs and refuses when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Queue
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.errors import BrokerError
from redelivery.middleware.brokers import kind_of
from redelivery.middleware.brokers.rabbitmq.names import BITS, AmqpNames
from redelivery.middleware.brokers.rabbitmq.policies import warn_of_bypasses
from redelivery.middleware.brokers.rabbitmq.topology import declare_delays, declare_letters, has_queue
from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
from redelivery.middleware.brokers.redis.transport import RedisTransport
from redelivery.middleware.ports import Capability
from redelivery.middleware.worker.startup.contradictions import contradictions
from tests.support.lanes import first_quick
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.rabbit import Rabbit

NOWHERE = "amqp://127.0.0.1:1//"


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"queues": {"orders": {"max_length": 5}}}, "x-max-length"),
        ({"queues": {"#": {"dead_letter_time_to_live": 60}}}, "dlq purge"),
        ({"queues": {"#": {"max_dead_letters": 60}}}, "dlq purge"),
        ({"queues": {"#": {"redeliveries_per_second": 5}}}, "longer delays"),
        ({"queues": {"#": {"auto_delete_dead_letter_resources": True}}}, "--if-empty"),
        ({"wait_replicas": 1}, "quorum"),
    ],
    ids=str,
)
def test_what_rabbitmq_cannot_keep_is_refused_with_what_to_do(settings: dict[str, Any], word: str) -> None:
    """A setting that RabbitMQ cannot keep is refused and not silently ignored; on Redis it is accepted."""
    (line,) = contradictions(Redelivery(Celery("refused", broker=NOWHERE, set_as_current=False), settings))
    assert word in line
    assert contradictions(Redelivery(Celery("kept", broker="redis://127.0.0.1:1/0", set_as_current=False), settings)) == []


@pytest.mark.parametrize(
    ("broker", "kind"), [("redis://x", "redis"), ("amqp://x", "amqp"), ("amqps://x", "amqp"), ("memory://", "generic")]
)
def test_the_kind_of_a_broker_is_told_by_its_address(broker: str, kind: str) -> None:
    """No connection is needed for that."""
    app = Celery("kinds", broker=broker, set_as_current=False)
    Redelivery(app)
    assert kind_of(app) == kind


def test_what_the_brokers_can_do_is_declared() -> None:
    """Redis can do everything, except what only a broker that requeues messages by itself needs."""
    assert RedisTransport.capabilities | {Capability.REDELIVERY_COUNTS} == frozenset(Capability)
    assert Capability.LEASES not in AmqpTransport.capabilities
    assert {Capability.BROKER_DELAYS, Capability.DEAD_LETTER_QUEUES, Capability.OUTCOME_LOG} <= AmqpTransport.capabilities


def test_queues_whose_declaration_bypasses_us_are_named(rabbit: Rabbit) -> None:
    """A queue's own arguments can make the broker end messages without us: a line for each queue, with the arguments."""
    app = Celery("bypassed", broker=rabbit.url, set_as_current=False)
    arguments = {"x-dead-letter-exchange": "elsewhere", "x-delivery-limit": 3}
    app.conf.task_queues = [
        Queue("fine"),
        Queue("argued", queue_arguments=arguments),
        Queue("timed", expires=300.0, message_ttl=30.0),
    ]
    with capture_logs() as logs:
        warn_of_bypasses(app, app.amqp.queues.consume_from)
    said = {line["queue"]: line["arguments"] for line in logs if line["event"] == "broker.bypasses"}
    assert said == {"argued": "x-dead-letter-exchange,x-delivery-limit", "timed": "x-message-ttl,x-expires"}


def test_what_is_looked_at_has_no_delivery_limit(rabbit: Rabbit) -> None:
    """Each look counts as a delivery, and RabbitMQ 4 would drop a quorum queue's message after twenty; a delayed one too early."""
    with rabbit.connection() as connection:
        declare_delays(connection.connection, AmqpNames())
        declare_letters(connection.connection, "DLQ.orders", "quorum")
    arguments = rabbit.node.evaluate(f'[amqqueue:get_arguments(Q) || Q <- rabbit_amqqueue:list(<<"{rabbit.name}">>)].')
    assert arguments.count(str(2**31 - 1)) == BITS + 1


def test_a_delay_store_that_lacks_a_part_is_declared_again(rabbit: Rabbit) -> None:
    """A worker died while it declared the store: the last queue exists, but no level leads there. Or somebody deleted a part."""
    names = AmqpNames()
    with rabbit.connection() as connection:
        made = connection.connection
        connection.default_channel.exchange_declare(names.delivery_exchange, "topic", durable=True, auto_delete=False)
        declare_delays(made, names)
        assert all(has_queue(made, names.level(bit)) for bit in range(BITS))
        bound = rabbit.node.evaluate(f'length(rabbit_binding:list(<<"{rabbit.name}">>)).')
        channel = connection.default_channel
        for delete, name in [
            (channel.exchange_delete, names.delays_declared),
            (channel.exchange_delete, names.delivery_exchange),
            (channel.exchange_delete, names.level(3)),
            (channel.queue_delete, names.level(BITS - 1)),
        ]:
            delete(name)
            assert declare_delays(made, names), name
            assert rabbit.node.evaluate(f'length(rabbit_binding:list(<<"{rabbit.name}">>)).') == bound, name
        assert not declare_delays(made, names)


@pytest.mark.parametrize(
    ("way", "why"),
    first_quick(
        [
            ("max-queues", "queue limit in vhost"),
            ("taken", "inequivalent arg 'type'"),
            ("exclusive", "exclusive access to locked queue 'celery'"),
        ]
    ),
)
def test_a_worker_whose_delay_store_is_refused_ends_with_one_line(rabbit: Rabbit, folder: Path, way: str, why: str) -> None:
    """The broker allows too few queues, somebody has an exchange of one of the names, or the app's queue is exclusive."""
    if way == "max-queues":
        rabbit.ctl("set_vhost_limits", '{"max-queues": 10}')
    elif way == "taken":
        with rabbit.connection() as connection:
            connection.default_channel.exchange_declare(AmqpNames().level(3), "direct", durable=True, auto_delete=False)
    server: Any = rabbit
    conf = {"task_queues": {"celery": {"exclusive": True}}} if way == "exclusive" else {}
    worker = Shop(server, folder, conf=conf).start(wait=False)
    assert worker.process.wait(60) == 1
    assert "redelivery: error: the broker refuses what redelivery declares: " in worker.text
    assert why in worker.text
    assert "Traceback" not in worker.text


def test_a_login_that_is_refused_is_not_called_a_missing_right(rabbit: Rabbit) -> None:
    """The error names the address without its password."""
    broker = rabbit.url.replace("guest:guest@", "guest:secret@")
    with pytest.raises(
        BrokerError, match=r"broker amqp://guest:\*\*@\S+ refused the connection: .*Login was.*; check user, password"
    ):
        AmqpTransport.of(Celery("stranger", broker=broker, set_as_current=False))


@pytest.mark.parametrize(("way", "why"), [("login", "Login was refused"), ("declared", "inequivalent arg 'x-max-priority'")])
def test_a_worker_that_celery_ends_for_a_refusal_of_the_broker_ends_with_one_line(
    rabbit: Rabbit, folder: Path, way: str, why: str
) -> None:
    """A wrong password, or a queue that somebody has declared otherwise: Celery alone would end with a traceback."""
    server: Any = rabbit
    shop = Shop(server, folder)
    if way == "login":
        shop.broker = rabbit.url.replace("guest:guest@", "guest:secret@")
    else:
        with rabbit.connection() as connection:
            connection.default_channel.queue_declare("celery", durable=True, auto_delete=False, arguments={"x-max-priority": 3})
    worker = shop.start(wait=False)
    assert worker.process.wait(60) == 1
    [line] = [line for line in worker.text.splitlines() if "the broker refuses what this worker needs" in line]
    assert why in line
    assert "Traceback" not in worker.text


def test_the_last_address_of_a_list_is_tried_too(rabbit: Rabbit) -> None:
    """Nothing answers at the first two; a strategy of the app's that may name one address again does not matter."""
    broker = f"amqp://127.0.0.1:1//;amqp://127.0.0.1:2//;{rabbit.url}"
    app = Celery("listed", broker=broker, set_as_current=False)
    app.conf.broker_failover_strategy = "shuffle"
    for _ in range(10):
        with AmqpTransport.of(app).connect() as connection:
            assert connection.port == rabbit.node.port


def test_a_workers_line_says_what_its_broker_lacks(rabbit: Rabbit, folder: Path) -> None:
    """The line has the guarantee and each missing capability; a worker that cannot keep its settings ends with one line."""
    server: Any = rabbit
    shop = Shop(server, folder)
    try:
        worker = shop.start()
        find: Callable[[], str] = lambda: next((each for each in worker.text.splitlines() if "worker.started" in each), "")  # noqa: E731 - short
        line = until(find, what="the line")
        assert "at least once: published with confirm, recorded, then acknowledged" in line
        lacks = line.partition("broker_lacks=")[2]
        for name in sorted({"atomic_moves", "exact_delays", "head_of_queue", "queue_bounds", "server_time"}):
            assert name in lacks
        assert "delay" not in lacks.replace("exact_delays", "")  # operators list, cancel and promote what waits
        worker.stop()
    finally:
        shop.stop()
    refused = Shop(server, folder, settings={"queues": {"#": {"max_length": 5}}}).start(wait=False)
    assert refused.process.wait(120) != 0
    assert "redelivery: error: max_length is not supported on RabbitMQ" in refused.text
    assert "Traceback" not in refused.text


def test_an_observing_worker_records_and_changes_nothing(rabbit: Rabbit, folder: Path) -> None:
    """With `mode="observe"` Celery alone acknowledges, and drops failed tasks; no dead-letter queue appears."""
    server: Any = rabbit
    shop = Shop(server, folder, settings={"mode": "observe"})
    try:
        worker = shop.start()
        fine, fails = shop.send("ok"), shop.send("fails")
        shop.ended(fine, "succeeded")
        assert shop.ended(fails, "discarded").reason == "exhausted"
        assert len(shop.runs(fails)) == 1
        assert rabbit.depth("DLQ.celery") is None
        until(lambda: not rabbit.leftovers(), what="nothing to be left")
        assert worker.stop() == 0
    finally:
        shop.stop()


@pytest.mark.parametrize("pool", first_quick(["solo", "gevent"]))
def test_other_pools_work_too(rabbit: Rabbit, folder: Path, pool: str) -> None:
    """A retry, a dead letter and a delay work on pools without an event loop or processes; a stop leaves nothing behind."""
    server: Any = rabbit
    shop = Shop(server, folder, settings={"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}})
    try:
        worker = shop.start(pool=pool)
        once, always, later = shop.send("fails", 1), shop.send("fails"), shop.send("ok", countdown=2)
        assert shop.ended(once, "succeeded").attempt == 2
        assert shop.ended(always, "dead_lettered").reason == "exhausted"
        shop.ended(later, "succeeded")
        assert worker.stop() == 0
        until(lambda: not rabbit.leftovers(), what="nothing to be left")
        assert len(shop.letters()) == 1
    finally:
        shop.stop()
