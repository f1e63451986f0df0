"""The product's code paths on Redis: each action of a worker, an operator or a producer, as one call.

The `desk` of a path is connected as the Redis user who must have the rights for it.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from redelivery import Redelivery
from redelivery.middleware.brokers.redis.receiving.receiver import Receiver
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.messages.steps import sealed
from redelivery.middleware.policy.resolver import Pace
from redelivery.middleware.worker.lifecycle import begin
from redelivery.workers.brokers.redis.outcome_log import bound
from redelivery.workers.duties.lease import Lease
from redelivery.workers.duties.recoverer import Recoverer
from tests.support.desk import LETTERS, QUEUE, Desk, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PATHS", "PREFIX"]

#: The key prefix that the ACL lines allow.
PREFIX = "shop:"


def _publish(desk: Desk) -> None:
    desk.app.send_task("desk.pack")


def _publish_to_a_queue_that_expires(desk: Desk) -> None:
    desk.app.send_task("desk.pack", queue=Queue("brief", Exchange("brief"), routing_key="brief", expires=60))


def _publish_to_a_topic(desk: Desk) -> None:
    queue = Queue("news", Exchange("wire", "topic"), routing_key="news.#")
    desk.app.send_task("desk.pack", exchange=Exchange("wire", "topic"), routing_key="news.late", declare=[queue])


def _publish_to_a_full_queue(desk: Desk) -> None:
    app = Celery("full", broker=desk.server.url, set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": PREFIX}
    policy = {"max_length": 1, "max_time_to_live": 60, "auto_create_dead_letter_resources": False}
    Redelivery(app, {"queues": {"short": policy, "#": {"max_length": 1}}})
    for _ in range(2):
        app.send_task("desk.pack", queue="short")
        app.send_task("desk.pack", queue="shorter")


def _publish_a_batch(desk: Desk) -> None:
    with desk.install.publishing():
        for _ in range(3):
            desk.app.send_task("desk.pack")


def _publish_a_batch_that_is_taken_back(desk: Desk) -> None:
    desk.client.xadd(desk.keys.outcomes, {"t": "x"}, id="18446744073709551615-18446744073709551614")  # only one id is left
    with suppress(OperationalError), desk.install.publishing():
        for _ in range(3):
            desk.app.send_task("desk.pack", retry=False)


def _receive(desk: Desk) -> None:
    desk.publish()
    desk.hold()


def _receive_nothing(desk: Desk) -> None:
    with suppress(IndexError):
        desk.hold(queue="empty")


def _succeed(desk: Desk) -> None:
    desk.publish()
    desk.transport.acknowledge(desk.hold(), Event(task_id="a", outcome=Outcome.SUCCEEDED))


def _start_and_give_back(desk: Desk) -> None:
    desk.publish()
    tag = desk.hold()
    desk.transport.start(tag)
    desk.transport.leases.started([tag])
    desk.transport.leases.extend([tag], 60)
    desk.install.transport.release([each for each in desk.transport.leases.held_by("w") if each.tag == tag])


def _requeue(desk: Desk) -> None:
    message = task_message()
    desk.publish(message)
    desk.transport.defer(desk.hold(), QUEUE, sealed(message), task_id="a", event=None, delay_ms=0, first=True)


def _redeliver_within_a_budget(desk: Desk) -> None:
    message = task_message()
    for _ in range(3):
        desk.publish(message)
        desk.transport.defer(desk.hold(), QUEUE, sealed(message), task_id="a", event=None, delay_ms=0, pace=Pace(QUEUE, 1000.0))


def _delay_and_promote(desk: Desk) -> None:
    desk.delay(task_message(), 1)
    until(lambda: desk.transport.stores.promote(100)[0], 2)


def _be_refused(desk: Desk) -> None:
    desk.client.set(desk.keys.dead_letter_queues, "no hash")
    with suppress(ResponseError):
        desk.die()
    desk.client.delete(desk.keys.dead_letter_queues)


def _lead_and_listen(desk: Desk) -> None:
    assert desk.transport.leases.lead(desk.keys.dispatcher, "one", 5)
    with desk.client.pubsub() as wake:
        wake.subscribe(desk.keys.wake)
        until(lambda: wake.get_message(timeout=1))
    desk.transport.leases.resign(desk.keys.dispatcher, "one")


def _die(desk: Desk) -> None:
    desk.die()


def _die_where_nothing_may_be_made(desk: Desk) -> None:
    message = task_message()
    desk.publish(message)
    desk.transport.dead_letter(desk.hold(), sealed(message), dead_letter_queue="none", queue=QUEUE, event=None, must_exist=True)


def _redrive(desk: Desk) -> None:
    desk.die()
    desk.json("dlq", "redrive", LETTERS, "--all", "--yes")


def _redrive_with_a_canary(desk: Desk) -> None:
    task_id = desk.die()
    done = desk.run("dlq", "redrive", LETTERS, "--all", "--yes", "--canary", "1", "--canary-wait", "10ms")
    assert f"the canary has not ended within 0.01 s: {task_id} (redriven)" in done.stderr


def _measure(desk: Desk) -> None:
    desk.die()
    desk.delay(task_message())
    desk.json("metrics")


def _purge(desk: Desk) -> None:
    desk.die()
    desk.json("dlq", "purge", LETTERS, "--all", "--yes")


def _look_at_letters(desk: Desk) -> None:
    task_id = desk.die()
    desk.json("dlq", "list")
    desk.json("dlq", "redrive", LETTERS, "--all", "--dry-run")
    desk.json("dlq", "causes", LETTERS)
    desk.json("dlq", "show", LETTERS, "--id", task_id)


def _look_at_delays(desk: Desk) -> None:
    task_id = desk.delay(task_message())
    desk.json("delayed", "list")
    desk.json("delayed", "show", task_id)


def _change_delays(desk: Desk) -> None:
    desk.json("delayed", "reschedule", desk.delay(task_message()), "--in", "60")
    desk.json("delayed", "promote", desk.delay(task_message()))
    desk.json("delayed", "cancel", desk.delay(task_message()))


def _follow_a_task(desk: Desk) -> None:
    desk.json("task", "show", desk.die())


def _take_inventory(desk: Desk) -> None:
    desk.delay(task_message())
    with tempfile.TemporaryDirectory(prefix="rd-") as name:
        desk.json("inventory", "export", "--to", f"{name}/inventory.parquet")


def _follow_the_log(desk: Desk) -> None:
    with suppress(StopIteration):
        desk.transport.client.xread({desk.keys.outcomes: "$"}, block=1)


def _export(desk: Desk) -> None:
    desk.die()
    with tempfile.TemporaryDirectory(prefix="rd-") as name:
        desk.json("outcomes", "export", "--to", name)


def _keep_the_log_within(desk: Desk) -> None:
    desk.die()
    bound(desk.client, desk.keys, 1)


def _renew_and_watch(desk: Desk) -> None:
    lease = Lease(desk.install)
    begin(desk.install, "w@desk")
    desk.transport.leases.register("another", {})  # a single worker does not check leases
    lease.step()
    desk.install.owner.release(set())
    for token in (desk.install.owner.token, "another"):
        desk.transport.leases.unregister(token)


def _recover(desk: Desk) -> None:
    desk.publish()
    desk.hold("dead")
    desk.transport.start(next(desk.transport.leases.held_by("dead")).tag)
    counter: Any = desk.client.hget(desk.keys.leases, "dead")
    desk.transport.leases.fence("dead", counter)
    Recoverer(desk.install).step()


def _leave(desk: Desk) -> None:
    desk.delay(task_message())
    desk.transport.leases.unregister("w")
    desk.json("leave", "--yes")


def _wait_for_pushes(desk: Desk) -> None:
    begin(desk.install, "w@desk")
    with desk.app.connection_for_read() as connection:
        channel: Any = connection.default_channel
        owner: Any = desk.install.owner
        channel.arm(Receiver(owner, lambda: 1, lambda: 1, lambda *_: None))
        channel.client.ping()


def _sweep_after_plain_workers(desk: Desk) -> None:
    desk.publish()
    desk.app.conf.broker_transport_options = {"global_keyprefix": PREFIX, "visibility_timeout": 0}
    with desk.app.connection_for_read() as connection:
        channel: Any = connection.default_channel
        channel.queue_declare(QUEUE)
        assert channel.basic_get(QUEUE) is not None
        channel.qos._delivered.clear()
        connection.default_channel.qos.restore_visible()


def _purge_a_queue_by_celery(desk: Desk) -> None:
    desk.app.control.purge()


def _ask_workers(desk: Desk) -> None:
    desk.app.control.ping(timeout=0.2)


def _hear_remote_control(desk: Desk) -> None:
    with desk.app.connection_for_read() as connection:
        node = desk.app.control.mailbox.Node("w@desk", channel=connection.default_channel)
        consumer = node.listen()
        desk.app.control.broadcast("ping")
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
        consumer.cancel()


def _print_events(desk: Desk) -> None:
    with desk.app.events.default_dispatcher() as dispatcher:
        dispatcher.send("worker-tested")


def _hear_events(desk: Desk) -> None:
    with desk.app.connection_for_read() as connection:
        receiver = desk.app.events.Receiver(connection, routing_key="worker.#")
        with receiver.consumer_context(), suppress(TimeoutError):
            connection.drain_events(timeout=0.1)


PATHS: dict[str, Callable[[Desk], None]] = {
    name.removeprefix("_"): value
    for name, value in dict(globals()).items()
    if name.startswith("_") and getattr(value, "__module__", "") == __name__
}
