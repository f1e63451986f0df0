"""What a worker refuses, and how: one line that says what to do, no traceback, and the message stays where it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ReadOnlyError

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"queues": {"#": {"max_delivery_atempts": 3}}}, "did you mean 'max_delivery_attempts'"),
        ({"queues": {"#": {"max_delivery_attempts": 0}}}, "max_delivery_attempts"),
        ({"queues": {"celery": {"dead_letter_queue": "celery"}}}, "dead_letter_queue"),
        ({"queues": {"#": {"redelivery_delay": 60, "max_redelivery_delay": 5}}}, "max_redelivery_delay"),
        ({"queus": {}}, "did you mean 'queues'"),
        ({"mode": "watch"}, "mode must be"),
        ({"queues": {"#": {"auto_create_dead_letter_resources": False}}}, "dead-letter queue 'DLQ.celery' does not exist"),
    ],
    ids=["misspelt", "zero", "own-target", "cap-below-delay", "misspelt-table", "unknown-mode", "missing-dlq"],
)
def test_wrong_settings_refuse_the_worker_in_one_line(shop: Callable[..., Shop], settings: dict[str, Any], words: str) -> None:
    """The line names the setting; nothing is consumed."""
    here = shop(settings=settings)
    here.server.client.lpush("celery", b"waits")
    worker = here.start(wait=False)
    assert worker.process.wait(30) != 0
    lines = [line for line in worker.text.splitlines() if "redelivery: error:" in line]
    assert len(lines) == 1
    assert words in lines[0]
    assert "Traceback" not in worker.text
    assert here.server.client.lrange("celery", 0, -1) == [b"waits"]


@pytest.mark.parametrize(
    ("broker", "words"),
    [
        ("nonsense://:secret@x", "No such transport: nonsense"),
        ("redis://:secret@127.0.0.1:port/0", "broker_url looks like redis://host:6379/0"),
        ("redis://:secret@127.0.0.1:1/abc", "the number of a database"),
        ("redis://:1/secret@127.0.0.1:1/0", "%2F"),
        ("amqp://me:secret#@127.0.0.1:1//", "%23"),
        ("sqs://user:secret@", "No module named"),
    ],
)
def test_a_wrong_broker_url_refuses_the_worker_in_one_line(shop: Callable[..., Shop], broker: str, words: str) -> None:
    """Celery would end with a traceback, or try for ever; the line does not show the password."""
    worker = shop(broker=broker).start(wait=False)
    assert worker.process.wait(60) != 0
    (line,) = [line for line in worker.text.splitlines() if "redelivery: error:" in line]
    assert words in line
    assert "Traceback" not in worker.text
    assert "secret" not in worker.text


def test_a_dead_letter_queue_that_exists_is_enough(shop: Callable[..., Shop]) -> None:
    """With auto-creation off, a declared queue lets the worker start, and letters go there."""
    here = shop(settings={"queues": {"#": {"auto_create_dead_letter_resources": False, "max_delivery_attempts": 1}}})
    here.server.client.sadd("_kombu.binding.DLQ.celery", "DLQ.celery\x06\x16\x06\x16DLQ.celery")
    here.start()
    here.ended(here.send("fails"), "dead_lettered")
    assert len(here.letters()) == 1


def test_the_start_up_line_says_what_will_happen(shop: Callable[..., Shop]) -> None:
    """Broker, guarantee, queues, and where their dead letters go."""
    here = shop()
    worker = here.start()
    line = until(lambda: next((line for line in worker.text.splitlines() if "event=worker.started" in line), ""), 60)
    for words in (
        "at least once",
        "queues=celery",
        "dead_letter_queues=DLQ.celery",
        "acknowledged_early=tests.support.shop.early",
        "mode=enforce",
        "received_by=redelivery",
        "celery: 3 attempts, 0.2 s x 2 up to 600 s",
        "not_enabled=none",
        here.server.socket,
    ):
        assert words in line


def test_a_full_server_refuses_publications_and_loses_nothing(shop: Callable[..., Shop]) -> None:
    """The producer gets an error; running tasks end, die and are recorded."""
    here = shop(settings={"queues": {"#": {"max_delivery_attempts": 1}}})
    ids = [here.send("ok") for _ in range(5)]
    failing = here.send("fails")
    here.server.client.config_set("maxmemory-policy", "noeviction")
    here.server.client.config_set("maxmemory", 1)
    with pytest.raises(Exception, match=r"OOM|memory"):
        here.send("ok")
    worker = here.start()
    for task_id in ids:
        here.ended(task_id, "succeeded")
    here.ended(failing, "dead_lettered")
    assert here.leftovers() == {}
    assert "Traceback (most recent call last):\n  File" not in worker.text.split("raised unexpected")[0]


def test_a_read_only_server_is_waited_for(shop: Callable[..., Shop]) -> None:
    """A master that becomes a replica refuses writes; when it is master again, all work goes on."""
    here = shop()
    worker = here.start()
    running = here.send("naps", 3)
    until(lambda: here.runs(running), 60)
    task_id = here.send("ok", countdown=2)
    here.ended(task_id, "deferred")
    here.server.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(ReadOnlyError):
        here.server.client.set("probe", "1")
    until(lambda: len(here.runs(running)) == 2, 60, "the nap to end while nothing can be written")
    until(lambda: "transition.postponed" in worker.text, 60, "the postponed acknowledgement")
    here.server.client.execute_command("REPLICAOF", "NO", "ONE")
    here.ended(running, "succeeded", 30)
    here.ended(task_id, "succeeded", 30)
    assert [run["event"] for run in here.runs(running)] == ["start", "end"]
    assert worker.process.poll() is None


def test_a_worker_started_on_a_read_only_server_waits_until_it_is_not(shop: Callable[..., Shop]) -> None:
    """It says so, and starts when the server can be written to."""
    here = shop()
    here.server.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    worker = here.start(wait=False)
    until(lambda: "the broker is read-only" in worker.text, 30, worker.text[-500:])
    here.server.client.execute_command("REPLICAOF", "NO", "ONE")
    here.ended(here.send("ok"), "succeeded", 60)
    assert worker.process.poll() is None


def test_a_broker_that_is_not_there_is_waited_for_as_celery_waits(shop: Callable[..., Shop]) -> None:
    """The worker logs Celery's own message, and starts when the broker is there."""
    here = shop()
    here.server.kill()
    worker = here.start(wait=False)
    until(lambda: "Cannot connect to" in worker.text, 30, worker.text[-500:])
    here.server.start()
    until(lambda: "ready." in worker.text, 60, worker.text[-2000:])
    here.ended(here.send("ok"), "succeeded")


def test_the_hosts_logging_is_left_alone(shop: Callable[..., Shop]) -> None:
    """The import and the installation add no handler, no filter and no structlog configuration."""
    import logging  # noqa: PLC0415 - the import is what is tested

    import structlog  # noqa: PLC0415 - the same

    before = (list(logging.root.handlers), list(logging.root.filters), structlog.is_configured(), logging.root.level)
    here = shop()
    assert here.app is not None
    here.send("ok")
    after = (list(logging.root.handlers), list(logging.root.filters), structlog.is_configured(), logging.root.level)
    assert before == after
    assert logging.getLogger("redelivery").handlers == []


def test_a_message_published_by_a_plain_producer_opens_its_life_at_its_worker(shop: Callable[..., Shop]) -> None:
    """The books cannot know of it earlier, and the event says so."""
    here = shop()
    here.start()
    plain = type(here)(here.server, here.folder, plain=True)
    task_id = plain.send("fails", 1)
    here.ended(task_id, "succeeded")
    events = here.events_of(task_id)
    assert [(event.outcome, event.reason) for event in events] == [
        ("received", "unannounced"),
        ("redelivery_scheduled", ""),
        ("succeeded", ""),
    ]
    assert json.loads(json.dumps(events[0].to_dict()))["task_id"] == task_id
