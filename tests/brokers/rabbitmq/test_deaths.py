"""Messages that RabbitMQ itself ends, by the arguments of a queue, get into the books; and a recipe for expiring queues."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from celery import Celery
from kombu import Queue

from redelivery import Redelivery
from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import AmqpNames, delay_key
from redelivery.middleware.brokers.rabbitmq.topology import bind_to_delays, declare_delays
from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.messages.steps import sealed
from tests.conformance.brokers import Place
from tests.support.desk import Desk, task_message
from tests.support.running import ROOT, Shop, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rabbit import Rabbit
    from tests.support.running import Worker
    from tests.support.servers import Server

DIED = "died"
TO_DIED = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DIED}
QUEUES = [
    Queue("timed", message_ttl=0.2, queue_arguments=TO_DIED),
    Queue("bounded", max_length=1, queue_arguments=TO_DIED),
    Queue("refused", queue_arguments=TO_DIED),
    Queue("unkept", queue_arguments=TO_DIED),
    Queue("limited", queue_arguments={**TO_DIED, "x-queue-type": "quorum", "x-delivery-limit": 1}),
]
SETTINGS = {"queues": {"timed": {"expiry_queue": "gone"}, "unkept": {"dead_letter_queue": None}}}


def declared(rabbit: Rabbit) -> Celery:
    """An app whose queues let RabbitMQ end messages; these queues exist, and so does the one that receives the dead messages."""
    app = Celery("ended", broker=rabbit.url, set_as_current=False)
    app.conf.update(task_queues=QUEUES, task_default_queue="timed", broker_transport_options={"confirm_publish": True})
    Redelivery(app, SETTINGS)
    with rabbit.connection() as connection:
        for queue in (*QUEUES, Queue(DIED)):
            queue.bind(connection.default_channel).declare()
    return app


def reject(rabbit: Rabbit, queue: str, *, times: int = 1, requeue: bool = False) -> None:
    """Take the next message of a queue and reject it, so many times."""
    with rabbit.connection() as connection:
        channel = connection.default_channel
        for _ in range(times):
            message = until(lambda: channel.basic_get(queue), what=f"a message in {queue}")
            channel.basic_reject(message.delivery_tag, requeue=requeue)


def put(rabbit: Rabbit, exchange: str, routing_key: str, message: dict[str, Any], **headers: Any) -> None:
    """Publish a message as it is, confirmed."""
    made = message_of(sealed(message), target=(exchange, routing_key))
    made.properties["application_headers"].update(headers)
    with rabbit.connection() as connection:
        channel = connection.connection.channel()
        channel.confirm_select()
        amqp.Channel.basic_publish_confirm(channel, made, exchange, routing_key)


def imported(rabbit: Rabbit, app: Celery, dead: int, *words: str) -> dict[str, Any]:
    """Wait until so many have died, and import them."""
    until(lambda: rabbit.depth(DIED) == dead, what=f"{dead} to have died, not {rabbit.depths()}")
    done: dict[str, Any] = Place.command(app, "dlq", "import", DIED, *words)
    return done


def letters(rabbit: Rabbit, queue: str) -> dict[str, Envelope]:
    """The letters of a dead-letter queue, by task id."""
    return {letter["headers"]["id"]: Envelope.of(letter["headers"]) for letter in rabbit.letters(queue)}


def test_each_reason_of_rabbitmqs_becomes_ours_once(rabbit: Rabbit) -> None:
    """For time to live, length, rejection and delivery limit: a dead letter with its record in its queue's DLQ, and one event."""
    app = declared(rabbit)
    sent = {name: app.send_task("shop.pack", queue=name).id for name in ("timed", "bounded", "refused", "limited")}
    app.send_task("shop.pack", queue="bounded")
    reject(rabbit, "refused")
    reject(rabbit, "limited", times=2, requeue=True)
    assert imported(rabbit, app, 4, "--dry-run")["moved"] == 4
    assert Place.command(app, "audit") == [], "a dry run leaves no record"
    done = imported(rabbit, app, 4, "--as", "ana", "--why", "nightly")
    assert (done["moved"], done["left"]) == (4, {})
    assert done["reasons"] == {"expired": 1, "max_length": 1, "rejected": 1, "exhausted": 1}
    assert done["targets"] == {"gone": 1, "DLQ.bounded": 1, "DLQ.refused": 1, "DLQ.limited": 1}
    assert imported(rabbit, app, 0)["moved"] == 0
    [record] = Place.command(app, "audit")  # and no event of an import that found nothing
    assert {name: record[name] for name in ("actor", "why", "act", "acted", "queue", "result")} == {
        "actor": "ana",
        "why": "nightly",
        "act": "import",
        "acted": "done",
        "queue": DIED,
        "result": {"matched": 4, "moved": 4},
    }

    reasons = {"timed": "expired", "bounded": "max_length", "refused": "rejected", "limited": "exhausted"}
    for name, reason in reasons.items():
        published, ended = [event for event in rabbit.events() if event.task_id == sent[name]]
        assert (published.outcome, published.queue) == ("published", name)
        assert (ended.outcome, ended.reason, ended.queue, ended.generation) == ("dead_lettered", reason, name, 0)
        assert ended.at_ms >= published.at_ms
        kept = letters(rabbit, "gone" if name == "timed" else f"DLQ.{name}")[sent[name]]
        assert (kept.deaths[0]["queue"], kept.deaths[0]["reason"], kept.origin["queue"]) == (name, reason, name)

    died_ms = letters(rabbit, "DLQ.refused")[sent["refused"]].deaths[0]["last"]
    until(lambda: time.time() * 1000 > died_ms, what="its second to be over: a redrive leaves alone what dies later")
    assert Place.command(app, "dlq", "redrive", "DLQ.refused", "--all")["moved"] == 1
    assert rabbit.depth("refused") == 1


def test_a_death_that_is_imported_twice_is_one_event(rabbit: Rabbit) -> None:
    """Two copies of a message, as after a crash between publish and acknowledge, share one event id; a new death has another."""
    app = declared(rabbit)
    message = task_message()
    put(rabbit, "", "refused", message)
    reject(rabbit, "refused")
    with rabbit.connection() as connection:
        channel = connection.default_channel
        letter = until(lambda: channel.basic_get(DIED), what="the letter")
        channel.basic_ack(letter.delivery_tag)
    for _ in range(2):
        put(rabbit, "", DIED, message, **{"x-death": letter.headers["x-death"]})
        assert imported(rabbit, app, 1)["moved"] == 1
    assert [(event.outcome, event.reason) for event in rabbit.events()] == [
        ("received", "unannounced"),
        ("dead_lettered", "rejected"),
    ], "no producer of ours has told of it: its life is opened, once"
    again = task_message(message["headers"]["id"], redelivery={"version": 1, "generation": 1, "origin": {"queue": "refused"}})
    put(rabbit, "", "refused", again)
    reject(rabbit, "refused")
    assert imported(rabbit, app, 1)["moved"] == 1
    assert [(event.generation, event.outcome) for event in rabbit.events()][2:] == [(1, "dead_lettered")]


def test_what_is_no_death_stays_and_says_why(rabbit: Rabbit) -> None:
    """No `x-death`, a delay that has ended, or a queue without dead letters; a delay before a death is ignored."""
    app, names = declared(rabbit), AmqpNames()
    with rabbit.connection() as connection:
        declare_delays(connection.connection, names)
        with connection.connection.channel() as channel:
            for queue in (DIED, "timed"):
                bind_to_delays(channel, queue, names)
    waited, plain, delayed, unkept = (task_message() for _ in range(4))
    put(rabbit, "", DIED, plain)
    put(rabbit, names.level(0), delay_key(DIED, 1), delayed)
    put(rabbit, names.level(0), delay_key("timed", 1), waited)
    put(rabbit, "", "unkept", unkept)
    reject(rabbit, "unkept")
    done = imported(rabbit, app, 4)
    assert (done["moved"], done["looked_at"], done["reasons"]) == (1, 4, {"expired": 1})
    assert sorted(why.partition(":")[0] for why in done["left"]) == [
        "RabbitMQ did not make this dead letter",
        "it only waited in the delay store, and has not died",
        "the policy of queue 'unkept' keeps no dead letters",
    ]
    assert rabbit.depth(DIED) == 3
    opening, event = rabbit.events()
    assert (opening.outcome, opening.task_id) == ("received", waited["headers"]["id"])
    assert (event.task_id, event.queue, event.reason) == (waited["headers"]["id"], "timed", "expired")
    assert list(letters(rabbit, "gone")) == [waited["headers"]["id"]]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("refused", "its messages are not dead"),
        ("nowhere", "there is no queue 'nowhere' on the broker"),
        ("redelivery.outcomes", "is a name that redelivery uses itself"),
        ("w0@shop.celery.pidbox", "is a name that Celery uses itself"),
    ],
)
def test_a_queue_that_lives_or_is_not_there_is_refused(rabbit: Rabbit, name: str, word: str) -> None:
    """The import ends with exit code 2 and one line, and reads nothing."""
    app = declared(rabbit)
    put(rabbit, "", "refused", task_message())
    with pytest.raises(AssertionError, match=word):
        Place.command(app, "dlq", "import", name)
    assert rabbit.depth("refused") == 1
    assert rabbit.depth("redelivery.outcomes") in {None, 0}


def test_on_redis_there_is_nothing_to_import(server: Server) -> None:
    """On Redis no message dies without us: exit code 2, and one line."""
    done = Desk(server).run("dlq", "import", "died")
    assert done.exit_code == 2
    assert "Redis makes no dead letters by itself" in done.output


# the recipe


def recipe(url: str) -> str:
    """The block of `docs/rabbitmq.md`, with this broker, and with seconds for its minutes."""
    text = (ROOT / "docs" / "rabbitmq.md").read_text()
    (block,) = re.findall(
        r"^<!-- run by tests/brokers/rabbitmq/test_deaths.py -->\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    for written, here in (("amqp://localhost//", url), ("expires=300", "expires=6"), ("message_ttl=30", "message_ttl=2")):
        assert block.count(written) == 1, written
        block = block.replace(written, here)
    return str(block)


def is_there(rabbit: Rabbit, queue: str) -> bool:
    """Whether the queue exists; asking a queue for its depth would count as using it."""
    names = f'[element(4, amqqueue:get_name(Q)) || Q <- rabbit_amqqueue:list(<<"{rabbit.name}">>)]'
    return rabbit.node.evaluate(f'lists:member(<<"{queue}">>, {names}).') == "true"


def consuming(shop: Shop) -> Worker:
    """Start a worker, and wait until it consumes: what comes to a queue like this must be taken at once."""
    worker = shop.start(pool="solo", wait=False)
    until(lambda: " ready." in worker.text, 120, "the worker to consume")
    return worker


def test_the_recipe_of_a_queue_that_vanishes_works_as_it_is_written(rabbit: Rabbit, folder: Path) -> None:
    """When its consumer is gone, waiting messages die into the books and the queue expires; a new consumer gets them redriven."""
    (folder / "recipe.py").write_text(recipe(rabbit.url))
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(recipe(rabbit.url), "recipe.py", "exec"), names)  # noqa: S102 - the document's own
    app, show = names["app"], names["show"]
    names["prepare"]()
    server: Any = rabbit
    shop = Shop(server, folder, module="recipe")
    try:
        worker = consuming(shop)
        shop.ended(str(show.delay(1).id), "succeeded")
        (line,) = [each for each in worker.text.splitlines() if "broker.bypasses" in each]
        assert "arguments=x-dead-letter-exchange,x-message-ttl,x-expires" in line
        assert "redelivery dlq import" in line
        worker.kill()
        ids = [str(show.delay(number).id) for number in range(3)]
        until(lambda: not is_there(rabbit, "prices"), what="the queue to have expired")

        assert imported(rabbit, app, 3)["reasons"] == {"expired": 3}
        for each in ids:
            assert shop.outcomes_of(each) == ["published", "dead_lettered"]
        done = Place.command(app, "dlq", "redrive", "DLQ.prices", "--all")
        assert (done["moved"], sum(done["left"].values())) == (0, 3)

        consuming(shop)
        assert Place.command(app, "dlq", "redrive", "DLQ.prices", "--all")["moved"] == 3
        for each in ids:
            shop.ended(each, "succeeded")
            # the command, which has ended, records what it has published: a quick worker may have recorded its success before that
            assert sorted(shop.outcomes_of(each)) == ["dead_lettered", "published", "redriven", "succeeded"]
    finally:
        shop.stop()
