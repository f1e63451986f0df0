"""Every reason of death, from its real cause, on every pool that Celery can meet it on: queue, reason, history, event, bytes."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.envelope import Envelope
from tests.running import Shop, until
from tests.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

POOLS = ("prefork", "threads", "solo", "gevent")
MEGABYTE = 1024 * 1024

BODY = base64.b64encode(b"[[], {}, {}]").decode()


def message(body: str = BODY, content_type: str = "application/json", **headers: Any) -> bytes:
    """A message as kombu publishes it, with whatever is wrong with it."""
    named = {"lang": "py", "task": "tests.deaths.ok", "id": "no-uuid", **headers}
    properties = {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {"exchange": "", "routing_key": "q"}}
    parts = {"body": body, "content-type": content_type, "content-encoding": "utf-8"}
    return json.dumps({**parts, "headers": {k: v for k, v in named.items() if v is not None}, "properties": properties}).encode()


def nested(depth: int) -> str:
    """JSON of this depth."""
    return "[" * depth + "]" * depth


def encoded(text: str | bytes) -> str:
    """A body, as kombu encodes it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


#: What lies in a queue and cannot be run, and the reason of its death. The names are their queues.
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
    """These pools as parameters; each has a worker of its own, in one process of the test run."""
    return [pytest.param(pool, marks=pytest.mark.xdist_group(f"reasons-{pool}")) for pool in pools]


@pytest.fixture(scope="module", params=on(*POOLS))
def here(request: pytest.FixtureRequest) -> Iterator[Deaths]:
    """One worker of each pool, to which everything happens."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        queues = {queue: {"exchange": queue, "routing_key": queue} for queue in ("celery", "bounded")}
        made = Deaths(server, Path(name), settings=SETTINGS, conf={"task_queues": queues}, backend=True, module="tests.deaths")
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
    """The worker still works."""
    here.ended(here.send("ok"), "succeeded")
    assert here.workers[0].process.poll() is None


@pytest.mark.parametrize("name", list(RAW))
def test_what_cannot_be_run_is_kept_with_its_bytes(here: Deaths, name: str) -> None:
    """Celery would drop it, loop on it, or die of it. One letter, one death, and the bytes for a person to look at."""
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


@pytest.mark.parametrize("how", list(PLAYED))
def test_what_a_task_does_decides(here: Deaths, how: str) -> None:
    """It runs as often as its reason allows, and its letter tells each attempt."""
    reason, attempts = PLAYED[how]
    task_id = here.send("dies", how)
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, end.attempt, len(here.runs(task_id))) == (reason, attempts, attempts)
    envelope = Envelope.of(letter_of(here, task_id)["headers"])
    assert [(death["queue"], death["reason"]) for death in envelope.deaths] == [("celery", reason)]
    assert len(envelope.attempts) == attempts
    assert here.outcomes_of(task_id) == ["published", *["redelivery_scheduled"] * (attempts - 1), "dead_lettered"]
    lives(here)


def test_a_message_too_old_for_its_next_delay_dies_of_age(here: Deaths) -> None:
    """Before the delay that would pass `max_age`, not after it."""
    task_id = here.send("dies", "fails", queue="aged")
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, len(here.runs(task_id))) == ("max_age", 1)
    (death,) = Envelope.of(letter_of(here, task_id, "DLQ.aged")["headers"]).deaths
    assert "would pass max_age (60 s)" in death["detail"]


def test_a_message_whose_time_is_over_dies_unrun(here: Deaths) -> None:
    """The other ways of expiring have a module of their own."""
    task_id = here.send("ok", countdown=3600, expires=0.1)
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, here.runs(task_id)) == ("expired", [])


def test_a_task_that_leaves_its_process_is_a_lost_worker(here: Deaths) -> None:
    """`SystemExit` ends a pool's child, and would stop the worker where that is the worker's own process."""
    task_id = here.send("dies", "exit")
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, len(here.runs(task_id))) == ("worker_lost", 2)
    lives(here)


@pytest.mark.parametrize("here", on("prefork"), indirect=True)
def test_a_killed_child_is_a_lost_worker(here: Deaths) -> None:
    """Only prefork has children. Counted by name; the caller is told."""
    task_id = here.send("dies", "killed")
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, len(here.runs(task_id))) == ("worker_lost", 2)
    assert len(Envelope.of(letter_of(here, task_id)["headers"]).attempts) == 2
    assert here.app.AsyncResult(task_id).state == "FAILURE"
    lives(here)


@pytest.mark.parametrize("here", on("prefork"), indirect=True)
def test_a_hard_time_limit_is_one_death(here: Deaths) -> None:
    """Only prefork has one. The pool reports the time-out and the lost child: one attempt each time, and one letter."""
    task_id = here.send("dies", "hangs", time_limit=1)
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, len(here.runs(task_id))) == ("time_limit", 2)
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "dead_lettered"]
    assert len(Envelope.of(letter_of(here, task_id)["headers"]).attempts) == 2
    lives(here)


def test_a_queue_that_is_too_long_loses_its_oldest(here: Deaths) -> None:
    """Pushed by a plain producer: the keeper's work, in any worker that knows the queue."""
    plain = Shop(here.server, here.folder, plain=True, module="tests.deaths")
    ids = [plain.send("ok", queue="bounded") for _ in range(5)]
    for task_id in ids[:2]:
        assert here.ended(task_id, "dead_lettered").reason == "max_length"
    assert [letter["headers"]["id"] for letter in here.letters("DLQ.bounded")] == ids[1::-1]
    (death,) = Envelope.of(letter_of(here, ids[0], "DLQ.bounded")["headers"]).deaths
    assert (death["queue"], death["reason"]) == ("bounded", "max_length")
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
