"""Dead-letter handlers, and dead-letter queues that are consumed without a handler, on real workers.

There is one worker with a handler and one without. Each consumes its queues and their dead-letter queues; each test has dead
letters of its own.
"""

from __future__ import annotations

import base64
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from celery import Celery

from redelivery import Letter, Redelivery
from redelivery.errors import ConfigurationError, EnvelopeError, RedriveError
from redelivery.middleware.messages.envelope import HEADER, Attempt, Failed
from redelivery.middleware.messages.steps import dead, sealed
from redelivery.middleware.worker.deliveries.letter_handler import LetterDelivery, handlers_of
from redelivery.workers.brokers.redis.transport import redis_of
from redelivery.workers.operations.inventory.inventory import take as inventory
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.redrive.redrive import redrive
from tests.faults.chaos.verdict import archived_in, judge
from tests.support.desk import body_of, task_message
from tests.support.lanes import first_quick
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("dead_letter_handler")

PICKY = "tests.support.apps.letter_shop.picky"
PARKED = "DLQ.DLQ.celery"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder for both workers."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def served(folder: Path) -> Server:
    """A broker in a folder of its own."""
    folder.mkdir()
    return Server(folder, binaries()["valkey"]).start()


# with a handler


@pytest.fixture(scope="module")
def handled(place: Path) -> Iterator[Shop]:
    """A worker that consumes `celery` and `DLQ.celery`, with a handler."""
    server = served(place / "h")
    settings = {
        "lease": 2,
        "dead_letter_archive": str(place / "archive"),
        "queues": {"#": {"max_delivery_attempts": 1}, "DLQ.#": {"max_delivery_attempts": 3, "redelivery_delay": 0.1}},
    }
    shop = Shop(server, place / "h", settings=settings, module="tests.support.apps.letter_shop")
    shop.start("-Q", "celery,DLQ.celery")
    yield shop
    shop.stop()
    server.stop(9)


def calls(shop: Shop, task_id: str) -> list[dict[str, Any]]:
    """What the handler noted of a letter."""
    return shop.runs(f"handler-{task_id}")


def parked(shop: Shop, task_id: str, queue: str = PARKED) -> dict[str, Any]:
    """Wait until the letter is parked; its header."""

    def found() -> list[dict[str, Any]]:
        return [each for each in shop.letters(queue) if each["headers"]["id"] == task_id]

    [letter] = until(found, what=f"{task_id} in {queue}")
    header: dict[str, Any] = letter["headers"]["redelivery"]
    return header


def test_a_handler_sends_a_letter_back(handled: Shop) -> None:
    """It is the same task in its next generation; in the books both lives end once."""
    task_id = handled.send("picky", "redrive")
    assert handled.ended(task_id, "succeeded").generation == 1
    assert handled.outcomes_of(task_id) == ["published", "dead_lettered", "redriven", "succeeded"]
    [call] = calls(handled, task_id)
    assert (call["reason"], call["task"], call["handled"]) == ("exhausted", PICKY, 0)


def test_a_handler_edits_a_letter_before_it_goes_back(handled: Shop) -> None:
    """Only the arguments that the handler gave are changed."""
    task_id = handled.send("picky", "edit")
    handled.ended(task_id, "succeeded")
    assert [(run["what"], run["mended"]) for run in handled.runs(task_id)] == [("edit", False), ("edit", True)]


def test_a_handler_archives_a_letter(handled: Shop, place: Path) -> None:
    """It is in a file before it leaves the queue, and is recorded as purged."""
    task_id = handled.send("picky", "archive")
    event = handled.ended(task_id, "purged")
    assert (event.generation, event.reason) == (0, "operator")
    assert handled.outcomes_of(task_id) == ["published", "dead_lettered", "purged"]
    rows = [row for row in archived(place / "archive") if row["task_id"] == task_id]
    assert [(row["task_id"], row["dead_letter_queue"], row["why"]) for row in rows] == [(task_id, "DLQ.celery", "handler")]


def test_an_archive_is_named_after_the_queue_that_held_the_letter(handled: Shop, place: Path) -> None:
    """Not after the delivery information in the message, which its publisher wrote."""
    task_id = handled.send("picky", "park")
    parked(handled, task_id)
    [letter] = [each for each in handled.letters(PARKED) if each["headers"]["id"] == task_id]
    letter["headers"] |= {"id": "elsewhere", HEADER: {**letter["headers"][HEADER], "parked": False}}
    letter["body"] = body_of("archive")
    letter["properties"]["delivery_info"] = {"exchange": "", "routing_key": "../elsewhere"}
    handled.server.client.lpush("DLQ.celery", sealed(letter))
    handled.ended("elsewhere", "purged")
    rows = [row for row in archived(place / "archive") if row["task_id"] == "elsewhere"]
    assert [row["dead_letter_queue"] for row in rows] == ["DLQ.celery"]
    assert {file.parent.name for file in (place / "archive").rglob("*.parquet")} == {"dead_letter_queue=DLQ.celery"}


def archived(folder: Path) -> list[dict[str, Any]]:
    """What is in an archive."""
    from pyarrow import parquet  # noqa: PLC0415 - slow to import

    return [row for file in sorted(folder.rglob("*.parquet")) for row in parquet.read_table(file).to_pylist()]


def test_a_handler_discards_a_letter(handled: Shop) -> None:
    """It is recorded, and nothing is left."""
    task_id = handled.send("picky", "discard")
    handled.ended(task_id, "discarded")
    assert handled.outcomes_of(task_id) == ["published", "dead_lettered", "discarded"]


def test_a_handler_parks_a_letter(handled: Shop) -> None:
    """It goes to the dead-letter queue of the dead-letter queue, and no further step of its life is recorded."""
    task_id = handled.send("picky", "park")
    header = parked(handled, task_id)
    assert (header["parked"], header["deaths"][0]["queue"], header["deaths"][0]["reason"]) == (True, "DLQ.celery", "rejected")
    assert handled.outcomes_of(task_id) == ["published", "dead_lettered"]


def test_a_handler_that_fails_is_asked_again_and_then_the_letter_is_parked(handled: Shop) -> None:
    """The policy of the dead-letter queue applies. The record keeps the task's failure; the handler's is the death's detail."""
    task_id = handled.send("picky", "fail")
    header = parked(handled, task_id)
    assert [call["handled"] for call in calls(handled, task_id)] == [0, 1, 2]
    assert [(death["queue"], death["reason"]) for death in header["deaths"]] == [
        ("DLQ.celery", "exhausted"),
        ("celery", "exhausted"),
    ]
    assert "RuntimeError: the handler fails" in header["deaths"][0]["detail"]
    assert (header["failure"]["type"], header["failure"]["message"], header["attempt"]) == ("ValueError", "no fail", 1)
    assert header["first_death"]["queue"] == "celery"
    assert handled.outcomes_of(task_id) == ["published", "dead_lettered"]


def test_a_handler_that_kills_its_process_ends_as_one_that_fails(handled: Shop) -> None:
    """Each crash counts against the letter; the worker lives."""
    task_id = handled.send("picky", "kill")
    header = parked(handled, task_id)
    assert header["deaths"][0]["reason"] == "worker_lost"
    assert 3 <= len(calls(handled, task_id)) <= 4
    assert handled.outcomes_of(task_id) == ["published", "dead_lettered"]


def test_a_handler_that_returns_no_decision_parks_at_once(handled: Shop) -> None:
    """A missing decision is not a failure that a retry can cure."""
    task_id = handled.send("picky", "nothing")
    header = parked(handled, task_id)
    assert header["deaths"][0]["reason"] == "non_retryable"
    assert "return letter.redrive()" in header["deaths"][0]["detail"]
    assert len(calls(handled, task_id)) == 1


#: What a handler does, and the number of lives that the task has afterwards.
LIVES = {"redrive": 2, "edit": 2, "archive": 1, "discard": 1, "park": 1, "fail": 1}


def test_the_books_balance_after_every_decision(handled: Shop, place: Path) -> None:
    """Each life begins once and ends once, whatever the decision; kept and archived dead letters are where the books say."""
    ids = {what: handled.send("picky", what) for what in LIVES}
    for what, outcome in {"redrive": "succeeded", "edit": "succeeded", "archive": "purged", "discard": "discarded"}.items():
        handled.ended(ids[what], outcome)
    for what in ("park", "fail"):
        parked(handled, ids[what])
    ours = set(ids.values())
    until(lambda: not any(life.task_id in ours and life.place != "dead_letter" for life in inventoried(handled)), what="rest")
    held = sorted((row.task_id, row.generation) for row in inventoried(handled) if row.task_id in ours)
    assert held == sorted((ids[what], 0) for what in ("park", "fail"))
    verdict = judge(
        [event.to_dict() for event in handled.events if event.task_id in ours],
        {task_id for task_id, _ in held},
        [run for run in handled.runs() if run["id"] in ours],
        [{"id": task_id, "said": "published"} for task_id in ours],
        archived_in(place / "archive"),
    )
    assert (verdict.faults, verdict.lives, verdict.repeats) == ([], sum(LIVES.values()), 0)


class Row(NamedTuple):
    """One row of the inventory."""

    task_id: str
    generation: int
    place: str


def inventoried(shop: Shop) -> list[Row]:
    """What the inventory says of the broker now."""
    return [Row(row["task_id"], row["generation"], row["place"]) for row in inventory(shop.app.redelivery).rows()]


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def test_a_pickled_letter_is_handled_without_being_opened(handled: Shop, place: Path) -> None:
    """Its arguments are None, and the code in the pickle does not run."""
    body = pickle.dumps(([Bomb(place / "opened")], {}, {}))
    message = task_message("pickled", PICKY, body=base64.b64encode(body).decode())
    message["content-type"], message["content-encoding"] = "application/x-python-serialize", "binary"
    handled.server.client.lpush("celery", sealed(message))
    handled.ended("pickled", "discarded")
    assert [call["args"] for call in calls(handled, "pickled")] == [None]
    assert not (place / "opened").exists()


def test_garbage_reaches_its_handler_too(handled: Shop) -> None:
    """Bytes that were no message are a dead letter without a task."""
    handled.server.client.lpush("celery", b"\x00 no message")
    event = until(lambda: [each for each in handled.events if each.task_id.startswith("raw-") and each.outcome == "discarded"])[0]
    [call] = calls(handled, event.task_id)
    assert (call["task"], call["args"], call["reason"]) == ("", None, "undecodable")


@pytest.mark.parametrize("pool", first_quick(["threads", "solo"]))
def test_a_handler_works_where_the_pool_shares_the_workers_process(place: Path, pool: str) -> None:
    """Decisions and failures take another code path there, with the same results."""
    server = served(place / pool)
    settings = {
        "lease": 2,
        "queues": {"#": {"max_delivery_attempts": 1}, "DLQ.#": {"max_delivery_attempts": 2, "redelivery_delay": 0}},
    }
    shop = Shop(server, place / pool, settings=settings, module="tests.support.apps.letter_shop")
    try:
        shop.start("-Q", "celery,DLQ.celery", pool=pool)
        edited, discarded, failing = (shop.send("picky", what) for what in ("edit", "discard", "fail"))
        shop.ended(edited, "succeeded")
        shop.ended(discarded, "discarded")
        assert parked(shop, failing)["deaths"][0]["reason"] == "exhausted"
        assert len(calls(shop, failing)) == 2
        assert shop.leftovers() == {}
    finally:
        shop.stop()
        server.stop(9)


# without a handler


@pytest.fixture(scope="module")
def consumed(place: Path) -> Iterator[Shop]:
    """A worker without a handler: on a queue and its dead-letter queue, and on two queues that dead-letter into each other."""
    server = served(place / "c")
    settings = {
        "queues": {
            "#": {"max_delivery_attempts": 2, "redelivery_delay": 0.1},
            "here": {"dead_letter_queue": "there"},
            "there": {"dead_letter_queue": "here"},
        },
    }
    shop = Shop(server, place / "c", settings=settings)
    shop.start("-Q", "celery,DLQ.celery,here,there")
    yield shop
    shop.stop()
    server.stop(9)


def test_a_dead_letter_queue_that_is_consumed_is_an_origin(consumed: Shop) -> None:
    """Its dead letters live again with all their attempts, die again, and are parked; the books have two lives, each ended once."""
    task_id = consumed.send("fails")
    header = parked(consumed, task_id)
    assert [(event.outcome, event.generation) for event in consumed.events_of(task_id)] == [
        ("published", 0),
        ("redelivery_scheduled", 0),
        ("dead_lettered", 0),
        ("redriven", 1),
        ("redelivery_scheduled", 1),
        ("dead_lettered", 1),
    ]
    assert len(consumed.runs(task_id)) == 4
    assert [(death["queue"], death["count"]) for death in header["deaths"]] == [("DLQ.celery", 1), ("celery", 1)]
    assert header["origin"]["queue"] == "celery"


def test_a_circle_is_not_closed(consumed: Shop) -> None:
    """A message that died here and then there is not sent back here: it is parked in its current queue, and does not run again."""
    task_id = consumed.send("fails", queue="here")
    header = parked(consumed, task_id, "DLQ.there")
    assert header["parked"] is True
    assert [(death["queue"], death["count"]) for death in header["deaths"]] == [("there", 1), ("here", 1)]
    assert len(consumed.runs(task_id)) == 4


def test_an_operators_redrive_is_no_circle(consumed: Shop) -> None:
    """It goes through the queues once more and is parked again; the record of the first death is unchanged."""
    task_id = consumed.send("fails", queue="here")
    first = parked(consumed, task_id, "DLQ.there")
    install = Redelivery(Celery("operator", broker=consumed.server.url, set_as_current=False), consumed.settings)
    assert redrive(redis_of(install), "DLQ.there", Filter(task_ids=frozenset({task_id}))).moved == 1
    until(lambda: len(consumed.runs(task_id)) == 8, what="the same way again")
    again = until(lambda: parked(consumed, task_id, "DLQ.there"))
    assert [(death["queue"], death["count"]) for death in again["deaths"]] == [("there", 2), ("here", 2)]
    assert (again["first_death"], again["generation"]) == (first["first_death"], 3)
    install.transport.close()


# the letter and the decorator, without a worker


def letter(**options: Any) -> Letter:
    """A letter as its handler gets it."""
    message = task_message("a", body=options.pop("body", body_of(1, 2)), **options)
    failed = Failed(type="ValueError", message="no")
    attempt = Attempt(at_ms=5, worker="w", exception="ValueError: no")
    facts: dict[str, Any] = {"reason": "exhausted", "at_ms": 5, "seen_ms": 1, "attempt": attempt, "failed": failed}
    return Letter.of(sealed(dead(message, "orders", dead_letter_queue="DLQ.orders", **facts)))


def test_a_letter_says_what_its_record_says() -> None:
    """Names, arguments, history."""
    read = letter()
    assert (read.task_id, read.task, read.args, read.kwargs, read.queue) == ("a", "desk.pack", [1, 2], {}, "orders")
    assert (read.reason, read.attempts, read.generation, read.handled) == ("exhausted", 1, 0, 0)
    assert (read.failure["message"], read.first_death) == ("no", {"queue": "orders", "reason": "exhausted", "at": 5})


def test_what_cannot_be_edited_says_so_in_the_handler() -> None:
    """A body that is not JSON, or arguments that JSON cannot hold, raise in the handler, before anything is sent."""
    with pytest.raises(RedriveError, match="cannot be edited"):
        letter(body="%%%").redrive(args=[1])
    with pytest.raises(RedriveError, match="not JSON"):
        letter().redrive(args=[object()])
    assert letter(body="%%%").redrive(queue="elsewhere").queue == "elsewhere"
    with pytest.raises(EnvelopeError):
        Letter.of(b"garbage")


@pytest.mark.parametrize("has_begun", [True, False])
def test_an_acknowledgement_without_a_decision_parks(monkeypatch: pytest.MonkeyPatch, *, has_begun: bool) -> None:
    """Code such as a task's own `Strategy` may acknowledge a handler's message: that does not end the dead letter."""
    parked: list[Any] = []
    monkeypatch.setattr(LetterDelivery, "_bury", lambda _, __, decided, ___: parked.append(decided.reason))
    delivery = LetterDelivery.__new__(LetterDelivery)
    delivery.ending = None
    task = SimpleNamespace(acks_late=True)
    delivery.acknowledge(SimpleNamespace(acknowledged=False, is_handed_over=has_begun, time_start=None, task=task, result=None))
    assert parked == ["rejected"]


def test_one_queue_has_one_handler() -> None:
    """A second one is refused by name, as is a handler without a queue or for a queue that keeps no dead letters."""
    install = Redelivery(Celery("a", set_as_current=False), {"queues": {"none": {"dead_letter_queue": None}}})
    install.dead_letter_handler("orders", "bills")(lambda each: each.park())
    with pytest.raises(ConfigurationError, match="'bills' has a dead-letter handler already"):
        install.dead_letter_handler("bills")(lambda each: each.park())
    for wrong in ((), (print,), (["orders", "bills"],)):
        with pytest.raises(ConfigurationError, match="needs the origin queues"):
            install.dead_letter_handler(*wrong)
    assert handlers_of(install) == {
        "DLQ.orders": "redelivery.dead_letters.orders.bills",
        "DLQ.bills": "redelivery.dead_letters.orders.bills",
    }
    install.dead_letter_handler("none")(lambda each: each.park())
    with pytest.raises(ConfigurationError, match="keeps no dead letters"):
        handlers_of(install)
