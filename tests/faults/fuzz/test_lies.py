"""Forged headers: any publisher can write our headers, but cannot move messages elsewhere by that, or break a tool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Exchange, Queue, binding
from kombu.transport.redis import Channel as RedisChannel

from redelivery import RedeliveryPolicy
from redelivery.errors import ConfigurationError, EnvelopeError, InputError
from redelivery.middleware.brokers.rabbitmq.journal.letter_look import LOOKING
from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import JOURNAL, AmqpNames
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.middleware.messages.envelope import DELIVERED, HEADER, Envelope, unreadable
from redelivery.middleware.messages.steps import sealed
from redelivery.middleware.transitions.homes import Homes, address_of
from redelivery.settings import AddressPattern, names
from redelivery.workers.brokers.rabbitmq import delay_store as amqp_delayed
from redelivery.workers.brokers.rabbitmq.watching import WATCHING
from redelivery.workers.duties.watch.letter_watch import LetterWatch
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.move import move
from redelivery.workers.operations.letters.redrive.redrive import Edit, redrive
from tests.conformance.brokers import Place, letter
from tests.support.desk import LETTERS, QUEUE, Desk, each_desk, task_message
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.rabbit import Rabbit
    from tests.support.servers import Server

__all__ = ["each_desk"]

KEYS, NAMES = Keys(), AmqpNames()
#: Names that must never be the target of a message.
TAKEN = (
    KEYS.destinations, KEYS.recovering, KEYS.outcomes, KEYS.due("celery"), KEYS.unacked, KEYS.unacked_index,
    KEYS.bindings("celery"), RedisChannel.unacked_mutex_key, NAMES.outcomes, NAMES.level(3), NAMES.delivery_exchange,
    NAMES.delays_declared, "redelivery.start.abc", "redelivery.watching", "celery.pidbox", "w@host.celery.pidbox",
    "0b7e.reply.celery.pidbox", "redelivery.exporting", JOURNAL, LOOKING, WATCHING, NAMES.audit, "chord-unlock-1",
    "celeryev", "celeryev.0b7e", "celery_delayed_27",
    "celery-task-meta-1", "amq.topic", "amq.gen-x", "a\x00b", "a\x1b[2J",
    "\ud800", "\u202eb", "q\x06\x169", "", "x" * 256,
)  # fmt: skip
#: Headers that no tool may trust.
HOSTILE: dict[str, Any] = {
    "past": {"deaths": [{"queue": QUEUE, "reason": "exhausted", "last": -(10**400), "first": 10**400}]},
    "endless": {"attempts": [{"at": float("inf"), "delay": float("inf"), "worker": 5, "exception": []}] * 30},
    "nan": {"deaths": [{"last": float("nan"), "first": "soon", "count": [], "queue": {}, "reason": 7}], "first_seen": float("nan")},
    "types": {"origin": [], "failure": {"type": 5, "message": {}, "traceback": 1}, "first_death": {"at": {}, "queue": 1}},
    "lists": {"deaths": "x", "attempts": {"a": 1}, "failure": [1], "origin": {"queue": ["orders"]}},
    "surrogates": {
        "deaths": [{"queue": "\ud800", "reason": "\ud800", "last": 1}],
        "failure": {"type": "\ud800", "message": "\udfff", "fingerprint": "\ud800"},
    },
    "long": {
        "failure": {"type": "x" * 100_000, "message": "y" * 100_000},
        "deaths": [{"last": 2**53, "routing_keys": ["k"] * 999}] * 99,
    },
    "lifetimes": {"deaths": [{"last": 1, "reason": "expired", "expires": float("inf"), "time_to_live": 10**300, "published": {}}]},
    "numbers": {"attempt": 10**400, "generation": -1, "delivery": 0.5, "handled": True, "version": "1", "since": None},
    "header": 5,
}


def nested(depth: int) -> Any:
    """Lists in each other."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def origin(queue: Any, **more: Any) -> dict[str, Any]:
    """A header that claims where its dead letter came from."""
    death = {"queue": QUEUE, "reason": "exhausted", "last": 1, "first": 1, "generation": 0}
    return {"origin": {"queue": queue, **more}, "deaths": [death], "first_seen": 1}


def forged(undelivered: str) -> dict[str, Any]:
    """A header that claims that its dead letter waits for a queue."""
    death = {"queue": "celery", "reason": "exhausted", "last": 1, "first": 1, "generation": 0}
    return {"deaths": [death], "parked": True, "undelivered": undelivered, "first_seen": 1}


# names


@pytest.mark.parametrize("name", TAKEN, ids=ascii)
def test_a_name_that_something_uses_is_refused_wherever_a_person_gives_it(name: str) -> None:
    """In every setting that names a queue."""
    assert names.objection(name) is not None
    for setting in ("dead_letter_queue", "expiry_queue"):
        with pytest.raises(ConfigurationError, match=setting):
            RedeliveryPolicy(**{setting: name})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["orders", "DLQ.orders", "eu.orders", "заказы", "redelivery", "celery", "default", "a b", "x" * 255]
)
def test_the_name_of_an_ordinary_queue_is_taken(name: str) -> None:
    """Even if it resembles one of ours."""
    assert names.objection(name) is None


def test_a_prefix_that_makes_names_of_ours_is_refused() -> None:
    """Otherwise a dead letter could overwrite a key of ours."""
    for fields in ({"dead_letter_queue_prefix": "redelivery:"}, {"dead_letter_queue_suffix": ".pidbox"}):
        with pytest.raises(ConfigurationError, match="make a name that no queue may have"):
            RedeliveryPolicy(**fields)  # type: ignore[arg-type]


def test_a_key_of_another_type_is_no_target(desk: Desk) -> None:
    """Neither for a redrive, a move, nor a worker's settings."""
    desk.die()
    desk.client.set("cache", "1")
    for words in (
        ("redrive", "--to", "cache"),
        ("move", "--to", "cache", "--create"),
        ("move", "--to", KEYS.destinations, "--create"),
    ):
        done = desk.run("dlq", words[0], LETTERS, "--all", *words[1:])
        assert (done.exit_code, "name a queue of the app" in done.stderr) == (2, True), done.output
    with pytest.raises(InputError, match="key of a string"):
        move(desk.transport, LETTERS, "cache", Filter())
    assert (desk.client.get("cache"), desk.client.llen(LETTERS), desk.client.exists(KEYS.destinations)) == (b"1", 1, 0)


def test_names_that_kombu_was_told_to_use_are_no_targets(any_server: Server) -> None:
    """The names of kombu's hashes on Redis (`unacked_key` and the like), whether the keys exist or not."""
    desk = Desk(any_server)
    names = {"unacked_key": "held", "unacked_index_key": "held_index", "unacked_mutex_key": "held_mutex"}
    desk.app.conf.broker_transport_options = names
    desk.die()
    for name in names.values():
        for words in (("redrive", "--create", "--to"), ("move", "--create", "--to")):
            done = desk.run("dlq", words[0], LETTERS, "--all", *words[1:], name)
            assert (done.exit_code, "is a name that kombu uses itself" in done.stderr) == (2, True), done.output
        with pytest.raises(EnvelopeError, match="kombu"):
            Homes(desk.transport, LETTERS).to(name)
    assert desk.client.llen(LETTERS) == 1
    desk.transport.close()


def test_a_worker_does_not_start_where_its_dead_letters_have_no_place(shop: Callable[..., Shop]) -> None:
    """A key of another type has the name of its dead-letter queue."""
    here = shop(settings={"queues": {"#": {"dead_letter_queue": "cache"}}})
    here.server.client.set("cache", "1")
    worker = here.start(wait=False, pool="solo")
    assert worker.process.wait(60) != 0
    assert "dead-letter queue 'cache' is the key of a string on this server" in worker.text


# what waits for a missing dead-letter queue


def test_a_forged_header_moves_a_message_nowhere_but_to_its_own_dead_letter_queue(shop: Callable[..., Shop]) -> None:
    """Whatever queue or key it names is unchanged, and so are the keys that workers share."""
    here = shop(settings={"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}})
    client = here.server.client
    client.set("cache", "1")
    here.start(pool="threads")
    wanted = ("foreign", "cache", *(name for name in TAKEN if name.isprintable() and name))
    before = set(client.keys())
    for number, name in enumerate(wanted):
        message = {**task_message(f"forged-{number}", "tests.support.shop.ok"), "headers": {}}
        message["headers"] = {**task_message(f"forged-{number}", "tests.support.shop.ok")["headers"], HEADER: forged(name)}
        client.lpush("celery", sealed(message))
    until(lambda: client.llen("DLQ.celery") == len(wanted), what=f"all of them: {here.leftovers()}")
    assert {each["headers"]["id"] for each in here.letters("DLQ.celery")} == {f"forged-{number}" for number in range(len(wanted))}
    new = {name.decode() for name in set(client.keys()) - before}
    assert {name for name in new if not name.startswith("redelivery:")} <= {"DLQ.celery", "unacked", "unacked_index"}
    assert {client.type(name) for name in (KEYS.unacked, KEYS.recovering, KEYS.destinations)} <= {b"none", b"hash", b"zset"}
    assert not client.exists("foreign", "redelivery:recovering")
    assert client.get("cache") == b"1"
    task_id = here.send("fails", 1)
    here.ended(task_id, "succeeded")


def test_a_forged_header_declares_no_queue(rabbit: Rabbit, tmp_path: Path) -> None:
    """On RabbitMQ, too, it goes to its own dead-letter queue."""
    here = Shop(rabbit, tmp_path, settings={"queues": {"#": {"redelivery_delay": 1}}})  # type: ignore[arg-type]
    try:
        here.start(pool="threads")
        wanted = ("foreign", "redelivery.outcomes", "celery.pidbox", "amq.topic")
        with rabbit.connection() as connection:
            connection.default_channel.queue_declare("mine", durable=True, auto_delete=False)
            for number, name in enumerate(("mine", *wanted)):
                message = task_message(f"forged-{number}", "tests.support.shop.ok")
                message["headers"][HEADER] = forged(name)
                made = message_of(sealed(message), target=("", "celery"))
                connection.connection.channel().basic_publish(made, "", "celery")
        until(lambda: rabbit.depth("DLQ.celery") == 5, what="all of them")
        assert rabbit.depth("foreign") is None
        assert rabbit.depth("mine") == 0
        assert all(event.outcome in {"received", "dead_lettered", "published"} for event in rabbit.events())
    finally:
        here.stop()


# where a redrive goes


@pytest.mark.parametrize("name", [name for name in (*TAKEN, "other_app", "unknown") if name], ids=ascii)
def test_a_letter_goes_back_to_a_queue_of_the_app_alone(desk: Desk, name: str) -> None:
    """Otherwise it stays, and is counted; `--to` sends it to a queue of the app."""
    desk.client.lpush("other_app", b"theirs")
    raw = sealed({**task_message("a"), "headers": {**task_message("a")["headers"], HEADER: origin(name)}})
    desk.die(task_message("b"))
    desk.client.rpush(LETTERS, raw)
    before = set(desk.client.keys())
    done = redrive(desk.transport, LETTERS, Filter())
    assert (done.moved, sum(done.left.values()), dict(done.by_target)) == (1, 1, {QUEUE: 1})
    assert any(each.startswith(("its origin", "it names no origin")) for each in done.left), done.left
    with pytest.raises(EnvelopeError):
        Homes(desk.transport, LETTERS).of(Envelope.of({HEADER: origin(name)}))
    assert desk.client.llen("other_app") == 1
    assert set(desk.client.keys()) <= before | {QUEUE.encode()}
    assert redrive(desk.transport, LETTERS, Filter(), edit=Edit(queue=QUEUE)).moved == 1
    assert desk.ids() == ["b", "a"]


def routed() -> None:
    """A task that has a queue of its own."""


def test_queues_that_only_routes_tasks_policies_or_names_tell_of_are_the_apps(desk: Desk) -> None:
    """A queue that is declared only when it is first used belongs to the app, too."""
    desk.app.conf.task_routes = ([{"desk.*": {"queue": "routed"}}, ("other.*", "paired")], {"x": {"queue": Queue("object")}})
    desk.app.task(name="desk.tasked")(routed).queue = "tasked"
    homes = Homes(desk.transport, "graveyard")
    for name in (QUEUE, "routed", "paired", "object", "tasked"):
        assert homes.objection_to(name) is None, name
    assert homes.objection_to("auto") is not None
    assert Homes(desk.transport, "DLQ.auto").objection_to("auto") is None
    assert Homes(desk.transport, "DLQ.DLQ.auto").objection_to("auto") is None
    assert Homes(desk.transport, "DLQ.xauto").objection_to("auto") is not None
    desk.client.hset(desk.keys.dead_letter_queues, "graveyard", "auto")
    assert Homes(desk.transport, "graveyard").objection_to("auto") is None


@pytest.mark.parametrize(
    ("exchange", "key", "goes"),
    [
        ("shop", "eu.pack", ("shop", "eu.pack")),
        ("direct", "pack", ("direct", "pack")),
        ("fan", "whatever", ("fan", "whatever")),
        ("shop", "us.pack", ("", "topics")),
        ("direct", "other", ("", "topics")),
        ("shop", "redelivery.outcomes", ("", "topics")),
        ("amq.topic", "redelivery.outcomes", ("", "topics")),
        ("celery.pidbox", "", ("", "topics")),
        ("", "celery.pidbox", ("", "topics")),
        ("", "topics", ("", "topics")),
    ],
)
def test_an_exchange_is_believed_where_the_app_declares_it_for_that_queue(exchange: str, key: str, goes: tuple[str, str]) -> None:
    """Otherwise the message goes only to its queue."""
    app = Celery("bound", broker="memory://", set_as_current=False)
    shop, direct, fan = Exchange("shop", "topic"), Exchange("direct", "direct"), Exchange("fan", "fanout")
    ways = [(shop, "eu.#"), (direct, "pack"), (fan, "")]
    app.conf.task_queues = [Queue("topics", [binding(each, routing_key=way) for each, way in ways])]
    assert address_of(app, "topics", exchange, key) == goes


def test_a_redrive_on_rabbitmq_broadcasts_and_forges_nothing(rabbit: Rabbit, tmp_path: Path) -> None:
    """`origin` and `redelivery-delivered` name another exchange or queue: the dead letter goes to its own queue, or stays."""
    place = Place("rabbit-classic", rabbit, tmp_path)
    desk = place.desk()
    with rabbit.connection() as connection:
        channel = connection.default_channel
        channel.exchange_declare("celery.pidbox", "fanout", durable=False, auto_delete=False)
        for name, exchange, key in (("spy", "celery.pidbox", ""), ("books", "amq.topic", "redelivery.outcomes")):
            channel.queue_declare(name, durable=True, auto_delete=False)
            channel.queue_bind(name, exchange, key)
    ways = [("celery.pidbox", ""), ("amq.topic", "redelivery.outcomes"), ("", "spy")]
    raws = [
        letter({**task_message(f"l{number}"), "properties": task_message()["properties"] | {"delivery_info": _came(way)}})
        for number, way in enumerate(ways)
    ]
    stay = sealed({**task_message("stays"), "headers": {**task_message("stays")["headers"], HEADER: origin("spy")}})
    place.put(*raws, stay)
    said = desk.run("dlq", "redrive", LETTERS, "--all", "--dry-run")
    assert f"3 dead letters of {LETTERS} would go back: {QUEUE} 3." in said.output, said.output
    done = redrive(desk.transport, LETTERS, Filter())
    assert (done.moved, dict(done.by_target), sum(done.left.values())) == (3, {QUEUE: 3}, 1)
    until(lambda: rabbit.depth(QUEUE) == 3, what="the letters")
    assert (rabbit.depth("spy"), rabbit.depth(LETTERS)) == (0, 1)
    assert [event.outcome for event in rabbit.events()] == ["redriven"] * 3


def _came(way: tuple[str, str]) -> dict[str, str]:
    return {"exchange": way[0], "routing_key": way[1]}


def test_what_a_header_says_of_its_delivery_sends_a_retry_nowhere(rabbit: Rabbit, tmp_path: Path) -> None:
    """`self.retry` with other arguments publishes a new message to its own queue, whatever `redelivery-delivered` says."""
    here = Shop(rabbit, tmp_path, module="tests.support.hostile.lied_to")  # type: ignore[arg-type]
    try:
        here.start(pool="threads")
        with rabbit.connection() as connection:
            connection.default_channel.queue_declare("spy", durable=True, auto_delete=False)
            message = task_message("again", "tests.support.hostile.lied_to.again")
            message["headers"][DELIVERED] = {"exchange": "", "routing_key": "spy"}
            made = message_of(sealed(message), target=("", "celery"))
            connection.connection.channel().basic_publish(made, "", "celery")
        here.ended("again", "succeeded")
        assert rabbit.depth("spy") == 0
    finally:
        here.stop()


def test_a_message_that_is_promoted_goes_where_it_would_have_come_out() -> None:
    """A stranger can publish into the delay store, so a queue that only the routing key names is no target."""
    exchange, key = amqp_delayed.end_of(NAMES, "spy")
    assert (exchange, key.replace("0.", "")) == (NAMES.delivery_exchange, "spy")
    assert AddressPattern(NAMES.binding_of("spy")).matches(key)
    assert not AddressPattern(NAMES.binding_of("other")).matches(key)


def test_a_handlers_letter_goes_back_to_a_queue_of_the_app_alone(shop: Callable[..., Shop]) -> None:
    """`letter.redrive()` to another place is refused at once; the dead letter is parked, and nothing else is touched."""
    here = shop(
        module="tests.support.hostile.lied_to", settings={"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}}
    )
    client = here.server.client
    client.lpush("other_app", b"theirs")
    here.start("-Q", "celery,handled,DLQ.handled", pool="threads")
    for number, name in enumerate(("other_app", "celery.pidbox", "redelivery:delayed", "handled")):
        raw = task_message(f"h{number}", "tests.support.hostile.lied_to.take")
        raw["headers"][HEADER] = {
            **origin(name),
            "deaths": [{"queue": "handled", "reason": "exhausted", "last": 1, "generation": 0}],
        }
        client.lpush("DLQ.handled", sealed(raw))
    until(lambda: client.llen("DLQ.DLQ.handled") == 3 and here.runs("h3"), what=f"all to be decided: {here.leftovers()}")
    assert {each["headers"]["id"] for each in here.letters("DLQ.DLQ.handled")} == {"h0", "h1", "h2"}
    assert (client.llen("other_app"), client.exists("celery.pidbox")) == (1, 0)
    assert client.type("redelivery:delayed") in {b"none", b"zset"}


# headers that cannot be read


@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_a_header_says_each_number_and_text_of_it_can_be_used(kind: str) -> None:
    """Values that cannot be read are left out, and named."""
    headers = {HEADER: HOSTILE[kind]}
    envelope = Envelope.of(headers)
    written = json.dumps(envelope.to_header(), allow_nan=False).encode()
    assert Envelope.of({HEADER: json.loads(written)}) == envelope
    assert len(written) < 200_000
    assert unreadable(headers) or kind == "surrogates", envelope
    assert unreadable({HEADER: json.loads(written)}) == []
    for each in (*envelope.deaths, *envelope.attempts):
        assert all(isinstance(each.get(name, 0), int) for name in ("first", "last", "at", "delay", "count", "generation"))


@pytest.mark.parametrize("kind", [*HOSTILE, "nested", "headers"])
def test_one_hostile_letter_breaks_no_tool(desk: Desk, kind: str, tmp_path: Path) -> None:
    """Each command answers, and its answer about the other dead letters is unchanged."""
    task_id = desk.die()
    header = {"deaths": [{"last": 5, "x": nested(600)}], "y": nested(600)} if kind == "nested" else HOSTILE.get(kind)
    message = task_message("hostile")
    message["headers"][HEADER] = header
    if kind == "headers":
        message["headers"].update(origin=nested(600), replaced_task_nesting=10**400, task="\ud800", root_id=float("nan"))
        message["properties"]["priority"] = 10**400
    for name, end in ((LETTERS, desk.client.lpush), (LETTERS, desk.client.rpush)):
        end(name, sealed(message))
    commands = [
        *(
            ("dlq", "list"),
            ("dlq", "show", LETTERS),
            ("dlq", "show", LETTERS, "--full"),
            ("dlq", "causes"),
            ("dlq", "export", LETTERS),
        ),
        *(("dlq", "export", LETTERS, "--to", str(tmp_path / "letters")), ("dlq", "redrive", LETTERS, "--all", "--dry-run")),
        *(("dlq", "purge", LETTERS, "--all", "--dry-run"), ("dlq", "move", LETTERS, "--all", "--to", "x", "--create", "--dry-run")),
        *(
            ("metrics",),
            ("task", "show", "hostile"),
            ("inventory", "export", "--to", str(tmp_path / "inventory")),
            ("delayed", "list"),
        ),
    ]
    for words in commands:
        for form in ((), ("--json",)):
            if form and words[0] == "metrics":
                continue
            done = desk.run(*words, *form)
            assert done.exit_code == 0, (words, done.output, done.exception)
            if form and words[:2] != ("dlq", "export"):
                json.loads(done.stdout, parse_constant=_refused)
    shown = desk.run("dlq", "show", LETTERS, "--id", "hostile").output
    assert ("unreadable" in shown) == bool(unreadable(message["headers"]))
    assert desk.run("dlq", "show", LETTERS, "--id", task_id).exit_code == 0


def _refused(word: str) -> Any:
    message = f"{word} is not JSON"
    raise AssertionError(message)


def test_the_watch_over_the_letters_goes_on_beside_a_hostile_one(desk: Desk) -> None:
    """It reads the oldest dead letter of each queue."""
    for header in HOSTILE.values():
        message = task_message("hostile")
        message["headers"][HEADER] = header
        desk.client.delete(LETTERS)
        desk.client.rpush(LETTERS, sealed(message))
        desk.client.hset(desk.keys.dead_letter_queues, LETTERS, QUEUE)
        watch = LetterWatch(desk.install)
        watch.step()
        watch.step()
