"""Which dead messages are kept, and where: eligibility, queues without dead letters, and missing dead-letter queues."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Exchange, Queue

from redelivery.middleware.messages.envelope import Envelope
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.xdist_group("eligibility")

ELIGIBLE = "redelivery-dead-letter-eligible"
SETTINGS = {
    "queues": {
        "#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2},
        "modest": {"dead_letter_eligible": False},
        "nowhere": {"dead_letter_queue": None},
        "closed": {"auto_create_dead_letter_resources": False},
        "tidy": {"auto_delete_dead_letter_resources": True},
    },
}


def declare(here: Shop, name: str) -> None:
    """Declare a queue as the message of a refused start says."""
    with here.app.connection_for_write() as connection:
        Queue(name, Exchange(name), routing_key=name)(connection.default_channel).declare()


def remove(here: Shop, name: str) -> None:
    """Remove a queue with kombu, which removes the bindings that its connection knows."""
    with here.app.connection_for_write() as connection:
        queue = Queue(name, Exchange(name), routing_key=name)(connection.default_channel)
        queue.declare()
        queue.delete()
    assert not here.server.client.exists(name, f"_kombu.binding.{name}")


@pytest.fixture(scope="module")
def here() -> Iterator[Shop]:
    """One worker on queues that treat their dead letters differently."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        made = Shop(server, Path(name), settings=SETTINGS, backend=True, module="tests.support.apps.deaths")
        declare(made, "DLQ.closed")
        made.start("-Q", "celery,modest,nowhere,closed,tidy")
        yield made
        made.stop()
        server.stop(9)


@pytest.mark.parametrize(
    ("queue", "eligible", "outcome", "reason"),
    [
        ("celery", None, "dead_lettered", "non_retryable"),
        ("celery", True, "dead_lettered", "non_retryable"),
        ("celery", False, "discarded", "not_eligible"),
        ("celery", "no", "dead_lettered", "non_retryable"),
        ("modest", None, "discarded", "not_eligible"),
        ("modest", True, "dead_lettered", "non_retryable"),
        ("nowhere", None, "discarded", "non_retryable"),
        ("nowhere", True, "discarded", "non_retryable"),
        ("nowhere", False, "discarded", "not_eligible"),
    ],
)
def test_who_is_kept(here: Shop, queue: str, eligible: Any, outcome: str, reason: str) -> None:
    """The producer's header wins over the queue's default; a queue without a dead-letter queue keeps nothing. All is recorded."""
    headers = {} if eligible is None else {ELIGIBLE: eligible}
    task_id = here.send("dies", "gives up", queue=queue, headers=headers)
    end = here.ended(task_id, outcome)
    assert (end.reason, end.exception) == (reason, "redelivery.DeadLetter")
    assert here.outcomes_of(task_id) == ["published", outcome]
    kept = [letter["headers"]["id"] for letter in here.letters(f"DLQ.{queue}")]
    assert (task_id in kept) is (outcome == "dead_lettered")


def test_a_discarded_message_leaves_its_cause_in_the_log(here: Shop) -> None:
    """The event has the reason `not_eligible`; the log line says what the task died of."""
    task_id = here.send("dies", "fails", headers={ELIGIBLE: False})
    assert here.ended(task_id, "discarded").reason == "not_eligible"

    def written() -> str:
        lines = here.workers[0].text.splitlines()
        return next((line for line in lines if "message.discarded" in line and task_id in line), "")

    line = until(written, what="the line")
    for words in ("reason=not_eligible", "exhausted: attempt 2 of 2"):
        assert words in line


def test_a_removed_dead_letter_queue_discards_nothing(here: Shop) -> None:
    """With auto-creation off, dead messages wait and do not run again, and an alarm is logged; they move once it exists."""
    remove(here, "DLQ.closed")
    task_id = here.send("dies", "fails", queue="closed")
    until(lambda: len(here.runs(task_id)) == 2, what="its last attempt")
    until(lambda: "event=dead_letter_queue.missing" in here.workers[0].text, what="the alarm")
    raw = b"\xff garbage"
    here.server.client.lpush("closed", raw)
    until(lambda: here.server.client.zcard("redelivery:delayed:due:closed") == 2, what="both to wait")
    assert here.letters("DLQ.closed") == []
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled"]
    declare(here, "DLQ.closed")
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, end.attempt, end.exception) == ("exhausted", 2, "RuntimeError")
    assert len(here.runs(task_id)) == 2
    letters = until(lambda: len(found := here.letters("DLQ.closed")) == 2 and found, what="both letters")
    (letter,) = [each for each in letters if each["headers"]["id"] == task_id]
    envelope = Envelope.of(letter["headers"])
    assert [(death["queue"], death["reason"], death["count"]) for death in envelope.deaths] == [("closed", "exhausted", 1)]
    assert len(envelope.attempts) == 2
    assert envelope.undelivered is None
    assert here.app.AsyncResult(task_id).state == "FAILURE"


def test_an_empty_dead_letter_queue_goes_where_it_is_to_go(here: Shop) -> None:
    """`auto_delete_dead_letter_resources`: it is deleted when its last dead letter has left."""
    for queue in ("tidy", "celery"):
        here.ended(here.send("dies", "gives up", queue=queue), "dead_lettered")
    assert here.server.client.hexists("redelivery:dead_letter_queues", "DLQ.tidy")
    here.server.client.delete("DLQ.tidy")
    until(lambda: not here.server.client.hexists("redelivery:dead_letter_queues", "DLQ.tidy"), what="it to be forgotten")
    assert here.server.client.hexists("redelivery:dead_letter_queues", "DLQ.celery")


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({}, "DLQ.celery"),
        ({"dead_letter_queue": "graveyard"}, "graveyard"),
        ({"expiry_queue": "gone"}, "gone"),
    ],
    ids=["default", "named", "expiry"],
)
def test_a_worker_whose_dead_letter_queue_is_missing_refuses_to_start(
    shop: Callable[..., Shop], fields: dict[str, Any], missing: str
) -> None:
    """One line says what to declare; after that declaration the worker starts."""
    here = shop(
        settings={"queues": {"#": {"auto_create_dead_letter_resources": False, **fields}}}, module="tests.support.apps.deaths"
    )
    for name in {"DLQ.celery", "graveyard", "gone"} - {missing}:
        declare(here, name)
    worker = here.start(wait=False, pool="solo")
    assert worker.process.wait(60) != 0
    (line,) = [line for line in worker.text.splitlines() if "redelivery: error:" in line]
    assert f"dead-letter queue '{missing}' does not exist" in line
    assert f"Queue('{missing}', Exchange('{missing}'), routing_key='{missing}')(channel).declare()" in line
    declare(here, missing)
    here.start(pool="solo")
    here.ended(here.send("ok"), "succeeded")
