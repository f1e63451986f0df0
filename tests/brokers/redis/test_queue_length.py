"""The maximum length of a queue: our own producers keep it exactly, and the queue keeper enforces it for plain producers."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from structlog.testing import capture_logs

from redelivery import Redelivery, errors
from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.messages.events import Event, entries
from redelivery.middleware.messages.steps import dead, sealed
from redelivery.middleware.worker.lifecycle import begin
from redelivery.settings import RedeliverySettings
from redelivery.workers.brokers.redis import taken_keys
from redelivery.workers.brokers.redis.transport import redis_of
from redelivery.workers.duties.bounds.queue_bounds import QueueKeeper
from tests.support.desk import task_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

#: The most messages of the bounded queue.
N = 4


class Producer:
    """An app that publishes to a bounded queue, on a private server."""

    def __init__(self, server: Server, **fields: Any) -> None:
        self.client = server.client
        self.app = Celery("producer", broker=server.url, set_as_current=False)
        self.app.conf.task_default_queue = "bounded"
        settings = {"queues": {"bounded": {"max_length": N, **fields}}}
        self.install = Redelivery(self.app, settings)
        self.plain = Celery("plain", broker=server.url, set_as_current=False)

    def send(self, count: int = 1, *, plain: bool = False, queue: str = "bounded", **options: Any) -> list[str]:
        """Publish so many messages; their ids, the oldest first."""
        app = self.plain if plain else self.app
        return [str(app.send_task("shop.pack", (), queue=queue, **options).id) for _ in range(count)]

    def ids(self, name: str = "bounded") -> list[str]:
        """The ids of what lies in a list, the oldest first."""
        return [json.loads(raw)["headers"]["id"] for raw in reversed(self.client.lrange(name, 0, -1))]

    @property
    def waiting(self) -> int:
        """How many messages the bounded queue holds, all priorities together."""
        return sum(int(self.client.llen(name)) for name in redis_of(self.install).keys.list_names("bounded"))

    def events_of(self, task_id: str) -> list[Event]:
        """One task's events, in order."""
        return [event for event in entries(self.client.xrange("redelivery:outcomes")) if event.task_id == task_id]

    def keep(self) -> QueueKeeper:
        """One step of the keeper, as its worker's thread runs it."""
        begin(self.install, "keeper@test")
        keeper = QueueKeeper(self.install)
        keeper.step()
        return keeper


@pytest.fixture
def producer(any_server: Server) -> Iterator[Producer]:
    """A producer on each kind of server."""
    made = Producer(any_server)
    yield made
    made.app.close()


@pytest.mark.parametrize("count", [N - 1, N, N + 1])
def test_the_oldest_dies_when_the_cap_is_passed(producer: Producer, count: int) -> None:
    """Checked one below, exactly at and one above the cap."""
    ids = producer.send(count)
    assert producer.ids() == ids[-N:]
    assert producer.ids("DLQ.bounded") == ids[:-N]
    outcomes = [[event.outcome for event in producer.events_of(task_id)] for task_id in ids]
    assert outcomes == [["published", "dead_lettered"]] * max(count - N, 0) + [["published"]] * min(count, N)


def test_its_letter_is_whole_and_says_why(producer: Producer) -> None:
    """The death record has the reason and the cap; the rest of the message is unchanged."""
    (oldest,) = producer.send(headers={"tenant": "t1"})
    (before,) = producer.client.lrange("bounded", 0, -1)
    producer.send(N)
    (raw,) = producer.client.lrange("DLQ.bounded", 0, -1)
    letter, original = json.loads(raw), json.loads(before)
    (death,) = Envelope.of(letter["headers"]).deaths
    assert (death["queue"], death["reason"], death["count"]) == ("bounded", "max_length", 1)
    assert death["detail"] == f"the queue holds {N} messages (max_length)"
    assert letter["body"] == original["body"]
    kept = {key: value for key, value in original["headers"].items() if key != "expires"}
    assert {key: value for key, value in letter["headers"].items() if key != "redelivery"} == kept
    assert producer.events_of(oldest)[-1].reason == "max_length"
    assert producer.client.hget("redelivery:dead_letter_queues", "DLQ.bounded") == b"bounded"


def test_priorities_count_together_and_the_least_urgent_goes_first(producer: Producer) -> None:
    """Kombu keeps a list for each priority; 0 is the most urgent. The oldest of the least urgent makes room."""
    urgent = producer.send(N - 2)
    slow = producer.send(2, priority=9)
    later = producer.send(1, priority=3)
    assert producer.waiting == N
    assert producer.ids("DLQ.bounded") == slow[:1]
    latest = producer.send(2)
    assert producer.waiting == N
    assert producer.ids("DLQ.bounded") == [*slow, *later]
    assert producer.ids() == [*urgent, *latest]


@pytest.mark.parametrize("count", [N - 1, N, N + 1])
def test_a_queue_that_refuses_takes_no_more_than_its_cap(any_server: Server, count: int) -> None:
    """The producer gets an error; nothing is stored or recorded."""
    producer = Producer(any_server, overflow="refuse_publish")
    ids = producer.send(min(count, N))
    if count > N:
        with pytest.raises(errors.QueueFull, match=rf"'bounded' holds {N} messages .*publish again later"):
            producer.send(task_id="refused")
        assert producer.events_of("refused") == []
    assert producer.ids() == ids
    assert not producer.client.exists("DLQ.bounded")
    producer.client.rpop("bounded")
    producer.send()
    assert producer.waiting == min(count, N)


def test_a_queue_without_a_cap_is_asked_nothing(producer: Producer) -> None:
    """Publishing to it needs no extra commands."""
    assert producer.install.policies.bounds_of("other", "shop.pack") is None
    ids = producer.send(3 * N, queue="other")
    assert producer.ids("other") == ids


def test_many_producers_at_once_keep_the_cap_and_lose_nothing(producer: Producer) -> None:
    """Each message is once in the queue or once a dead letter, and the queue never exceeds its cap."""
    found: list[str] = []
    longest: list[int] = []
    done = threading.Event()

    def publish() -> None:
        for _ in range(40):
            found.extend(producer.send())

    def watch() -> None:
        client = producer.client
        while not done.is_set() or not longest:
            longest.append(client.llen("bounded"))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    watcher = threading.Thread(target=watch)
    for thread in (*threads, watcher):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    kept, letters = producer.ids(), producer.ids("DLQ.bounded")
    assert len(kept) == N
    assert max(longest) <= N
    assert sorted([*kept, *letters]) == sorted(found)
    died = [event.task_id for event in entries(producer.client.xrange("redelivery:outcomes")) if event.outcome == "dead_lettered"]
    assert sorted(died) == sorted(letters)


@pytest.mark.parametrize("fields", [{"dead_letter_queue": None}, {"dead_letter_eligible": False}], ids=["no queue", "not eligible"])
def test_what_is_not_kept_is_discarded_and_recorded(any_server: Server, fields: dict[str, Any]) -> None:
    """The cap holds without a dead-letter queue, too."""
    producer = Producer(any_server, **fields)
    ids = producer.send(N + 1)
    assert producer.ids() == ids[1:]
    assert [event.outcome for event in producer.events_of(ids[0])] == ["published", "discarded"]
    reason = "max_length" if "dead_letter_queue" in fields else "not_eligible"
    assert producer.events_of(ids[0])[-1].reason == reason
    assert not producer.client.exists("DLQ.bounded")


def test_nothing_is_evicted_into_a_queue_that_is_missing(any_server: Server) -> None:
    """With auto-creation off, the queue grows past its cap, an alarm is logged, and it shrinks once the queue exists."""
    producer = Producer(any_server, auto_create_dead_letter_resources=False)
    with capture_logs() as lines:
        ids = producer.send(N + 2)
        producer.keep()
    assert producer.ids() == ids
    alarms = [line for line in lines if line["event"] == "dead_letter_queue.missing"]
    assert {(line["log_level"], line["dead_letter_queue"]) for line in alarms} == {("error", "DLQ.bounded")}
    producer.client.sadd("_kombu.binding.DLQ.bounded", "DLQ.bounded\x06\x16\x06\x16DLQ.bounded")
    producer.keep()
    assert (producer.ids(), producer.ids("DLQ.bounded")) == (ids[2:], ids[:2])


@pytest.mark.parametrize("count", [N - 1, N, N + 1, 3 * N])
def test_the_keeper_evicts_what_plain_producers_push_beyond_the_cap(producer: Producer, count: int) -> None:
    """The oldest go first, down to exactly the cap; the books get the start and the end of their lives."""
    ids = producer.send(count, plain=True)
    producer.keep()
    assert producer.ids() == ids[-N:]
    assert producer.ids("DLQ.bounded") == ids[:-N]
    for task_id in ids[:-N]:
        events = [(event.outcome, event.reason) for event in producer.events_of(task_id)]
        assert events == [("received", "unannounced"), ("dead_lettered", "max_length")]


def test_the_keeper_counts_priorities_together(producer: Producer) -> None:
    """Our own producers do the same."""
    slow = producer.send(N, plain=True, priority=9)
    urgent = producer.send(2, plain=True)
    producer.keep()
    assert producer.waiting == N
    assert (producer.ids(), producer.ids("DLQ.bounded")) == (urgent, slow[:2])


def test_the_keeper_keeps_the_bytes_of_what_is_no_message(producer: Producer) -> None:
    """Bytes that are no message have an age too, and become a dead letter unchanged."""
    producer.client.lpush("bounded", b"\xff garbage")
    producer.send(N, plain=True)
    producer.keep()
    (raw,) = producer.client.lrange("DLQ.bounded", 0, -1)
    letter = json.loads(raw)
    assert letter["content-type"] == "application/octet-stream"
    assert Envelope.of(letter["headers"]).deaths[0]["reason"] == "max_length"


def test_a_letter_that_makes_room_only_moves(producer: Producer) -> None:
    """If the bounded queue is a dead-letter queue itself, the evicted dead letter only moves: its death is recorded already."""
    message = task_message("letter")
    letter = dead(
        message,
        "elsewhere",
        dead_letter_queue="bounded",
        reason="exhausted",
        at_ms=2,
        seen_ms=1,
        attempt=None,
        failed=None,
    )
    producer.client.lpush("bounded", sealed(letter))
    producer.send(N, plain=True)
    producer.keep()
    assert (producer.waiting, producer.ids("DLQ.bounded")) == (N, ["letter"])
    assert producer.events_of("letter") == []
    moved = json.loads(producer.client.lindex("DLQ.bounded", 0))
    deaths = Envelope.of(moved["headers"]).deaths
    assert [(death["queue"], death["reason"]) for death in deaths] == [("bounded", "max_length"), ("elsewhere", "exhausted")]


def test_the_keeper_takes_nothing_away_from_a_queue_that_refuses(any_server: Server) -> None:
    """Accepted messages stay; one line says that the queue is too long, and is not repeated at every look."""
    producer = Producer(any_server, overflow="refuse_publish")
    ids = producer.send(N + 1, plain=True)
    with capture_logs() as lines:
        keeper = producer.keep()
        keeper.step()
    assert producer.ids() == ids
    (line,) = [line for line in lines if line["event"] == "queue.too_long"]
    assert (line["queue"], line["length"], line["max_length"]) == ("bounded", N + 1, N)


def test_an_empty_dead_letter_queue_is_forgotten_where_it_is_to_be(any_server: Server) -> None:
    """With `auto_delete_dead_letter_resources` a queue is deleted once it is empty; the next dead letter creates it again."""
    producer = Producer(any_server, auto_delete_dead_letter_resources=True)
    producer.send(N + 1)
    producer.keep()
    assert producer.client.hexists("redelivery:dead_letter_queues", "DLQ.bounded")
    producer.client.delete("DLQ.bounded")
    producer.keep()
    assert not producer.client.hexists("redelivery:dead_letter_queues", "DLQ.bounded")
    producer.send()
    assert producer.client.hexists("redelivery:dead_letter_queues", "DLQ.bounded")


@pytest.mark.parametrize("wrong", ["redelivery:outcomes", "redelivery:dead_letter_queues", "DLQ.bounded"])
def test_a_key_of_another_type_refuses_the_publication_and_changes_nothing(producer: Producer, wrong: str) -> None:
    """The script looks at each key before its first write."""
    ids = producer.send(N)
    producer.client.rename(wrong, "aside") if producer.client.exists(wrong) else None
    producer.client.set(wrong, "of another type")
    with pytest.raises(Exception, match="WRONGTYPE"):
        producer.send()
    assert producer.ids() == ids


@pytest.mark.parametrize("command", ["rpop", "hset", "xadd"])
def test_a_command_that_may_not_be_used_evicts_nothing(producer: Producer, command: str) -> None:
    """Neither a publication nor the keeper loses a message of the queue, or moves one without a record."""
    begin(producer.install, "keeper@test")
    ids = producer.send(N) + producer.send(plain=True)
    recorded = producer.client.xlen("redelivery:outcomes")
    producer.client.execute_command("ACL", "SETUSER", "default", f"-{command}")
    try:
        with pytest.raises(Exception, match=r"permission|can.t run"):
            producer.send(retry=False)
        with pytest.raises(Exception, match=r"permission|can.t run"):
            QueueKeeper(producer.install).step()
    finally:
        producer.client.execute_command("ACL", "SETUSER", "default", "+@all")
    assert (producer.ids(), producer.ids("DLQ.bounded")) == (ids, [])
    assert producer.client.xlen("redelivery:outcomes") == recorded
    producer.keep()
    assert (producer.ids(), producer.ids("DLQ.bounded")) == (ids[1:], ids[:1])


def test_a_queue_whose_key_is_another_programs_is_named_and_stops_no_other(any_server: Server) -> None:
    """Nor does a taken dead-letter queue."""
    taken_keys.warn_of_taken.cache_clear()
    producer = Producer(any_server)
    bounds = {"max_length": N, "max_time_to_live": 60.0, "auto_delete_dead_letter_resources": True}
    producer.install.policies.__dict__["settings"] = RedeliverySettings.load(
        {"queues": {"another": bounds, "emptied": bounds, "bounded": {"max_length": N}}}
    )
    for name in ("another", "emptied", "bounded"):
        producer.app.amqp.queues.select_add(name)
    producer.client.set("another", "a page of the cache")
    producer.client.set("DLQ.emptied", "a page of the cache")
    ids = producer.send(N + 1, plain=True)
    with capture_logs() as logs:
        producer.keep()
    assert producer.ids() == ids[1:]
    assert {line["key"] for line in logs if line["event"] == "queue.taken"} == {"another", "DLQ.emptied"}
    producer.app.close()
