"""What an operator meets on RabbitMQ alone: the cost of a look, queues that are gone, exchanges, and what the broker cannot do."""

from __future__ import annotations

import functools
import json
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import amqp
import pytest
from celery import Celery, group
from kombu import Exchange, Queue
from pyarrow import parquet
from structlog.testing import capture_logs

from redelivery import Redelivery
from redelivery.errors import BrokerError
from redelivery.middleware.brokers.rabbitmq.events import packed
from redelivery.middleware.brokers.rabbitmq.journal import letter_look
from redelivery.middleware.brokers.rabbitmq.journal.reader import Reading
from redelivery.middleware.brokers.rabbitmq.names import OUTCOMES, OUTCOMES_EXCHANGE, AmqpNames
from redelivery.middleware.brokers.rabbitmq.peek import Look, depth_of
from redelivery.middleware.brokers.rabbitmq.publisher import Move, Publisher
from redelivery.middleware.brokers.rabbitmq.topology import declare_journal, declare_outcomes
from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.workers.brokers.rabbitmq import delay_store as amqp_delay_store
from redelivery.workers.brokers.rabbitmq import gaps as amqp_gaps
from redelivery.workers.brokers.rabbitmq import inventory as amqp_inventory
from redelivery.workers.brokers.rabbitmq import letters as amqp_letters
from redelivery.workers.brokers.rabbitmq.letters import AmqpLetterStore
from redelivery.workers.brokers.rabbitmq.outcome_log import Listening, export_outcomes
from redelivery.workers.operations.letters.walk import UNSURE
from tests.conformance.brokers import Place, letter
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.desk import LETTERS, QUEUE, Desk, task_message
from tests.support.operators.command import Command
from tests.support.running import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rabbit import Rabbit

#: When the events of these tests were recorded: a minute before they begin.
AT = round(time.time() * 1000) - 60_000
TYPES = pytest.mark.parametrize("kind", ["classic", "quorum"])

#: An app with a module of tasks that only a worker imports.
STOCK = """
from front import app
from redelivery import redeliver

@app.task
@redeliver(dead_letter_queue="unsold")
def sell(): ...

@app.task
def count(): ...
"""
FRONT = """
import os
from celery import Celery
from redelivery import Redelivery
app = Celery("front", broker=os.environ["SHOP_BROKER"], include=["stock"], task_default_queue="orders")
policies = {"#": {"expiry_queue": "gone"}, "orders": {"max_delivery_attempts": 3}}
Redelivery(app, {"queues": policies, "tasks": {"stock.count": {"dead_letter_queue": "miscounted"}}})
"""


def place_of(rabbit: Rabbit, folder: Path, kind: str = "classic") -> Place:
    """The same desk and letters as in the conformance suite."""
    return Place(f"rabbit-{kind}", rabbit, folder)


def numbers(look: Look) -> list[int]:
    """The numbers of the task ids of what is looked at."""
    return [int(json.loads(found.raw)["headers"]["id"]) for found in look]


def fill(place: Place, count: int) -> None:
    """So many letters, numbered."""
    place.put(*(letter(task_message(str(number))) for number in range(count)))


# looking


def test_every_queue_that_a_task_or_an_expiry_names_is_a_dead_letter_queue(rabbit: Rabbit, tmp_path: Path) -> None:
    """The broker does not record which ones were used: those of all tasks' policies are listed and counted."""
    place, command = place_of(rabbit, tmp_path), Command(tmp_path, rabbit.url)
    (tmp_path / "front.py").write_text(FRONT)
    (tmp_path / "stock.py").write_text(STOCK)
    names = ["gone", "miscounted", "unsold"]
    for number, name in enumerate(names):
        place.put(letter(task_message(str(number))), name=name)
    listed = command.run("-A", "front", "dlq", "list", "--json")
    assert {each["name"]: each["letters"] for each in json.loads(listed.stdout)} == {LETTERS: 0, **dict.fromkeys(names, 1)}
    taken = command.run("-A", "front", "inventory", "export", "--to", "inventory", "--look", "--json")
    assert json.loads(taken.stdout)["places"]["dead_letter"] == len(names), taken.stdout + taken.stderr
    with rabbit.connection() as connection:
        Queue(QUEUE, channel=connection.default_channel).declare()  # as its worker would
    gone = command.run("-A", "front", "dlq", "redrive", "unsold", "--all", "--yes", "--json")
    assert json.loads(gone.stdout)["moved"] == 1, gone.stdout + gone.stderr


@TYPES
def test_looks_of_any_length_keep_the_order(rabbit: Rabbit, tmp_path: Path, kind: str) -> None:
    """With more dead letters than the broker keeps in order by itself, short looks after long ones still begin at the oldest."""
    place, count = place_of(rabbit, tmp_path, kind), 150
    fill(place, count)
    with rabbit.connection() as connection:
        for most in (count, 7, 60, 1, count, 33, count):
            with Look(connection, LETTERS, most=most) as look:
                assert numbers(look) == list(range(most))
            assert until(lambda: depth_of(connection, LETTERS) == count, what="all to be back")


def test_a_quorum_queue_counts_looks_and_a_classic_one_marks(rabbit: Rabbit, tmp_path: Path) -> None:
    """`--help` says what a look costs on each type of queue; this broker behaves like that."""
    for kind, after in (("classic", 1), ("quorum", 3)):
        name = f"DLQ.{kind}"
        place_of(rabbit, tmp_path, kind).put(letter(), name=name)
        with rabbit.connection() as connection:
            taken = []
            for _ in range(4):
                with Look(connection, name) as look:
                    taken += [found.taken for found in look]
        assert (taken[0], taken[-1]) == (0, after)


@TYPES
def test_a_looker_that_dies_loses_nothing(rabbit: Rabbit, tmp_path: Path, kind: str) -> None:
    """Its connection is cut while it holds every dead letter and has taken two: the others are back."""
    fill(place_of(rabbit, tmp_path, kind), 20)
    connection = rabbit.connection()
    look = Look(connection, LETTERS)
    look.__enter__()
    found = list(look)
    look.take(found[3])
    look.take(found[9])
    depth_of(connection, LETTERS)  # the acknowledgements have arrived
    connection.collect()
    assert until(lambda: rabbit.depth(LETTERS) == 18, what="the letters to be back")
    with rabbit.connection() as again, Look(again, LETTERS) as look:
        assert sorted(numbers(look)) == [number for number in range(20) if number not in {3, 9}]


@TYPES
def test_letters_that_were_taken_stay_away(rabbit: Rabbit, tmp_path: Path, kind: str) -> None:
    """Two hundred acknowledgements, and the channel closes at once: none of the dead letters comes back."""
    fill(place_of(rabbit, tmp_path, kind), 200)
    with rabbit.connection() as connection:
        with Look(connection, LETTERS) as look:
            for found in list(look):
                look.take(found)
        with Look(connection, LETTERS) as look:
            assert numbers(look) == []


def test_a_command_waits_for_the_look_of_a_worker(rabbit: Rabbit, tmp_path: Path) -> None:
    """Otherwise the command would not see the dead letters that the worker holds for its look."""
    place, moved = place_of(rabbit, tmp_path), []
    desk = place.desk()
    fill(place, 20)
    command = threading.Thread(target=lambda: moved.append(desk.json("dlq", "redrive", LETTERS, "--all", "--yes")["moved"]))
    with rabbit.connection() as connection:
        with letter_look._alone(connection) as is_alone, Look(connection, LETTERS) as look:
            assert is_alone
            assert numbers(look) == list(range(20))
            command.start()
            command.join(1)
            assert command.is_alive()
        command.join(letter_look.TIMEOUT)
    assert moved == [20]


def test_an_inventory_does_not_leave_out_what_a_command_holds(
    rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the command, and fails if that takes too long; otherwise the books would name dead letters as missing."""
    monkeypatch.setattr(letter_look, "TIMEOUT", 0.5)
    desk = (place := place_of(rabbit, tmp_path)).desk()
    fill(place, 3)
    words = ("inventory", "export", "--to", str(tmp_path / "inventory"))
    with AmqpLetterStore(cast("Any", place.desk().transport)).open(LETTERS) as letters:
        assert len(next(letters.pages())) == 3
        done = desk.run(*words)
        assert (done.exit_code, f"another command holds dead letters of '{LETTERS}'" in done.stderr) == (2, True), done.output
    done = desk.run(*words)
    assert (done.exit_code, "3 dead_letter" in done.output) == (0, True), done.output


def test_a_command_that_sees_fewer_says_so(rabbit: Rabbit, tmp_path: Path) -> None:
    """Another command holds some dead letters, perhaps for hours: a log line says how many were not seen."""
    place = place_of(rabbit, tmp_path)
    fill(place, 20)
    store = AmqpLetterStore(cast("Any", place.desk().transport))
    with store.open(LETTERS) as letters, rabbit.connection() as connection, Look(connection, LETTERS, most=5) as look:
        assert numbers(look) == list(range(5))
        with capture_logs() as logs:
            assert sum(len(page) for page in letters.pages()) == 15
    [line] = [line for line in logs if line["event"] == "dead_letters.held"]
    assert (line["dead_letter_queue"], line["not_seen"]) == (LETTERS, 5)


# going back


def test_a_letter_goes_back_to_its_exchange_and_routing_key(rabbit: Rabbit, tmp_path: Path) -> None:
    """On a topic exchange with two queues, its original key decides again; `--to` sends it to one queue only."""
    place = place_of(rabbit, tmp_path)
    desk = place.desk()
    topic = Exchange("shop", type="topic")
    desk.app.amqp.queues.add(Queue(QUEUE, topic, routing_key="eu.#"))
    with rabbit.connection() as connection:
        for name in ("eu", "all"):
            key = "#" if name == "all" else "eu.#"
            Queue(name, topic, routing_key=key).bind(connection.default_channel).declare()
    for task_id in ("by-key", "by-queue"):
        message = task_message(task_id)
        message["properties"]["delivery_info"] = {"exchange": "shop", "routing_key": "eu.paris"}
        place.put(letter(message))
    desk.json("dlq", "redrive", LETTERS, "--id", "by-key")
    assert (place.ids("eu"), place.ids("all")) == (["by-key"], ["by-key"])
    with rabbit.connection() as connection:
        message = connection.default_channel.basic_get("eu", no_ack=True)
        assert (message.delivery_info["exchange"], message.delivery_info["routing_key"]) == ("shop", "eu.paris")
    desk.app.amqp.queues["eu"].bind(desk.app.connection_for_write().default_channel)
    assert desk.json("dlq", "redrive", LETTERS, "--id", "by-queue", "--to", "eu")["moved"] == 1
    assert (place.ids("eu"), place.ids("all")) == (["by-queue"], ["by-key"])


@TYPES
def test_a_letter_whose_queue_is_gone_stays_and_says_why(rabbit: Rabbit, tmp_path: Path, kind: str) -> None:
    """Nothing is recorded, the dead letter stays in its place, and the command says what to do."""
    place = place_of(rabbit, tmp_path, kind)
    desk = place.desk()
    fill(place, 3)
    with rabbit.connection() as connection:
        connection.default_channel.queue_delete(QUEUE)
    done = desk.json("dlq", "redrive", LETTERS, "--all", "--yes")
    assert done["moved"] == 0
    ((why, count),) = done["left"].items()
    assert count == 3
    assert "--to" in why
    assert place.ids(LETTERS) == ["0", "1", "2"]
    assert rabbit.events() == []


def test_letters_that_a_full_queue_refuses_stay_and_are_not_said_to_have_no_queue(rabbit: Rabbit, tmp_path: Path) -> None:
    """Those for which the queue has room go back; the others stay, and the command does not send the operator after a queue."""
    place = place_of(rabbit, tmp_path)
    desk = place.desk()
    fill(place, 3)
    with rabbit.connection() as connection:
        channel, full = connection.default_channel, {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True, auto_delete=False, arguments=full)
    done = desk.json("dlq", "redrive", LETTERS, "--all")
    ((why, count),) = done["left"].items()
    assert (done["moved"], count, why.partition(":")[0]) == (1, 2, "its queue does not exist, or is full")
    assert len(place.ids(LETTERS)) == 2


def test_a_redrive_that_an_outcome_log_refuses_says_so(rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages are out, so the events are tried until the time is over: the error is the log's, and blames no alarm."""
    place, wait = place_of(rabbit, tmp_path), Move.wait
    fill(place, 3)
    with rabbit.connection() as connection:
        declare_outcomes(connection.connection, AmqpNames(), 10**6)
        connection.default_channel.basic_publish(amqp.Message(b"x"), routing_key=OUTCOMES)
    rabbit.ctl("set_policy", "full", OUTCOMES, '{"max-length": 1, "overflow": "reject-publish"}', "--apply-to", "queues")
    monkeypatch.setattr(Move, "wait", lambda move, _: until(lambda: move.failure is not None) and wait(move, 0))
    done = place.desk().run("dlq", "redrive", LETTERS, "--all")
    assert "the outcome log redelivery.outcomes takes no events" in done.stderr.splitlines()[-1]
    assert (done.exit_code, place.ids(LETTERS)) == (2, ["0", "1", "2"])


def test_a_broker_that_confirms_nothing_is_waited_for_once(rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm begins during a redrive: the command waits once, not for each dead letter, and says how far it came."""
    place, waits, wait = place_of(rabbit, tmp_path), list[float](), Move.wait
    fill(place, 3)
    monkeypatch.setattr(amqp_letters, "TIMEOUT", 0.5)
    monkeypatch.setattr(Publisher, "submit", lambda _, move: move)

    def waited(move: Move, seconds: float) -> bool:
        waits.append(seconds)
        return wait(move, seconds)

    monkeypatch.setattr(Move, "wait", waited)
    done = place.desk().run("dlq", "redrive", LETTERS, "--all")
    assert "stopped when 0 dead letters had gone back: the broker confirms nothing" in done.stderr
    assert [seconds > 0 for seconds in waits] == [True, False, False]
    assert place.ids(LETTERS) == ["0", "1", "2"]


def test_a_redrive_that_cannot_read_the_journal_now_moves_nothing(
    rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alarm begins: without the journal, dead letters that an earlier command had moved would be moved again."""
    place = place_of(rabbit, tmp_path)
    fill(place, 3)
    assert place.ids(LETTERS) == ["0", "1", "2"]  # the look marks them as delivered before
    with rabbit.connection() as connection:
        declare_journal(connection.connection, AmqpNames().journal)

    def unanswered(_: Reading) -> None:
        raise TimeoutError

    monkeypatch.setattr(Reading, "catch_up", unanswered)
    done = place.desk().run("dlq", "redrive", LETTERS, "--all")
    assert "stopped when 0 dead letters had gone back: " in done.stderr
    assert (done.exit_code, place.ids(LETTERS)) == (2, ["0", "1", "2"])


def test_a_redrive_whose_connection_breaks_doubles_no_letter(
    rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages arrive, and the broker's answer is lost: they are not published again, and the dead letters stay."""
    place, confirmed, lost = place_of(rabbit, tmp_path), Publisher._confirmed, list[int]()
    fill(place, 3)

    def broken(publisher: Publisher) -> None:
        sent = set(publisher._confirms.open)
        confirmed(publisher)
        if not lost:
            lost.extend(sent)
            publisher._confirms.open = sent
            raise ConnectionResetError

    monkeypatch.setattr(Publisher, "_confirmed", broken)
    done = place.desk().json("dlq", "redrive", LETTERS, "--all")
    assert lost
    assert (done["moved"], done["left"]) == (3 - done["left"][UNSURE], {UNSURE: done["left"][UNSURE]})
    assert rabbit.depth(QUEUE) == 3


def test_a_letter_whose_exchange_is_gone_stays_and_the_others_go(rabbit: Rabbit, tmp_path: Path) -> None:
    """The exchange of one dead letter was deleted; the others are sent back."""
    place = place_of(rabbit, tmp_path)
    desk = place.desk()
    desk.app.amqp.queues.add(Queue(QUEUE, Exchange("deleted"), routing_key="x"))
    gone = task_message("gone")
    gone["properties"]["delivery_info"] = {"exchange": "deleted", "routing_key": "x"}
    place.put(letter(task_message("before")), letter(gone), letter(task_message("behind")))
    done = desk.json("dlq", "redrive", LETTERS, "--all")
    assert (done["moved"], list(done["left"].values())) == (2, [1])
    assert (place.ids(QUEUE), place.ids(LETTERS)) == (["before", "behind"], ["gone"])


# the outcome log


def record(rabbit: Rabbit, count: int, *, after: int = 0) -> None:
    """So many events, five in a message, and then one foreign message; `after` is the number of earlier events."""
    with rabbit.connection() as connection:
        channel = connection.connection.channel()
        declare_outcomes(connection.connection, AmqpNames(), 2**20)
        channel.confirm_select()
        for start in range(after, after + count, 5):
            events = [
                (f"{AT}-abc.{number + 1}", Event(task_id=str(number), outcome=Outcome.SUCCEEDED))
                for number in range(start, start + 5)
            ]
            amqp.Channel.basic_publish_confirm(channel, amqp.Message(packed(events), delivery_mode=2), OUTCOMES_EXCHANGE, OUTCOMES)
        amqp.Channel.basic_publish_confirm(channel, amqp.Message(b"not ours", delivery_mode=2), OUTCOMES_EXCHANGE, OUTCOMES)


def test_an_export_that_dies_before_it_acknowledges_is_done_again(
    rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files were written, but the events are still in the log: the next export writes them again, with the same ids."""
    record(rabbit, 20)
    names = AmqpNames()

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, rabbit.connection() as connection:
        patched.setattr(Look, "take", dies)
        with pytest.raises(KeyboardInterrupt):
            export_outcomes(connection, names, str(tmp_path), format="jsonl")
    assert len(list(tmp_path.rglob("outcomes-*.jsonl"))) == 1
    with rabbit.connection() as connection:
        done = export_outcomes(connection, names, str(tmp_path), format="jsonl")
        assert (done.events, done.refused) == (20, 1)
        assert export_outcomes(connection, names, str(tmp_path), format="jsonl").events == 0
    lines = [line for file in tmp_path.rglob("outcomes-*.jsonl") for line in file.read_text().splitlines()]
    assert {json.loads(line)["event_id"] for line in lines} == {f"{AT}-abc.{number}" for number in range(1, 21)}


def test_an_export_in_small_batches_has_every_event_once(rabbit: Rabbit, tmp_path: Path) -> None:
    """Each batch is acknowledged separately, and ends with a whole message of the log."""
    record(rabbit, 50)
    names = AmqpNames()
    with rabbit.connection() as connection:
        done = export_outcomes(connection, names, str(tmp_path), format="jsonl", batch=7)
    lines = [json.loads(line)["task_id"] for file in tmp_path.rglob("outcomes-*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(lines, key=int) == [str(number) for number in range(50)]
    assert done.events == 50


def test_strange_messages_in_the_log_are_set_aside_and_stop_no_export(rabbit: Rabbit, tmp_path: Path) -> None:
    """A number that is none, an id that is no part of a file's name; a text that is a number counts. No file is overwritten."""
    (good,) = json.loads(packed([(f"{AT}-abc.6", Event(task_id="6", outcome=Outcome.SUCCEEDED))]))
    strange = [{**good, "g": float("inf")}, {**good, "i": f"{AT}-../../abc.6"}, {**good, "i": f"{AT}-{'a' * 300}.6"}]
    for body in ([[each] for each in strange], [["not ours"]], [["nor this"], [{**good, "n": 5}]]):
        with rabbit.connection() as connection:
            channel = connection.connection.channel()
            declare_outcomes(connection.connection, AmqpNames(), 2**20)
            channel.confirm_select()
            for each in body:
                message = amqp.Message(json.dumps(each), delivery_mode=2)
                amqp.Channel.basic_publish_confirm(channel, message, OUTCOMES_EXCHANGE, OUTCOMES)
        with rabbit.connection() as connection:
            export_outcomes(connection, AmqpNames(), str(tmp_path))
    assert rabbit.depth("redelivery.outcomes") == 0
    assert parquet.read_table(next(tmp_path.rglob("outcomes-*.parquet"))).column("task").to_pylist() == ["5"]
    refused = [line for file in tmp_path.glob("_refused/*.jsonl") for line in file.read_text().splitlines()]
    assert len(refused) == 5


def test_what_left_the_log_unexported_is_a_gap(rabbit: Rabbit, tmp_path: Path) -> None:
    """Ten events vanish from the log's head between two exports: the export reports ten, and nothing if all are there."""
    names = AmqpNames()
    for gone, lost in ((0, []), (2, [10])):
        record(rabbit, 20, after=20 * bool(gone))
        with rabbit.connection() as connection:
            for _ in range(gone):
                assert connection.default_channel.basic_get("redelivery.outcomes", no_ack=True) is not None
        with rabbit.connection() as connection:
            done = export_outcomes(connection, names, str(tmp_path), format="jsonl")
        assert [gap.lost for gap in done.gaps] == lost
    (noted,) = [json.loads(line) for line in (tmp_path / "_gaps.jsonl").read_text().splitlines()]
    assert (noted["after"], noted["before"], noted["why"]) == ("abc.20", f"{AT}-abc.31", "cap")


def test_an_announcement_that_did_not_arrive_is_no_gap(rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is cut after an export. Celery publishes the task and its event again: nothing is missing from the log."""
    monkeypatch.setattr(amqp_gaps, "YOUNG_MS", -60_000)  # as if a minute had passed
    proxy, names = Proxy(rabbit.node.port).start(), AmqpNames()
    app = Celery("cut", broker=rabbit.url.replace(f":{rabbit.node.port}/", f":{proxy.port}/"), set_as_current=False)
    app.conf.broker_transport_options = {"confirm_publish": True}
    Redelivery(app)
    try:
        for withheld in (0, 1):
            app.send_task("shop.pack")
            if not withheld:
                proxy.withhold_request(b'"o":"published"')
                with rabbit.connection() as connection:
                    done = export_outcomes(connection, names, str(tmp_path), format="jsonl")
                assert (done.events, done.gaps) == (1, [])
            assert proxy.withheld == withheld
        with rabbit.connection() as connection:
            done = export_outcomes(connection, names, str(tmp_path), format="jsonl")
        assert (done.events, done.gaps) == (1, [])
    finally:
        app.close()
        proxy.stop()


def test_a_connection_that_waits_promises_no_heartbeats(rabbit: Rabbit) -> None:
    """Nobody sends them during the pauses of a slow redrive: RabbitMQ would close the connection, and the redrive would end."""
    app = Celery("waits", broker=f"{rabbit.url}?heartbeat=1", set_as_current=False)
    app.conf.broker_transport_options = {"heartbeat": 1}
    with AmqpTransport.of(app).connect() as connection:
        assert connection.connection.heartbeat == 0


def test_a_process_that_publishes_to_two_brokers_leaves_no_gap_in_either_log(
    rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, and in groups: each log has numbers of its own."""
    monkeypatch.setattr(amqp_gaps, "YOUNG_MS", -60_000)  # as if a minute had passed
    other = rabbit.node.vhost()
    try:
        for broker in (other, rabbit):
            app = Celery("two", broker=broker.url, set_as_current=False)
            Redelivery(app)
            app.send_task("shop.pack")
            group([app.signature("shop.pack")] * 2, app=app).apply_async()
            app.close()
        with rabbit.connection() as connection:
            done = export_outcomes(connection, AmqpNames(), str(tmp_path), format="jsonl")
    finally:
        other.remove()
    assert (done.events, done.gaps) == (3, [])


def test_of_two_exports_at_once_one_is_refused(rabbit: Rabbit, tmp_path: Path) -> None:
    """The second export says why; when the first has ended, the next one may run."""
    record(rabbit, 5)
    names = AmqpNames()
    with rabbit.connection() as one:
        assert export_outcomes(one, names, str(tmp_path)).events == 5
        with rabbit.connection() as other, pytest.raises(BrokerError, match="another export runs"):
            export_outcomes(other, names, str(tmp_path))
    with rabbit.connection() as other:
        until(lambda: not is_refused(other, names, tmp_path), what="the first export's connection to be closed")


def is_refused(connection: Any, names: AmqpNames, folder: Path) -> bool:
    """Whether another export is still known to the broker."""
    try:
        export_outcomes(connection, names, str(folder))
    except BrokerError:
        return True
    return False


def hears(listener: Listening, heard: list[Event], count: int) -> bool:
    """Whether so many events have been heard by now."""
    heard += listener.new_events()
    return len(heard) == count


def test_whoever_listens_takes_nothing_from_the_log(rabbit: Rabbit) -> None:
    """Two listeners receive every event; the log still has all of its messages."""
    names = AmqpNames()
    with rabbit.connection() as one, rabbit.connection() as other:
        listeners = [Listening(one, names), Listening(other, names)]
        record(rabbit, 10)
        for listener in listeners:
            heard: list[Event] = []
            until(functools.partial(hears, listener, heard, 10), what="ten events")
    assert rabbit.depth("redelivery.outcomes") == 3


def test_whoever_follows_is_told_each_event_as_it_comes(rabbit: Rabbit) -> None:
    """`outcomes tail -f` shows the events from now on, in their order."""
    with rabbit.connection() as connection:
        following = Listening(connection, AmqpNames()).follow()
        record(rabbit, 10)
        assert [next(following).task_id for _ in range(10)] == [str(number) for number in range(10)]


def test_a_worker_exports_the_log_by_itself(rabbit: Rabbit, tmp_path: Path) -> None:
    """With `outcome_export` in the settings, events go from the log into files."""
    place = place_of(rabbit, tmp_path)
    shop = place.shop(settings={"outcome_export": str(tmp_path / "events"), "outcome_export_every": 1})
    shop.start(pool="threads", concurrency=1)
    try:
        task_id = shop.send("ok")
        shop.ended(task_id, "succeeded")
        until(lambda: {"published", "succeeded"} <= exported(tmp_path / "events"), what="the export")
        until(lambda: rabbit.depth(OUTCOMES) == 0, what="the log to be empty")
    finally:
        shop.stop()


def exported(folder: Path) -> set[str]:
    """The outcomes in the files of an export."""
    files = [file for file in folder.rglob("outcomes-*.parquet") if not file.name.startswith(".")]
    return {str(row["outcome"]) for file in files for row in parquet.read_table(file).to_pylist()}


# what is there


def test_what_waits_to_be_run_is_counted_and_listed_only_when_asked(rabbit: Rabbit, tmp_path: Path) -> None:
    """`inventory export` gives a count and a warning, and rows with `--look`; `task show` says what it did not look at."""
    place = place_of(rabbit, tmp_path)
    desk = place.desk()
    task_id = desk.app.send_task("desk.pack").id
    done = desk.run("inventory", "export", "--to", str(tmp_path / "one"), "--format", "jsonl")
    assert f"{QUEUE}: 1 message counted, not listed" in done.stderr
    assert json.loads((tmp_path / "one" / "_taken.json").read_text())["unlisted"] == {QUEUE: 1}
    assert desk.json("inventory", "export", "--to", str(tmp_path / "two"), "--format", "jsonl", "--look")["places"]["queue"] == 1
    (row,) = [json.loads(line) for line in (tmp_path / "two" / "inventory.jsonl").read_text().splitlines()]
    assert (row["task_id"], row["place"]) == (task_id, "queue")
    shown = desk.json("task", "show", task_id)
    assert [event["outcome"] for event in shown["events"]] == ["published"]
    assert shown["cut"] == [f"{QUEUE}: messages that wait to run were not read (1): that would count as a delivery of each"]


def test_what_an_inventory_has_no_room_for_is_counted(rabbit: Rabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look holds a limited number of messages. The books must not call the others lost without a word."""
    for module in (amqp_inventory, amqp_delay_store):
        monkeypatch.setattr(module, "MAX_HELD", 2)
    place = place_of(rabbit, tmp_path)
    desk = place.desk()
    fill(place, 5)
    level = AmqpNames().level(11)
    place.put(*(json.dumps(task_message(f"delayed-{number}")).encode() for number in range(3)), name=level)
    for _ in range(3):
        desk.app.send_task("desk.pack")
    for look, of_queue in ((), 3), (("--look",), 1):
        done = desk.json("inventory", "export", "--to", str(tmp_path / "books"), "--format", "jsonl", *look)
        assert done["places"] == {"queue": 2 if look else 0, "unacked": 0, "delayed": 2, "dead_letter": 2}
        assert done["unlisted"] == {LETTERS: 3, QUEUE: of_queue, level: 1}


@pytest.mark.parametrize("words", [("dispatcher",), ("leave", "--yes")])
def test_what_rabbitmq_needs_no_tool_for_is_refused_with_a_line(rabbit: Rabbit, words: tuple[str, ...]) -> None:
    """Exit code 2, one line, and what happens instead."""
    done = Desk(cast("Any", rabbit)).run(*words)
    assert done.exit_code == 2
    assert "on RabbitMQ" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_broker_that_does_not_answer_is_one_line() -> None:
    """Exit code 2, and the address without its password."""
    nowhere: Any = SimpleNamespace(url="amqp://u:secret@127.0.0.1:1//")
    done = Desk(nowhere).run("dlq", "list")
    assert done.exit_code == 2
    assert "amqp://u:**@127.0.0.1:1//" in done.stderr
    assert "secret" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
