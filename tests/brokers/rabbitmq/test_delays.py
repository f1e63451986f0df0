"""Delays on RabbitMQ: none ends early, and each ends; the level in which a message lies shows how long it still waits."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import BITS, MAX_DELAY, AmqpNames, delay_key
from redelivery.middleware.brokers.rabbitmq.peek import Look
from redelivery.middleware.messages.envelope import HEADER, Envelope
from redelivery.middleware.messages.steps import iso, opened, sealed
from tests.conformance.brokers import Place
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.rabbit import Node, Rabbit

pytestmark = pytest.mark.xdist_group("amqp_delays")

NAMES = AmqpNames()
#: Whole seconds, as the levels have them; the last one passes through four of them.
SECONDS = (1, 2, 5, 61)
EACH = 100
#: Of an exchange, by a key, to an exchange or a queue (its kind), of this name.
Binding = tuple[str, str, str, str]
#: Delays so long that no test waits for their end.
LONG = (2**9 + 300, 2**16 + 5000, 2**22 + 5000, MAX_DELAY - 5000)


@pytest.fixture(scope="module")
def rabbit(rabbit_node: Node) -> Iterator[Rabbit]:
    """A virtual host of this module's own."""
    made = rabbit_node.vhost()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def shop(rabbit: Rabbit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One worker."""
    server: Any = rabbit
    made = Shop(server, tmp_path_factory.mktemp("delays"))
    made.start(pool="threads", concurrency=2)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def dues(shop: Shop) -> dict[int, dict[str, float]]:
    """For each delay, when each task is due; all tasks are published at once, so that they wait at the same time."""
    made: dict[int, dict[str, float]] = {seconds: {} for seconds in SECONDS}
    for _ in range(EACH):
        for seconds, of_it in made.items():
            due = time.time() + seconds
            of_it[shop.send("ok", countdown=seconds)] = due
    return made


def level_of(seconds: int) -> str:
    """The queue of the highest bit of this many seconds."""
    return NAMES.level(seconds.bit_length() - 1)


def lying(rabbit: Rabbit, queue: str) -> dict[str, tuple[bytes, str]]:
    """What lies in a queue, by task id: its bytes and its routing key."""
    with rabbit.connection() as connection, Look(connection, queue) as look:
        return {str(opened(found.raw)["headers"]["id"]): (found.raw, found.routing_key) for found in look}


def seconds_of(routing_key: str) -> int:
    """The number of seconds that the bits of a routing key encode."""
    return int(routing_key[: 2 * BITS].replace(".", ""), 2)


def test_what_waits_for_long_lies_in_the_level_of_its_highest_bit(rabbit: Rabbit, shop: Shop) -> None:
    """Up to eight years and a half: the bits of its routing key are its seconds."""
    for seconds in LONG:
        task_id = shop.send("ok", countdown=seconds)
        shop.ended(task_id, "deferred")
        _, key = until(lambda: lying(rabbit, level_of(seconds)).get(task_id), what=f"it to lie in {level_of(seconds)}")  # noqa: B023 - asked now
        assert seconds - 200 <= seconds_of(key) <= seconds
        assert not shop.runs(task_id)


def test_what_is_too_long_for_the_levels_waits_in_parts(rabbit: Rabbit, shop: Shop) -> None:
    """For 2**28 seconds and more: after its first part it is put back, and it runs once, when it is due and not before."""
    task_id = shop.send("ok", countdown=MAX_DELAY + 100_000)
    shop.ended(task_id, "deferred")
    longest = NAMES.level(BITS - 1)
    raw, key = until(lambda: lying(rabbit, longest).get(task_id), what="it to wait")
    assert seconds_of(key) == MAX_DELAY - 1
    assert "delay.parted" in shop.workers[0].text
    come_out(rabbit, longest, raw)
    until(lambda: shop.outcomes_of(task_id).count("deferred") == 2, what="the worker to put it back")
    raw, key = until(lambda: lying(rabbit, longest).get(task_id), what="it to wait again")
    assert seconds_of(key) == MAX_DELAY - 1
    assert not shop.runs(task_id)
    due = time.time() + 3
    come_out(rabbit, longest, with_eta(raw, due))
    shop.ended(task_id, "succeeded")
    (run,) = shop.runs(task_id)
    assert run["at"] >= due


def come_out(rabbit: Rabbit, level: str, raw: bytes) -> None:
    """Deliver a message from its level to its queue, as the broker would after eight years."""
    with rabbit.connection() as connection:
        channel = connection.connection.channel()
        with Look(connection, level) as look:
            for found in look:
                if opened(found.raw)["headers"]["id"] == opened(raw)["headers"]["id"]:
                    look.take(found)
        channel.confirm_select()
        amqp.Channel.basic_publish_confirm(channel, message_of(raw, target=("", "celery")), "", "celery")


def with_eta(raw: bytes, due: float) -> bytes:
    """The message, as if that much of its time had passed."""
    message = opened(raw)
    return sealed({**message, "headers": {**message["headers"], "eta": iso(round(due * 1000))}})


def test_an_operator_may_put_off_what_waits_for_longer_than_the_levels_can(rabbit: Rabbit, shop: Shop) -> None:
    """`delayed reschedule --in 4000d`: it waits in parts, too."""
    task_id = shop.send("ok", countdown=LONG[0])
    shop.ended(task_id, "deferred")
    until(lambda: lying(rabbit, level_of(LONG[0])).get(task_id), what="it to wait")
    began = time.time()
    Place.command(shop.app, "delayed", "reschedule", task_id, "--in", "4000d")
    raw, _ = until(lambda: lying(rabbit, NAMES.level(BITS - 1)).get(task_id), what="it to wait for longer")
    (shown,) = Place.command(shop.app, "delayed", "show", task_id)
    due = time.mktime(time.strptime(shown["headers"]["eta"][:19], "%Y-%m-%dT%H:%M:%S"))
    assert abs(due - (began + 4000 * 86_400)) < 86_400
    assert Envelope.of(opened(raw)["headers"]).served_eta is None
    assert HEADER in opened(raw)["headers"]


@pytest.fixture(scope="module")
def levels(rabbit: Rabbit, shop: Shop) -> tuple[list[Binding], dict[str, tuple[int, str]]]:
    """The broker's own bindings (exchange, key, exchange or queue), and for each level's queue its seconds and next exchange."""
    assert shop.workers  # whose start has declared them
    code = (
        "Kind = fun(R) -> element(3, R) end, Name = fun(R) -> element(4, R) end, "
        'Arg = fun(Q, A) -> case lists:keyfind(A, 1, amqqueue:get_arguments(Q)) of {_, _, V} -> V; false -> <<"">> end end, '
        'lists:flatten([[io_lib:format("b\\t~s\\t~s\\t~s\\t~s\\n", '
        "[Name(element(2, B)), element(3, B), Kind(element(4, B)), Name(element(4, B))]) "
        f'|| B <- rabbit_binding:list(<<"{rabbit.name}">>)], '
        '[io_lib:format("q\\t~s\\t~p\\t~s\\n", [Name(amqqueue:get_name(Q)), Arg(Q, <<"x-message-ttl">>), '
        f'Arg(Q, <<"x-dead-letter-exchange">>)]) || Q <- rabbit_amqqueue:list(<<"{rabbit.name}">>)]]).'
    )
    lines = [line.split("\t") for line in json.loads(rabbit.node.evaluate(code)).splitlines()]
    bindings = [(line[1], line[2], line[3], line[4]) for line in lines if line[0] == "b" and line[1]]
    queues = {line[1]: (int(line[2]), line[3]) for line in lines if line[0] == "q" and line[2].isdigit()}
    return bindings, queues


@settings(max_examples=60, deadline=None)
@given(seconds=st.integers(1, MAX_DELAY - 1))
@example(seconds=1)
@example(seconds=61)
@example(seconds=MAX_DELAY - 1)
def test_the_levels_on_its_way_add_up_to_a_delay(levels: tuple[list[Binding], dict[str, tuple[int, str]]], seconds: int) -> None:
    """By the broker's bindings and times to live there is exactly one way to the queue, and its levels add up to the delay."""
    bindings, queues = levels
    place, key, waited = level_of(seconds), delay_key("celery", seconds), 0
    for _ in range(2 * BITS):
        ((kind, place),) = {(kind, to) for exchange, pattern, kind, to in bindings if exchange == place and matches(pattern, key)}
        if place == "celery":
            break
        if kind == "queue":
            time_to_live, place = queues[place]
            waited += time_to_live // 1000
    assert (place, waited) == ("celery", seconds)


def matches(pattern: str, key: str) -> bool:
    """Whether a topic exchange's pattern matches this key: `*` is one word, `#` any number of words."""
    words = [{"*": "[^.]+", "#": ".*"}.get(word, re.escape(word)) for word in pattern.split(".")]
    return re.fullmatch(r"\.".join(words), key) is not None


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seconds", [*SECONDS[:-1], pytest.param(SECONDS[-1], marks=pytest.mark.full)])
def test_no_delay_ends_early_and_each_ends(shop: Shop, dues: dict[int, dict[str, float]], seconds: int) -> None:
    """A hundred of each wait beside each other: each runs once, and not before its time."""
    due = dues[seconds]

    def ran() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {task_id: [] for task_id in due}
        for run in shop.runs():
            if run["id"] in found:
                found[run["id"]].append(run["at"])
        return found

    until(lambda: all(ran().values()), seconds + 200, f"all {len(due)} that wait {seconds} s to run")
    for task_id, at in ran().items():
        assert len(at) == 1
        assert at[0] >= due[task_id]
