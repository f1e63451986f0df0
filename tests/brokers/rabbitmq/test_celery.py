"""RabbitMQ as Celery's users have it: exchanges of their own, quorum queues, native delays, confirmed publishing; on one worker."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from celery import Celery
from kombu import Exchange, Queue

from redelivery import Redelivery
from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.messages.ttl import PUBLISHED
from tests.conformance.sent import letter_of
from tests.support.rabbitmq.amqp_queues import configure
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.messages.events import Event
    from tests.support.rabbit import Node, Rabbit

pytestmark = pytest.mark.xdist_group("amqp-celery")

SETTINGS = {"queues": {"#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 2}}}
#: What is sent: the task, its arguments, and where to.
SENT: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "native delay": ("ok", (), {"countdown": 3}),
    "direct delay": ("ok", (), {"queue": "mails", "countdown": 3}),
    "like-named delay": ("ok", (), {"queue": "eu.mails", "countdown": 3}),
    "topic": ("fails", (), {}),
    "topic of another key": ("fails", (), {"exchange": "shop", "routing_key": "orders.eu.big"}),
    "direct": ("fails", (), {"exchange": "post", "routing_key": "mail", "reply_to": "answers", "app_id": "till"}),
    "to a queue": ("fails", (), {"exchange": "", "routing_key": "mails"}),
    "urgent": ("fails", (), {"exchange": "post", "routing_key": "urgent", "priority": 7}),
    "retries": ("retries", (), {"exchange": "post", "routing_key": "mail"}),
    "copied": ("fails", (), {"exchange": "", "routing_key": "mails", "headers": {"CC": ["eu.mails"]}}),
}


@dataclass
class SentTasks:
    """The shop on one virtual host, and what was sent."""

    rabbit: Rabbit
    shop: Shop
    ids: dict[str, str] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)

    def ended(self, name: str, outcome: str, queue: str) -> Event:
        """The event with which it ended in this queue."""

        def found() -> Event | None:
            events = self.shop.events_of(self.ids[name])
            return next((each for each in events if each.outcome == outcome and each.queue == queue), None)

        event: Event = until(found, what=f"{name} to be {outcome} in {queue}")
        return event

    def letter(self, name: str, queue: str) -> dict[str, Any]:
        """Its letter, once it lies there."""
        return letter_of(self.shop, self.ids[name], queue)


@pytest.fixture(scope="module")
def sent_tasks(rabbit_node: Node) -> Iterator[SentTasks]:
    """One worker on all the queues."""
    rabbit = rabbit_node.vhost()
    with TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as folder:
        server: Any = rabbit
        shop = Shop(server, Path(folder), settings=SETTINGS, module="tests.support.rabbitmq.amqp_shop")
        configure(shop.app)
        shop.start(concurrency=3)
        sent_tasks = SentTasks(rabbit, shop)
        for name, (task, args, options) in SENT.items():
            sent_tasks.at[name] = time.time()
            sent_tasks.ids[name] = str(shop.app.send_task(f"tests.support.shop.{task}", args, **options).id)
        yield sent_tasks
        shop.stop()
    rabbit.remove()


@pytest.mark.parametrize(
    ("name", "queue", "exchange", "routing_key"),
    [
        ("topic", "orders", "shop", "orders.#"),  # what Celery publishes with, if it is given neither queue nor key
        ("topic of another key", "orders", "shop", "orders.eu.big"),
        ("topic", "audit", "shop", "orders.#"),
        ("direct", "mails", "post", "mail"),
        ("to a queue", "mails", "", "mails"),
        ("urgent", "urgent", "post", "urgent"),
    ],
)
def test_a_letter_knows_the_exchange_and_the_key_it_was_published_with(
    sent_tasks: SentTasks, name: str, queue: str, exchange: str, routing_key: str
) -> None:
    """They survive every move, so that a dead letter can go back to them; each of two bound queues has a life of its own."""
    assert sent_tasks.ended(name, "dead_lettered", queue).attempt == 2
    letter = sent_tasks.letter(name, f"DLQ.{queue}")
    envelope = Envelope.of(letter["headers"])
    assert dict(envelope.origin) == {"queue": queue, "exchange": exchange, "routing_key": routing_key}
    assert (envelope.deaths[0]["exchange"], envelope.deaths[0]["routing_keys"]) == (exchange, [routing_key])


def test_a_redelivery_goes_to_its_own_queue_alone(sent_tasks: SentTasks) -> None:
    """Two queues of one topic exchange: each has its own two deliveries, and none of the other queue's."""
    for queue in ("orders", "audit"):
        sent_tasks.ended("topic", "dead_lettered", queue)
    assert len(sent_tasks.shop.runs(sent_tasks.ids["topic"])) == 4


@pytest.mark.parametrize("queue", ["mails", "eu.mails"])
def test_a_copy_is_sent_once_and_lives_by_itself(sent_tasks: SentTasks, queue: str) -> None:
    """RabbitMQ's `CC` header: redeliveries and deaths send no copies again; each dead letter goes back to its own queue."""
    for each in ("mails", "eu.mails"):
        sent_tasks.ended("copied", "dead_lettered", each)
    events = [event for event in sent_tasks.shop.events_of(sent_tasks.ids["copied"]) if event.queue == queue]
    assert [(event.outcome, event.attempt) for event in events] == [
        ("received", 1),
        ("redelivery_scheduled", 1),
        ("dead_lettered", 2),
    ]
    letter = sent_tasks.letter("copied", f"DLQ.{queue}")
    envelope = Envelope.of(letter["headers"])
    assert dict(envelope.origin) == {"queue": queue, "exchange": "", "routing_key": queue}
    assert envelope.deaths[0]["routing_keys"] == [queue, "eu.mails"]
    assert letter["headers"]["CC"] == ["eu.mails"]
    assert len(sent_tasks.shop.runs(sent_tasks.ids["copied"])) == 4


def test_properties_and_priority_survive_every_move(sent_tasks: SentTasks) -> None:
    """`reply_to`, `app_id`, a priority in a queue with priorities."""
    direct, urgent = sent_tasks.letter("direct", "DLQ.mails"), sent_tasks.letter("urgent", "DLQ.urgent")
    assert (direct["properties"]["reply_to"], direct["properties"]["app_id"]) == ("answers", "till")
    assert urgent["properties"]["priority"] == 7


@pytest.mark.parametrize(("queue", "kind"), [("orders", "quorum"), ("mails", "classic")])
def test_a_dead_letter_queue_is_of_the_type_of_its_origin(sent_tasks: SentTasks, queue: str, kind: str) -> None:
    """It is declared durable; another program that declares it otherwise gets an error."""
    sent_tasks.ended({"orders": "topic", "mails": "direct"}[queue], "dead_lettered", queue)
    other = {"quorum": "classic", "classic": "quorum"}[kind]
    with sent_tasks.rabbit.connection() as connection, pytest.raises(amqp.PreconditionFailed, match="x-queue-type"):
        connection.default_channel.queue_declare(f"DLQ.{queue}", durable=True, arguments={"x-queue-type": other}, auto_delete=False)


def test_what_celery_has_delayed_itself_is_not_delayed_twice(sent_tasks: SentTasks) -> None:
    """On a quorum queue of a topic exchange, Celery delays it by itself: it arrives when it is due, and runs at once."""
    sent_tasks.ended("native delay", "succeeded", "orders")
    outcomes = [each.outcome for each in sent_tasks.shop.events_of(sent_tasks.ids["native delay"]) if each.queue == "orders"]
    assert outcomes == ["received", "succeeded"]
    assert all(run["at"] >= sent_tasks.at["native delay"] + 3 for run in sent_tasks.shop.runs(sent_tasks.ids["native delay"]))


@pytest.mark.parametrize(("name", "queue"), [("direct delay", "mails"), ("like-named delay", "eu.mails")])
def test_a_delay_works_with_direct_exchanges_and_reaches_one_queue(sent_tasks: SentTasks, name: str, queue: str) -> None:
    """Celery's own delay does not work there. A message that waits for `eu.mails` is not delivered to `mails` as well."""
    sent_tasks.ended(name, "succeeded", queue)
    assert sent_tasks.shop.outcomes_of(sent_tasks.ids[name]) == ["published", "deferred", "succeeded"]
    (run,) = sent_tasks.shop.runs(sent_tasks.ids[name])
    assert run["at"] >= sent_tasks.at[name] + 3


def test_a_task_that_retries_itself_stays_in_its_queue(sent_tasks: SentTasks) -> None:
    """`self.retry` on a queue with an exchange of its own."""
    event = sent_tasks.ended("retries", "dead_lettered", "mails")
    assert event.attempt == 2
    assert len(sent_tasks.shop.runs(sent_tasks.ids["retries"])) == 2


def test_a_publication_straight_to_a_queue_is_recorded(sent_tasks: SentTasks) -> None:
    """This works with confirms, too. A message that an exchange may bring to several queues opens its life in each of them."""
    sent_tasks.ended("to a queue", "dead_lettered", "mails")
    assert sent_tasks.shop.outcomes_of(sent_tasks.ids["to a queue"])[0] == "published"
    sent_tasks.ended("direct", "dead_lettered", "mails")
    first = sent_tasks.shop.events_of(sent_tasks.ids["direct"])[0]
    assert (first.outcome, first.reason) == ("received", "unannounced")


def test_a_publication_is_dated_where_the_policy_of_a_queue_needs_it(rabbit: Rabbit) -> None:
    """Both straight to the queue and through an exchange that may lead there; other publications get no date."""
    app = Celery("dated", broker=rabbit.url, set_as_current=False)
    app.conf.task_queues = [Queue("brief", Exchange("post", "topic"), routing_key="mail.#"), Queue("plain"), Queue("calm")]
    Redelivery(app, {"queues": {"brief": {"max_time_to_live": 5}, "plain": {"delivery_delay": 5}}})
    sent: dict[str, Any] = {
        "brief": {"exchange": "post", "routing_key": "mail.eu"},
        "plain": {"queue": "plain"},
        "calm": {"queue": "calm"},
    }
    with rabbit.connection() as connection:
        channel = connection.default_channel
        for queue in app.amqp.queues.values():
            queue.bind(channel).declare()
        for name, where in sent.items():
            app.send_task("shop.pack", **where)
            message = until(lambda name=name: channel.basic_get(name, no_ack=True), what=f"a message in {name}")  # type: ignore[misc]
            assert (PUBLISHED in message.headers) == (name != "calm")


def test_the_bytes_of_a_message_are_made_only_where_it_moves_on(rabbit: Rabbit, folder: Path) -> None:
    """A success encodes no envelope; a failure encodes one."""
    server: Any = rabbit
    shop = Shop(server, folder, settings=SETTINGS, module="tests.support.rabbitmq.bytes_shop")
    try:
        shop.start()
        sent = [str(shop.app.send_task(f"tests.support.shop.{name}", args).id) for name, args in (("ok", ()), ("fails", (1,)))]
        for task_id in sent:
            shop.ended(task_id, "succeeded")
        assert {each["id"] for each in shop.runs() if "made" in each} == {sent[1]}
    finally:
        shop.stop()


def test_nothing_is_left_behind(sent_tasks: SentTasks) -> None:
    """When all have ended, nothing waits, and nothing is held."""
    for name, queue in (("native delay", "orders"), ("direct delay", "mails"), ("like-named delay", "eu.mails")):
        sent_tasks.ended(name, "succeeded", queue)
    until(lambda: not sent_tasks.rabbit.leftovers(), what="nothing to be left")
