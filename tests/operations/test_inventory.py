"""The inventory: every message is in it once, with its place, even while workers move it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.messages.steps import redelivered, sealed
from redelivery.middleware.ports import Held
from redelivery.workers.brokers.redis.inventory import _Walk
from redelivery.workers.brokers.redis.unacked import PLAIN_WORKER
from redelivery.workers.export.sightings import MAX_MESSAGE, Inventory
from redelivery.workers.export.tables import is_on_this_machine
from redelivery.workers.letters import Contents
from redelivery.workers.operations.inventory import inventory
from tests.support.desk import LETTERS, QUEUE, Desk, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.running import Shop
    from tests.support.servers import Server


def taken(desk: Desk) -> dict[str, dict[str, Any]]:
    """Rows by task id. Raises `AssertionError` where a task has two."""
    rows = list(inventory.take(desk.install).rows())
    by_id = {row["task_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    return by_id


def test_each_message_is_in_its_place(desk: Desk) -> None:
    """Queue by priority, unacked with its worker, delayed with its due time, dead letter with its origin."""
    held = desk.publish(task_message("held"))
    desk.hold(worker="w@desk")
    desk.delay(task_message("delayed"), 60_000)
    desk.die(task_message("dead"))
    desk.publish(task_message("waiting"))
    desk.publish(task_message("urgent"), priority=9)
    rows = taken(desk)
    places = {task_id: (row["place"], row["queue"], row["owner"]) for task_id, row in rows.items()}
    assert places == {
        held: ("unacked", QUEUE, "w@desk"),
        "delayed": ("delayed", QUEUE, ""),
        "dead": ("dead_letter", QUEUE, ""),
        "waiting": ("queue", QUEUE, ""),
        "urgent": ("queue", QUEUE, ""),
    }
    now = desk.transport.now_ms()
    assert 50_000 < rows["delayed"]["due_ms"] - now < 61_000
    assert all(abs(row["seen_ms"] - now) < 5000 and row["task"] == "desk.pack" for row in rows.values())


def test_a_dead_letter_says_what_its_exception_said_and_nothing_where_it_is_redacted(desk: Desk) -> None:
    """One line, at most one sentence long; a message that is not dead has no such text."""
    desk.die(task_message("dead"), said="amount\nmust be positive")
    desk.die(task_message("long"), said="x" * 1000)
    desk.publish(task_message("waiting"))
    found = inventory.take(desk.install)
    said = {row["task_id"]: row["message"] for row in found.rows()}
    assert said == {"dead": "amount must be positive", "long": "x" * MAX_MESSAGE, "waiting": None}
    assert {row["message"] for row in found.rows(redact=True)} == {None}


@pytest.mark.parametrize(("words", "said"), [((), "no money"), (("--messages",), "no money"), (("--no-messages",), None)])
def test_what_exceptions_said_can_be_left_out_of_the_file(
    desk: Desk, tmp_path: Path, words: tuple[str, ...], said: str | None
) -> None:
    """By default a file in a folder of this machine contains them."""
    desk.die(task_message("dead"), said="no money")
    assert desk.run("inventory", "export", "--to", str(tmp_path), "--format", "jsonl", *words).exit_code == 0
    (line,) = (tmp_path / "inventory.jsonl").read_text().splitlines()
    assert json.loads(line).get("message") == said


@pytest.mark.parametrize(
    ("uri", "stays"),
    [
        ("books", True),
        ("/books", True),
        ("file:///books", True),
        ("s3://bucket/books?region=eu-west-1", False),
        ("mock:///books", False),
    ],
)
def test_what_exceptions_said_does_not_leave_this_machine_unasked(uri: str, stays: bool) -> None:
    """By default only a folder on this machine's file system gets it."""
    assert is_on_this_machine(uri) is stays


def test_a_message_of_a_worker_without_a_lease_has_no_owner(desk: Desk) -> None:
    """Its worker is gone, or is a plain Celery worker, which has no lease."""
    desk.publish(task_message("orphan"))
    desk.hold("dead-token")
    desk.client.hdel(desk.keys.leases, "dead-token")
    plain = task_message("plain")
    desk.client.hset(desk.keys.unacked, "5a-plain-tag", json.dumps([plain, "", QUEUE]))
    bound = task_message("bound")
    desk.client.sadd(desk.keys.bindings(QUEUE), desk.keys.separator.join(["key", "", "elsewhere"]))
    desk.client.hset(desk.keys.unacked, "6b-plain-tag", json.dumps([bound, QUEUE, "key"]))
    rows = taken(desk)
    assert {task_id: (row["owner"], row["queue"]) for task_id, row in rows.items()} == {
        "orphan": ("", QUEUE),
        "plain": (PLAIN_WORKER, QUEUE),
        "bound": (PLAIN_WORKER, "elsewhere"),
    }


def test_lists_that_the_app_does_not_name_count_where_they_hold_tasks(desk: Desk) -> None:
    """A queue of another app is listed; a reply queue and a cache are not."""
    desk.publish(task_message("foreign"), queue="invoices", priority=3)
    desk.client.lpush("cache", "x", "y")
    desk.client.lpush("reply.pidbox", sealed({"body": "", "headers": {}, "properties": {}}))
    assert {task_id: row["queue"] for task_id, row in taken(desk).items()} == {"foreign": "invoices"}


def test_the_queues_of_an_app_with_a_longer_prefix_are_its_own(server: Server) -> None:
    """Without a prefix, and with one that begins the other's."""
    desks = {prefix: Desk(server, prefix=prefix) for prefix in ("", "two:", "two:[eu]:")}
    for prefix, desk in desks.items():
        desk.app.send_task("desk.pack", task_id=f"of {prefix}")
        desk.publish(task_message(f"odd {prefix}"), queue="odd_kombu.binding.x")
    for prefix, desk in desks.items():
        assert set(taken(desk)) == {f"of {prefix}", f"odd {prefix}"}


def test_bytes_that_are_no_message_are_counted_by_an_id_made_from_them(desk: Desk) -> None:
    """The event of a worker that receives them has the same id."""
    desk.publish(b"\x00garbage")
    [row] = taken(desk).values()
    assert (row["task_id"], row["place"]) == (Contents.of(b"\x00garbage").task_id, "queue")
    assert row["task_id"].startswith("raw-")


def test_a_life_is_told_apart_by_its_generation_nesting_and_queue(desk: Desk) -> None:
    """The same id in four lives gives four rows; the same life twice gives one."""
    for message, queue in (
        (task_message("a"), QUEUE),
        (task_message("a", redelivery={"generation": 1}), QUEUE),
        (task_message("a", replaced_task_nesting=1), QUEUE),
        (task_message("a"), "other"),
        (task_message("a"), QUEUE),
    ):
        desk.publish(message, queue)
    lives = {(row["task_id"], row["generation"], row["nesting"], row["queue"]) for row in inventory.take(desk.install).rows()}
    assert lives == {("a", 0, 0, QUEUE), ("a", 1, 0, QUEUE), ("a", 0, 1, QUEUE), ("a", 0, 0, "other")}


def heard(*events: Event, seen: str = "", seen_ms: int = 100) -> list[tuple[str, int, str, int | None]]:
    """The inventory after these events."""
    there = Inventory()
    if seen:
        there.see(Contents.of(sealed(task_message("a"))), QUEUE, seen, seen_ms)
    for event in events:
        there.apply(event)
    return [(row["task_id"], row["generation"], row["place"], row["due_ms"]) for row in there.rows()]


def event(outcome: Outcome, at_ms: int = 200, **more: Any) -> Event:
    """An event recorded during the walk."""
    return Event(task_id="a", outcome=outcome, queue=QUEUE, at_ms=at_ms, **more)


@pytest.mark.parametrize(
    ("outcome", "more", "place"),
    [
        (Outcome.PUBLISHED, {}, "queue"),
        (Outcome.RECEIVED, {}, "unacked"),
        (Outcome.DEFERRED, {"delay_ms": 9, "due_ms": 300}, "delayed"),
        (Outcome.REDELIVERY_SCHEDULED, {"delay_ms": 9, "due_ms": 300}, "delayed"),
        (Outcome.REDELIVERY_SCHEDULED, {"delay_ms": 0, "due_ms": 200}, "queue"),
        (Outcome.DEAD_LETTERED, {}, "dead_letter"),
        (Outcome.SUCCEEDED, {}, None),
        (Outcome.DISCARDED, {}, None),
        (Outcome.CANCELLED, {}, None),
    ],
)
def test_an_event_of_the_walk_s_time_says_where_a_message_went(outcome: Outcome, more: dict[str, Any], place: str | None) -> None:
    """Whether the message was met before or not; if it is met after the event, that counts."""
    expected = [] if place is None else [("a", 0, place, 300 if place == "delayed" else None)]
    assert heard(event(outcome, **more)) == expected
    assert heard(event(outcome, **more), seen="unacked", seen_ms=100) == expected
    assert heard(event(outcome, **more), seen="unacked", seen_ms=300) == [("a", 0, "unacked", None)]


def test_a_redrive_of_the_walk_s_time_ends_the_letter_and_opens_the_next_life() -> None:
    """The letter is gone, the next generation is in its queue."""
    assert heard(event(Outcome.REDRIVEN, generation=1), seen="dead_letter") == [("a", 1, "queue", None)]


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000])
def test_a_message_that_moves_against_the_walk_is_found(desk: Desk, monkeypatch: pytest.MonkeyPatch, ahead_ms: int) -> None:
    """Deferred after the delay store was read, or given back after the queues were read: the log and a second look find it.

    So also after the server's clock was set back, when the ids of the log are ahead of the clock.
    """
    desk.client.xadd(desk.keys.outcomes, {"not": "ours"}, id=f"{desk.transport.now_ms() + ahead_ms}-0")
    back, deferred = desk.publish(task_message("back")), desk.publish(task_message("deferred"))
    tags = [desk.hold(), desk.hold()]
    moves: list[Callable[[], Any]] = [
        lambda: desk.transport.release([Held(tags[0], QUEUE, QUEUE, sealed(task_message("back")), 0)]),
        lambda: desk.transport.defer(
            tags[1],
            QUEUE,
            sealed(task_message("deferred")),
            task_id="deferred",
            event=Event(task_id="deferred", outcome=Outcome.DEFERRED, queue=QUEUE),
            delay_ms=60_000,
        ),
    ]
    read = _Walk.queues

    def queues(walk: Any) -> None:
        read(walk)
        while moves:
            moves.pop()()

    monkeypatch.setattr(_Walk, "queues", queues)
    assert {task_id: row["place"] for task_id, row in taken(desk).items()} == {back: "queue", deferred: "delayed"}


def test_nothing_is_missed_while_a_worker_moves_it_about(shop: Callable[..., Shop]) -> None:
    """Tasks that fail for ever move through almost all places as fast as they can: each inventory has all of them, once."""
    here = shop(
        settings={"queues": {"#": {"redelivery_delay": 0.01, "redelivery_delay_multiplier": 1, "max_delivery_attempts": -1}}}
    )
    here.start(pool="threads", concurrency=4)
    ids = {here.send("fails") for _ in range(40)}
    until(lambda: len(here.events) > 200)
    before, taken = len(here.events), 0
    while taken < 10 or len(here.events) == before:  # on a busy machine the worker may pause for all of ten
        taken += 1
        rows = [row for row in inventory.take(here.app.redelivery).rows() if row["task_id"] in ids]
        assert len(rows) == len(ids)
        assert {row["task_id"] for row in rows} == ids
        assert "dead_letter" not in {row["place"] for row in rows}


def test_a_redelivered_message_keeps_its_life(desk: Desk) -> None:
    """All attempts belong to one life."""
    message = redelivered(task_message("a"), QUEUE, seen_ms=1, attempt=None, suspect=True)
    desk.publish(message)
    [row] = taken(desk).values()
    assert (row["task_id"], row["generation"], row["queue"]) == ("a", 0, QUEUE)


def test_letters_in_a_list_of_letters_only_are_dead(desk: Desk) -> None:
    """A dead-letter queue is listed as such, although it is a list like any queue."""
    desk.die(task_message("a"))
    assert [row["place"] for row in taken(desk).values()] == ["dead_letter"]
    assert desk.client.llen(LETTERS) == 1


def test_many_messages_are_read_in_many_small_pieces(desk: Desk) -> None:
    """The broker serves other clients in between: an answer has at most a thousand messages, or about two megabytes."""
    message = sealed(task_message("many-00000", body="x" * 500))
    raws = [message.replace(b"many-00000", f"many-{number:05}".encode()) for number in range(20_000)]
    for start in range(0, len(raws), 1000):
        desk.client.lpush(QUEUE, *raws[start : start + 1000])
    desk.client.config_resetstat()
    assert len(taken(desk)) == 20_000
    stats = desk.client.info("commandstats")
    assert stats["cmdstat_lrange"]["calls"] >= 2 * len(raws) // 1000
    assert "cmdstat_keys" not in stats
