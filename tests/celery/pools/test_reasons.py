"""Every reason of death, from its real cause, on every pool that can have it: queue, reason, history, event, bytes."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.envelope import MAX_ATTEMPTS, Envelope
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.move import move
from redelivery.workers.operations.letters.redrive.redrive import Edit, redrive
from tests.support.lanes import first_quick
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

POOLS = ("prefork", "threads", "solo", "gevent")
MEGABYTE = 1024 * 1024

BODY = base64.b64encode(b"[[], {}, {}]").decode()


def message(body: str = BODY, content_type: str = "application/json", **headers: Any) -> bytes:
    """A message as kombu publishes it, with the given faults."""
    named = {"lang": "py", "task": "tests.support.apps.deaths.ok", "id": "no-uuid", **headers}
    properties = {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {"exchange": "", "routing_key": "q"}}
    parts = {"body": body, "content-type": content_type, "content-encoding": "utf-8"}
    return json.dumps({**parts, "headers": {k: v for k, v in named.items() if v is not None}, "properties": properties}).encode()


def nested(depth: int) -> str:
    """JSON of this depth."""
    return "[" * depth + "]" * depth


def encoded(text: str | bytes) -> str:
    """A body, as kombu encodes it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


#: Messages that cannot run, each in a queue of its name, and the reason of its death.
RAW: dict[str, tuple[bytes, str]] = {
    "garbage": (b"\xff\xfe\x00 garbage", "undecodable"),
    "empty": (b"", "undecodable"),
    "list": (b'["a", "list"]', "undecodable"),
    "number": (b"17", "undecodable"),
    "no_properties": (b'{"body": "W10=", "headers": {"id": "x", "task": "t"}}', "undecodable"),
    "null_properties": (b'{"body": "W10=", "headers": {"id": "x", "task": "t"}, "properties": null}', "undecodable"),
    "null_headers": (b'{"body": "W10=", "headers": null, "properties": {}}', "invalid"),
    "nested_message": (('{"body": ' + nested(100_000) + "}").encode(), "undecodable"),
    "body_no_json": (message(encoded("not json")), "undecodable"),
    "body_no_base64": (message("***"), "invalid"),
    "nested_body": (message(encoded(nested(100_000))), "undecodable"),
    "refused_type": (message(encoded(b"\x80\x04N."), "application/x-python-serialize"), "undecodable"),
    "unknown_type": (message(encoded("x"), "application/x-nobody-knows"), "undecodable"),
    "no_id": (message(id=None), "invalid"),
    "no_task": (message(task=None), "invalid"),
    "no_triple": (message(encoded("[]")), "invalid"),
    "body_a_number": (message(encoded("17")), "invalid"),
    "bad_expires": (message(expires="tomorrow, perhaps"), "invalid"),
    "bad_limits": (message(timelimit="soon"), "invalid"),
    "unknown_task": (message(encoded("[[], {}, {}]"), task="no.such.task"), "unknown_task"),
}
#: What a task does, and the reason of its death; every one of them is delivered twice at the most.
PLAYED: dict[str, tuple[str, int]] = {
    "fails": ("exhausted", 2),
    "memory": ("exhausted", 2),
    "listed": ("non_retryable", 1),
    "gives up": ("non_retryable", 1),
    "rejects": ("rejected", 1),
}
SETTINGS = {
    "queues": {
        "#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2, "non_retryable": ["LookupError"]},
        "aged": {"max_age": 60, "redelivery_delay": 120, "max_delivery_attempts": 10},
        "bounded": {"max_length": 3},
    },
}


class Deaths(Shop):
    """A shop with one worker."""

    pool: str


def on(*pools: str) -> list[Any]:
    """These pools as parameters; each has its own worker, in one process of the test run."""
    return first_quick(pytest.param(pool, marks=pytest.mark.xdist_group(f"reasons-{pool}")) for pool in pools)


@pytest.fixture(scope="module", params=on(*POOLS))
def here(request: pytest.FixtureRequest) -> Iterator[Deaths]:
    """One worker of each pool, on which all deaths happen."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        queues = {queue: {"exchange": queue, "routing_key": queue} for queue in ("celery", "bounded")}
        made = Deaths(
            server, Path(name), settings=SETTINGS, conf={"task_queues": queues}, backend=True, module="tests.support.apps.deaths"
        )
        made.pool = request.param
        made.start("-Q", ",".join(["celery", "aged", "huge", *RAW]), pool=made.pool)
        yield made
        made.stop()
        server.stop(9)


def letter_of(here: Deaths, task_id: str, queue: str = "DLQ.celery") -> dict[str, Any]:
    """The letter of a task."""
    (found,) = [each for each in here.letters(queue) if each["headers"]["id"] == task_id]
    return found


def lives(here: Deaths) -> None:
    """Check that the worker still works."""
    here.ended(here.send("ok"), "succeeded")
    assert here.workers[0].process.poll() is None


@pytest.mark.parametrize("name", list(RAW))
def test_what_cannot_be_run_is_kept_with_its_bytes(here: Deaths, name: str) -> None:
    """Celery would drop it, loop on it, or die of it. Here one death makes one dead letter, with the bytes for a person to read."""
    raw, reason = RAW[name]
    here.server.client.lpush(name, raw)
    (letter,) = until(lambda: here.letters(f"DLQ.{name}"), what=f"a letter; the worker says {here.workers[0].text[-2000:]}")
    envelope = Envelope.of(letter["headers"])
    (death,) = envelope.deaths
    assert (death["queue"], death["reason"], death["count"]) == (name, reason, 1)
    assert envelope.origin["queue"] == name
    assert envelope.failure is not None
    if letter["content-type"] == "application/octet-stream":
        assert base64.b64decode(letter["body"]) == raw
    else:
        original = json.loads(raw)
        assert letter["body"] == original["body"]
        kept = {**letter["headers"], "expires": original["headers"].get("expires")}
        assert {key: kept.get(key) for key in original["headers"]} == original["headers"]
    events = [event for event in here.events if event.queue == name]
    assert [(event.outcome, event.reason) for event in events] == [("received", "unannounced"), ("dead_lettered", reason)]
    assert {event.task_id for event in events} == {letter["headers"]["id"]}
    lives(here)


def died(here: Deaths, task_id: str, reason: str, *, attempts: int, queue: str = "celery") -> Envelope:
    """Wait for its death, and check queue, reason, history and events for so many attempts. Returns its envelope."""
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, end.queue, end.generation, len(here.runs(task_id))) == (reason, queue, 0, attempts)
    envelope = Envelope.of(letter_of(here, task_id, f"DLQ.{queue}")["headers"])
    (death,) = envelope.deaths
    assert (death["queue"], death["reason"], death["count"]) == (queue, reason, 1)
    assert death["first"] == death["last"]
    assert envelope.first_death == {"queue": queue, "reason": reason, "at": death["first"]}
    assert (envelope.attempt, len(envelope.attempts), envelope.origin["queue"]) == (attempts, attempts, queue)
    steps = ["published", *["redelivery_scheduled"] * (attempts - 1), "dead_lettered"]
    assert [each for each in here.outcomes_of(task_id) if each != "deferred"] == steps
    return envelope


@pytest.mark.parametrize("how", list(PLAYED))
def test_what_a_task_does_decides(here: Deaths, how: str) -> None:
    """It runs as often as its reason allows, and its dead letter has each attempt."""
    reason, attempts = PLAYED[how]
    task_id = here.send("dies", how)
    envelope = died(here, task_id, reason, attempts=attempts)
    assert here.ended(task_id, "dead_lettered").attempt == attempts
    assert all(each["exception"] for each in envelope.attempts)
    lives(here)


@pytest.mark.parametrize("how", ["fails", "listed", "gives up"])
def test_an_on_failure_that_raises_changes_neither_reason_nor_failure(here: Deaths, how: str) -> None:
    """A result backend that refuses the failure is the same to the tracer."""
    reason, attempts = PLAYED[how]
    failure = died(here, here.send("dies_twice", how), reason, attempts=attempts).failure or {}
    assert failure["type"] == {"fails": "RuntimeError", "listed": "LookupError", "gives up": "redelivery.DeadLetter"}[how]
    lives(here)


def test_a_message_too_old_for_its_next_delay_dies_of_age(here: Deaths) -> None:
    """It dies before the delay that would exceed `max_age`, not after it."""
    task_id = here.send("dies", "fails", queue="aged")
    (death,) = died(here, task_id, "max_age", attempts=1, queue="aged").deaths
    assert "would pass max_age (60 s)" in death["detail"]


def test_a_message_whose_time_is_over_dies_unrun(here: Deaths) -> None:
    """`test_expiry.py` has the other ways to expire."""
    died(here, here.send("ok", countdown=3600, expires=0.1), "expired", attempts=0)


def test_a_task_that_leaves_its_process_is_a_lost_worker(here: Deaths) -> None:
    """`SystemExit` ends a child of the pool; in a pool without children it would stop the worker."""
    died(here, here.send("dies", "exit"), "worker_lost", attempts=2)
    lives(here)


def test_what_is_not_to_be_kept_is_discarded_with_its_reason(here: Deaths) -> None:
    """Its producer asked for that: no dead letter, one event, and a log line that says what it died of."""
    task_id = here.send("dies", "fails", headers={"redelivery-dead-letter-eligible": False})
    end = here.ended(task_id, "discarded")
    assert (end.reason, end.queue, end.attempt, len(here.runs(task_id))) == ("not_eligible", "celery", 2, 2)
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "discarded"]
    assert task_id not in {letter["headers"]["id"] for letter in here.letters()}
    until(lambda: any(task_id in line and "exhausted" in line for line in here.workers[0].text.splitlines()), what="the line")


def test_a_letter_that_an_operator_moves_dies_by_his_hand(here: Deaths) -> None:
    """Moved from one dead-letter queue to another, it is the next generation, dead; its earlier death stays in the history."""
    task_id = here.send("dies", "gives up")
    died(here, task_id, "non_retryable", attempts=1)
    chosen = Filter(task_ids=frozenset({task_id}))
    assert move(here.app.redelivery.transport, "DLQ.celery", "DLQ.later", chosen).moved == 1
    envelope = Envelope.of(letter_of(here, task_id, "DLQ.later")["headers"])
    assert [(each["queue"], each["reason"]) for each in envelope.deaths] == [
        ("DLQ.celery", "operator"),
        ("celery", "non_retryable"),
    ]
    assert (envelope.first_death or {})["reason"] == "non_retryable"
    assert [(event.outcome, event.generation, event.reason) for event in here.events_of(task_id)[1:]] == [
        ("dead_lettered", 0, "non_retryable"),
        ("redriven", 1, ""),
        ("dead_lettered", 1, "operator"),
    ]
    assert task_id not in {letter["headers"]["id"] for letter in here.letters()}


@pytest.mark.parametrize("here", on("threads"), indirect=True)
def test_a_task_that_dies_again_and_again_has_one_short_history(here: Deaths) -> None:
    """After 24 redrives of two kinds: newest first, each kind counted once, the first unchanged, and the history does not grow."""
    task_id, transport, sizes = here.send("dies", "gives up"), here.app.redelivery.transport, []
    first = died(here, task_id, "non_retryable", attempts=1).first_death
    for generation in range(1, 25):
        came, goes = ("aged", "celery") if generation % 2 == 0 else ("celery", "aged")
        there = redrive(transport, f"DLQ.{came}", Filter(task_ids=frozenset({task_id})), edit=Edit(queue=goes))
        assert there.moved == 1
        until(lambda: here.events_of(task_id)[-1].outcome == "dead_lettered", what="its next death")
        letter = letter_of(here, task_id, f"DLQ.{goes}")
        envelope = Envelope.of(letter["headers"])
        counts = [(each["queue"], each["count"]) for each in envelope.deaths]
        assert counts == [(goes, generation // 2 + 1), (came, (generation + 1) // 2)]
        assert envelope.deaths[0]["last"] >= envelope.deaths[1]["last"]
        assert (envelope.first_death, envelope.generation, envelope.attempt) == (first, generation, 1)
        assert len(envelope.attempts) == min(generation + 1, MAX_ATTEMPTS)
        sizes.append(len(json.dumps(letter)))
    assert max(sizes[MAX_ATTEMPTS:]) - min(sizes[MAX_ATTEMPTS:]) < 100  # a few digits more


@pytest.mark.parametrize("here", on("prefork"), indirect=True)
def test_a_killed_child_is_a_lost_worker(here: Deaths) -> None:
    """Only prefork has children. The reason is counted, and the caller informed."""
    task_id = here.send("dies", "killed")
    died(here, task_id, "worker_lost", attempts=2)
    assert here.app.AsyncResult(task_id).state == "FAILURE"
    lives(here)


@pytest.mark.parametrize("here", on("prefork"), indirect=True)
def test_a_hard_time_limit_is_one_death(here: Deaths) -> None:
    """Only prefork has one. The pool reports the time-out and the lost child: one attempt each time, and one dead letter."""
    died(here, here.send("dies", "hangs", time_limit=1), "time_limit", attempts=2)
    lives(here)


def test_a_queue_that_is_too_long_loses_its_oldest(here: Deaths) -> None:
    """A plain producer pushed too many: the keeper, in any worker that knows the queue, evicts the oldest."""
    plain = Shop(here.server, here.folder, plain=True, module="tests.support.apps.deaths")
    ids = [plain.send("ok", queue="bounded") for _ in range(5)]
    for task_id in ids[:2]:
        assert here.ended(task_id, "dead_lettered").reason == "max_length"
        assert here.outcomes_of(task_id) == ["received", "dead_lettered"]
    assert [letter["headers"]["id"] for letter in here.letters("DLQ.bounded")] == ids[1::-1]
    (death,) = Envelope.of(letter_of(here, ids[0], "DLQ.bounded")["headers"]).deaths
    assert (death["queue"], death["reason"], death["count"]) == ("bounded", "max_length", 1)
    waiting = [json.loads(raw)["headers"]["id"] for raw in here.server.client.lrange("bounded", 0, -1)]
    assert waiting == ids[:1:-1]
    until(lambda: here.app.AsyncResult(ids[0]).state == "FAILURE", what="its caller to be told")


@pytest.mark.parametrize("here", on("prefork", "solo"), indirect=True)
def test_a_body_of_32_megabytes(here: Deaths) -> None:
    """Garbage of that size is kept to the byte, and a task with such an argument runs."""
    raw = b"\xff" * (32 * MEGABYTE)
    here.server.client.lpush("huge", raw)
    task_id = here.send("ok", "x" * (32 * MEGABYTE), ignore_result=True)
    until(lambda: here.server.client.llen("DLQ.huge"), what="the letter")
    letter = json.loads(here.server.client.lindex("DLQ.huge", 0))
    assert base64.b64decode(letter["body"]) == raw
    here.ended(task_id, "succeeded")
