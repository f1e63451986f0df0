"""RabbitMQ that goes wrong under a worker: queues deleted, connections closed, an alarm, a restart. Nothing is lost."""

from __future__ import annotations

import base64
import functools
import json
import struct
import threading
from typing import TYPE_CHECKING, Any, cast

import amqp
import pytest
from structlog.testing import capture_logs

from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import OUTCOMES, AmqpNames
from redelivery.middleware.brokers.rabbitmq.publisher import Move
from redelivery.middleware.brokers.rabbitmq.topology import has_queue
from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.messages.steps import sealed
from redelivery.middleware.ports import Answer, ignore
from tests.conformance.brokers import Place
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.desk import task_message
from tests.support.rabbit import TAP
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit

#: Without confirms a producer cannot know that what it published into a closed connection is gone.
CONFIRMED = {"broker_transport_options": {"confirm_publish": True}}
#: How each acknowledgement frame begins, after its channel: thirteen bytes, basic.ack.
ACKNOWLEDGEMENT = struct.pack(">IHH", 13, 60, 80)
POLICY = {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 2}


@pytest.fixture
def rabbit_shop(rabbit: Rabbit, folder: Path) -> Iterator[Callable[..., Shop]]:
    """Makes shops on the test's virtual host."""
    made: list[Shop] = []

    def make(**policy: Any) -> Shop:
        server: Any = rabbit
        made.append(Shop(server, folder, settings={"queues": {"#": {**POLICY, **policy}}}, conf=CONFIRMED))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def private_shop(private_rabbit: Rabbit, folder: Path) -> Iterator[Shop]:
    """A shop on a node of its own."""
    server: Any = private_rabbit
    shop = Shop(server, folder, settings={"queues": {"#": POLICY}}, conf={**CONFIRMED, "broker_connection_max_retries": None})
    yield shop
    shop.stop()


def delete(rabbit: Rabbit, *queues: str) -> None:
    """Delete them, whatever is in them."""
    with rabbit.connection() as connection:
        for queue in queues:
            connection.default_channel.queue_delete(queue)


def gone_on(shop: Shop, seen: int) -> None:
    """Wait until more events are recorded than the given number."""
    until(lambda: len(shop.events) > seen, what="the worker to go on")


def all_ended(shop: Shop, ids: list[str], outcome: str = "succeeded") -> None:
    """Wait until all of them have this outcome."""

    def are() -> bool:
        return set(ids) <= {event.task_id for event in shop.events if event.outcome == outcome}

    try:
        until(are, 500)
    except AssertionError:
        found = [(each, shop.outcomes_of(each), len(shop.runs(each))) for each in ids]
        missing = [each for each in found if outcome not in each[1]]
        message = f"{len(missing)} of {len(ids)} are not {outcome}: {missing[:5]}; on the broker: {shop.leftovers()}"
        raise AssertionError(message) from None


def test_what_is_deleted_under_a_worker_is_declared_again(rabbit: Rabbit, rabbit_shop: Callable[..., Shop]) -> None:
    """The dead-letter queue or the outcome log is deleted: the next dead letter and the next event are stored again."""
    here = rabbit_shop()
    here.start()
    here.ended(here.send("raises", "dead_letter"), "dead_lettered")
    until(here.letters, what="the first letter")
    delete(rabbit, "DLQ.celery")
    second = here.send("raises", "dead_letter")
    here.ended(second, "dead_lettered")
    assert [each["headers"]["id"] for each in until(here.letters, what="the second letter")] == [second]
    delete(rabbit, OUTCOMES, TAP)
    third = here.send("fails", 1)
    until(lambda: len(here.runs(third)) == 2, what="the task to have succeeded")
    until(lambda: (rabbit.depth(OUTCOMES) or 0) >= 2, what="its events to be in a log that is there again")


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_queue_without_acknowledgements_is_received_as_any_other(
    rabbit: Rabbit, rabbit_shop: Callable[..., Shop], *, is_declared: bool
) -> None:
    """It was added by remote control: at its start, a worker refuses such a queue. The broker keeps what the worker holds."""
    here = rabbit_shop()
    if is_declared:
        here.conf = {**here.conf, "task_queues": {"celery": {}, "fast": {"no_ack": True}}}
    here.start("-Q", "celery")
    add = functools.partial(here.app.control.add_consumer, "fast", options={"no_ack": True}, reply=True, timeout=1)
    until(add, what="the worker to answer")
    task_id = here.send("stalls", queue="fast")
    until(lambda: here.runs(task_id), what="the task to begin")
    assert rabbit.depths()["fast"] == (0, 1)
    here.workers[0].kill()


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_a_level_of_the_delay_store_that_is_deleted_is_declared_again(
    rabbit: Rabbit, rabbit_shop: Callable[..., Shop], kind: str
) -> None:
    """It is deleted under a worker: the next redelivery waits in a level that is there again."""
    here = rabbit_shop()
    here.start()
    with rabbit.connection() as connection:
        getattr(connection.default_channel, f"{kind}_delete")(AmqpNames().level(0))
    here.ended(here.send("fails", 1), "succeeded")


def test_a_dead_letter_queue_that_may_not_be_made_is_waited_for(rabbit: Rabbit, rabbit_shop: Callable[..., Shop]) -> None:
    """It is deleted under the worker, with auto-creation off: the message waits in the delay store, and is not run or discarded."""
    here = rabbit_shop(auto_create_dead_letter_resources=False)
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare("DLQ.celery", durable=True, auto_delete=False)
    worker = here.start()
    delete(rabbit, "DLQ.celery")
    task_id = here.send("raises", "dead_letter")
    until(lambda: "dead_letter_queue.missing" in worker.text, what="the missing queue to be told")
    assert here.outcomes_of(task_id) == ["published"]
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare("DLQ.celery", durable=True, auto_delete=False)
    here.ended(task_id, "dead_lettered")
    (letter,) = until(here.letters, what="the letter")
    assert Envelope.of(letter["headers"]).deaths[0]["reason"] == "non_retryable"
    assert len(here.runs(task_id)) == 1


def test_a_missing_dead_letter_queue_refuses_the_worker_in_one_line(rabbit_shop: Callable[..., Shop]) -> None:
    """With auto-creation off, the worker refuses to start; other brokers would discard the messages."""
    worker = rabbit_shop(auto_create_dead_letter_resources=False).start(wait=False)
    assert worker.process.wait(120) != 0
    (line,) = [line for line in worker.text.splitlines() if "redelivery: error:" in line]
    assert "DLQ.celery" in line


@pytest.mark.slow
def test_connections_that_the_broker_closes_lose_nothing(private_rabbit: Rabbit, private_shop: Shop) -> None:
    """The broker closes them ten times while tasks succeed, fail and wait: each task ends, and each that ran twice is named."""
    here, worker = private_shop, private_shop.start()
    ids, dying = [], []
    for _ in range(10):
        ids += [here.send("ok") for _ in range(10)] + [here.send("fails", 1), here.send("ok", countdown=1.2)]
        dying.append(here.send("raises", "dead_letter"))
        gone_on(here, len(here.events))
        private_rabbit.node.evaluate('[rabbit_networking:close_connection(P, "tests") || P <- rabbit_networking:connections()].')
    all_ended(here, ids)
    all_ended(here, dying, "dead_lettered")
    assert set(dying) <= {each["headers"]["id"] for each in here.letters()}
    assert worker.process.poll() is None
    until(lambda: not private_rabbit.leftovers(), what="nothing to be left")


@pytest.mark.parametrize(
    ("task", "args", "ends"),
    [("ok", (), ["succeeded"] * 2), ("raises", ("dead_letter",), ["dead_lettered"]), ("fails", (1,), ["succeeded"])],
)
def test_what_is_recorded_and_not_acknowledged_when_its_connection_is_cut_ends_once_or_is_named(
    rabbit: Rabbit, folder: Path, task: str, args: tuple[Any, ...], ends: list[str]
) -> None:
    """The message is delivered again. If it was moved, it is only acknowledged; a success runs again, and is named as repeated."""
    proxy, server = Proxy(rabbit.node.port).start(), cast("Any", rabbit)
    through = rabbit.url.replace(f":{rabbit.node.port}/", f":{proxy.port}/")
    here = Shop(server, folder, settings={"queues": {"#": POLICY}}, conf=CONFIRMED, broker=through)
    try:
        worker = here.start(pool="threads")
        proxy.withhold_request(ACKNOWLEDGEMENT)
        task_id = here.send(task, *args)

        def are_told() -> bool:
            return [each for each in here.outcomes_of(task_id) if each in {"succeeded", "dead_lettered"}] == ends

        word = "message.handed_over_again" if task == "ok" else "message.moved_already"
        until(lambda: word in worker.text, what="it to come again")
        until(are_told, what="its ends to be recorded")
        until(lambda: not here.leftovers(), what="nothing to be left")
        assert proxy.withheld == 1
        assert are_told()
        assert [event.reason for event in here.events_of(task_id)].count("worker_lost") == (task == "ok")
        assert [each["headers"]["id"] for each in here.letters()] == ([task_id] if task == "raises" else [])
    finally:
        here.stop()
        proxy.stop()


def test_what_waits_for_a_queue_that_is_deleted_comes_to_the_one_that_is_declared_again(
    rabbit: Rabbit, rabbit_shop: Callable[..., Shop]
) -> None:
    """The origin queue is deleted under its worker: running tasks and delayed tasks end, and the worker goes on."""
    here = rabbit_shop(redelivery_delay=4.0)
    worker = here.start(pool="threads")
    waiting, running = here.send("fails", 1), here.send("naps", 2)
    until(lambda: "redelivery_scheduled" in here.outcomes_of(waiting), what="the one to wait")
    until(lambda: here.runs(running), what="the other to run")
    delete(rabbit, "celery")
    until(lambda: rabbit.depth("celery") is not None, what="the worker to declare its queue again")
    all_ended(here, [waiting, running])
    all_ended(here, [here.send("ok")])
    assert worker.process.poll() is None
    assert [len(here.runs(each)) for each in (waiting, running)] == [2, 2]  # a start and an end of the one that naps


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_has_not_begun_when_its_queue_is_deleted_runs_from_the_one_that_is_declared_again(
    rabbit: Rabbit, rabbit_shop: Callable[..., Shop], pool: str
) -> None:
    """The worker holds tasks that wait for a free process or thread: Celery drops these, and the broker has no copy of them."""
    here = rabbit_shop()
    here.start(pool=pool, concurrency=1)
    running = here.send("waits", str(here.folder / "gate"))
    held = [here.send("ok"), here.send("fails", 1), here.send("ok")]
    until(lambda: here.runs(running) and rabbit.depths()["celery"] == (0, 4), what="the worker to hold them all")
    delete(rabbit, "celery")
    until(lambda: rabbit.depth("celery") is not None, what="the worker to declare its queue again")
    (here.folder / "gate").touch()
    all_ended(here, [running, *held])
    assert [len(here.runs(each)) for each in (running, *held)] == [2, 1, 2, 1]


def test_a_letter_that_its_queue_refuses_is_never_acknowledged_away(rabbit: Rabbit, rabbit_shop: Callable[..., Shop]) -> None:
    """The dead-letter queue is full and rejects: the delivery stays unacknowledged until the queue has room for it."""
    here = rabbit_shop()
    with rabbit.connection() as connection:
        channel = connection.default_channel
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel.queue_declare("DLQ.celery", durable=True, auto_delete=False, arguments=full)
        channel.basic_publish(message_of(sealed(task_message("filler")), target=("", "DLQ.celery")), "", "DLQ.celery")
    worker = here.start()
    task_id = here.send("raises", "dead_letter")
    until(lambda: "transition.unroutable" in worker.text, what="the refusal to be told")
    assert here.outcomes_of(task_id) == ["published"]
    assert here.leftovers() == {"unacked": 1}
    with rabbit.connection() as connection:
        connection.default_channel.queue_purge("DLQ.celery")
    here.ended(task_id, "dead_lettered")
    assert [each["headers"]["id"] for each in here.letters()] == [task_id]
    assert len(here.runs(task_id)) == 1


@pytest.mark.full
def test_a_letter_that_a_quorum_queue_refuses_goes_there_when_the_limit_is_removed(
    rabbit: Rabbit, rabbit_shop: Callable[..., Shop]
) -> None:
    """A policy of the broker limited the dead-letter queue. RabbitMQ refuses what comes through the old channel even then."""
    rabbit.ctl("set_policy", "full", "^DLQ", '{"max-length": 1, "overflow": "reject-publish"}')
    with rabbit.connection() as connection:
        channel = connection.default_channel
        channel.queue_declare("DLQ.celery", durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})
        channel.basic_publish(message_of(sealed(task_message("filler")), target=("", "DLQ.celery")), "", "DLQ.celery")
        channel.basic_publish(message_of(sealed(task_message("filler")), target=("", "DLQ.celery")), "", "DLQ.celery")
    until(lambda: rabbit.depth("DLQ.celery") == 2, what="the queue to be full")
    here = rabbit_shop()
    worker, task_id = here.start(), here.send("raises", "dead_letter")
    until(lambda: "transition.unroutable" in worker.text, what="the refusal to be told")
    rabbit.ctl("clear_policy", "full")
    here.ended(task_id, "dead_lettered")


def test_a_letter_that_cannot_be_routed_is_kept_and_tried_again(rabbit: Rabbit, rabbit_shop: Callable[..., Shop]) -> None:
    """The broker returns it (`mandatory`): the publisher keeps it until there is a queue, and only then reports success."""
    transport = AmqpTransport.of(rabbit_shop().app)
    ended = threading.Event()
    message = message_of(sealed(task_message("letter")), target=("", "DLQ.nowhere"))
    try:
        with capture_logs() as logs:
            move = transport.publisher.submit(Move(None, lambda _: ended.set(), message, ("", "DLQ.nowhere")))
            until(lambda: any(line["event"] == "transition.unroutable" for line in logs), what="it to be put aside")
        assert not ended.is_set()
        with rabbit.connection() as connection:
            connection.default_channel.queue_declare("DLQ.nowhere", durable=True, auto_delete=False)
        until(ended.is_set, what="it to be routed")
        assert (move.answer, rabbit.depth("DLQ.nowhere")) == (Answer.DONE, 1)
    finally:
        transport.close()


def test_what_fits_into_no_frame_any_more_dies_whole_and_holds_nobody_up(rabbit: Rabbit, rabbit_shop: Callable[..., Shop]) -> None:
    """A producer's header of 130 kB leaves no room for ours: the message becomes a dead letter after its attempt, unchanged.

    Messages in the same batch are moved once, and the operator's commands move those that fit.
    """
    here, wide, others = rabbit_shop(), [f"wide-{number}" for number in range(20)], []
    with rabbit.connection() as connection:
        for each in wide:
            others += [here.send("fails", 1), here.send("fails", 1)]
            message = task_message(each, "tests.support.shop.fails", x="x" * 130_500)
            connection.default_channel.basic_publish(message_of(sealed(message), target=("", "celery")), "", "celery")
    worker = here.start()
    all_ended(here, others, "succeeded")
    all_ended(here, wide, "dead_lettered")
    until(lambda: not here.leftovers(), what="nothing to be held")
    assert [len(here.runs(each)) for each in (*others, *wide)] == [2] * 40 + [1] * 20
    assert worker.text.count("Connected to") == 1
    assert "transition.failed" not in worker.text
    letters = {each["headers"]["id"]: json.loads(base64.b64decode(each["body"])) for each in here.letters()}
    assert {each: letter["headers"]["x"] for each, letter in letters.items()} == dict.fromkeys(wide, "x" * 130_500)
    worker.stop()
    done = Place.command(here.app, "dlq", "move", "DLQ.celery", "--all", "--to", "DLQ.later", "--create")
    assert (done["moved"], rabbit.depth("DLQ.celery"), rabbit.depth("DLQ.later")) == (20, 0, 20)


def test_what_cannot_be_written_for_amqp_holds_no_other_move_up(rabbit_shop: Callable[..., Shop], rabbit: Rabbit) -> None:
    """Every other move of a batch has a queue name that is too long for AMQP: the rest is published once."""
    transport = AmqpTransport.of(rabbit_shop().app)
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare("there", durable=True, auto_delete=False)

    def move(name: str, queue: str) -> Move:
        made = message_of(sealed(task_message(name)), target=("", queue))
        return Move(None, ignore, made, ("", queue), may_wait=False)

    moves = [move(str(number), "there" if number % 2 else "n" * 300) for number in range(10)]
    try:
        for each in moves:
            transport.publisher.submit(each)
        assert all(each.wait(30) for each in moves)
    finally:
        transport.close()
    assert [each.answer for each in moves] == [Answer.MISSING, Answer.DONE] * 5
    assert rabbit.depth("there") == 5


@pytest.mark.parametrize("way", ["published", "prepared"])
def test_a_move_that_the_broker_answers_with_an_error_does_not_repeat_the_others(
    rabbit_shop: Callable[..., Shop], rabbit: Rabbit, way: str
) -> None:
    """A publication to a missing exchange ends the channel, with the confirmations under way; a preparation may fail as well."""
    transport, going = AmqpTransport.of(rabbit_shop().app), threading.Event()
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare("there", durable=True, auto_delete=False)

    def move(name: str, target: tuple[str, str], prepare: Callable[[Any, bool], bool] = lambda _, __: True) -> Move:
        return transport.publisher.submit(
            Move(None, ignore, message_of(sealed(task_message(name)), target=target), target, prepare)
        )

    def broken(_: Any, __: bool) -> bool:
        if way == "prepared":
            raise amqp.AccessRefused
        return True

    try:
        with capture_logs() as logs:
            moves = [move("before", ("", "there"), lambda _, __: going.wait(30))]
            refused = move("refused", ("missing", "there"), broken)
            moves += [move(str(number), ("", "there")) for number in range(10)]
            going.set()
            assert all(each.wait(30) for each in moves)
            until(lambda: sum(line["event"] == "transition.failed" for line in logs) >= 2, what="it to be tried again")
            moves += [move(str(number), ("", "there")) for number in range(10)]
            assert all(each.wait(30) for each in moves)
    finally:
        transport.close()
    assert (refused.answer, rabbit.depth("there")) == (None, 21)


@pytest.mark.parametrize("way", ["returned", "refused"])
def test_what_the_broker_does_not_take_is_not_done_whatever_goes_with_it(
    rabbit: Rabbit, rabbit_shop: Callable[..., Shop], way: str
) -> None:
    """The broker refuses the first move of a batch before the second is published: only the second counts as done."""
    transport, going, target = AmqpTransport.of(rabbit_shop().app), threading.Event(), ("", "DLQ.first")
    publisher = transport.publisher
    with rabbit.connection() as connection:
        channel = connection.default_channel
        channel.queue_declare("second", durable=True, auto_delete=False)
        if way == "refused":
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            channel.queue_declare(target[1], durable=True, auto_delete=False, arguments=full)
            channel.basic_publish(message_of(sealed(task_message("filler")), target=target), *target)

    def hold(_: Any, __: bool) -> bool:
        return going.wait(30)

    def answered(connection: Any, _: bool) -> bool:
        """Read the broker's answers here, as a declaration does."""
        until(lambda: has_queue(connection, "second") and not publisher._confirms.open, what="the answer for the first")
        return True

    def move(name: str, where: tuple[str, str], prepare: Callable[[Any, bool], bool]) -> Move:
        return publisher.submit(Move(None, ignore, message_of(sealed(task_message(name)), target=where), where, prepare))

    try:
        with capture_logs() as logs:
            before = move("before", ("", "second"), hold)
            first = move("first", target, lambda _, __: True)
            second = move("second", ("", "second"), answered)
            going.set()
            assert before.wait(60)
            assert second.wait(60)
        assert (first.answer, second.answer) == (None, Answer.DONE)
        assert [line["routing_key"] for line in logs if line["event"] == "transition.unroutable"] == [target[1]]
        with rabbit.connection() as connection:
            connection.default_channel.queue_delete(target[1])
            connection.default_channel.queue_declare(target[1], durable=True, auto_delete=False)
        assert first.wait(60)
        assert (first.answer, rabbit.depth(target[1])) == (Answer.DONE, 1)
    finally:
        transport.close()


@pytest.mark.parametrize("resource", ["memory", "disk"])
@pytest.mark.full
@pytest.mark.slow
def test_an_alarm_is_waited_out(private_rabbit: Rabbit, private_shop: Shop, resource: str) -> None:
    """Memory or disk run short, and the broker blocks publishers: nothing is lost or recorded twice, and work goes on afterwards.

    Meanwhile tasks run, beyond the prefetch window of eight, although the broker confirms none of their events. (Celery's
    heartbeat would wait for its own confirmation, and block the worker.)
    """
    here, worker = private_shop, private_shop.start("--without-heartbeat")
    ids = [here.send("naps", 5) for _ in range(2)]
    until(lambda: len(here.runs()) == 2, what="both to have begun")
    ids += [here.send("naps", 0) for _ in range(30)]
    private_rabbit.node.evaluate(f"rabbit_alarm:set_alarm({{{{resource_limit, {resource}, node()}}, []}}).")
    until(lambda: sum(run["event"] == "end" for run in here.runs()) == 32, what="all to have ended")
    private_rabbit.node.evaluate(f"rabbit_alarm:clear_alarm({{resource_limit, {resource}, node()}}).")
    all_ended(here, ids)
    assert all(here.outcomes_of(each) == ["published", "succeeded"] for each in ids)
    assert worker.process.poll() is None


@pytest.mark.timeout(900)
@pytest.mark.full
@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_has_lost_nothing(private_rabbit: Rabbit, private_shop: Shop) -> None:
    """SIGKILL of the node during the work: after its restart every task ends, and the dead letters are there.

    A message that the node was moving from one delay level to the next arrives at its next try, three minutes later. The queues
    are some seconds old, because RabbitMQ 3.10.8 may lose newer ones: a new quorum queue does not find its leader again, and a new
    classic queue may be forgotten (`broker_kill --way new`).
    """
    here, worker = private_shop, private_shop.start()
    all_ended(here, [here.send("raises", "dead_letter")], "dead_lettered")
    all_ended(here, [here.send("ok", countdown=4)])
    ids = [here.send("ok") for _ in range(20)] + [here.send("fails", 1) for _ in range(10)]
    ids += [here.send("ok", countdown=2) for _ in range(5)]
    dying = [here.send("raises", "dead_letter") for _ in range(5)]
    until(lambda: len(here.runs()) > 5, what="some to have run")
    private_rabbit.node.kill()
    private_rabbit.node.start()
    all_ended(here, ids)
    all_ended(here, dying, "dead_lettered")
    assert set(dying) <= {each["headers"]["id"] for each in here.letters()}
    assert worker.process.poll() is None
