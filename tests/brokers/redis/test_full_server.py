"""A full server (`maxmemory`, noeviction): it refuses additions, but all that frees memory must work, until it is empty.

When it is full, Redis 7.0 refuses each command that stands in a transaction, and each script that adds before it has freed memory.
Valkey 9.1 allows some of that, so all of it is tried on both.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from redelivery.middleware.worker.lifecycle import begin
from redelivery.workers.duties.lease import HELD_FOR, Lease
from redelivery.workers.export.export import export_outcomes
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.purge import purge
from redelivery.workers.operations.letters.redrive.redrive import redrive
from tests.support.desk import LETTERS, QUEUE, Desk, task_message
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Server


@pytest.fixture
def desk(any_server: Server) -> Iterator[Desk]:
    """A desk on each kind of server."""
    desk = Desk(any_server)
    yield desk
    any_server.client.config_set("maxmemory", 0)
    desk.transport.close()


def fill(server: Server) -> None:
    """Fill the server until nothing more fits."""
    server.client.config_set("maxmemory", 1)
    with pytest.raises(RedisError, match="maxmemory"):
        server.client.set("more", "x")


def test_a_worker_starts_works_and_stops_on_a_full_server(any_server: Server, folder: Path) -> None:
    """It declares and binds its queues, runs the tasks, dead-letters those that fail, and leaves nothing behind."""
    here = Shop(any_server, folder, settings={"queues": {"#": {"max_delivery_attempts": 1}}})
    ids = [here.send("ok") for _ in range(8)]
    doomed = here.send("fails", 1)
    fill(any_server)
    worker = here.start("-Q", "celery,fresh")
    with pytest.raises((OperationalError, RedisError)):
        here.send("ok", retry=False)
    for task_id in ids:
        here.ended(task_id, "succeeded")
    here.ended(doomed, "dead_lettered")
    any_server.client.client_kill_filter(_type="normal", skipme=True)  # it connects again, all of it
    until(lambda: "owner.reconnected" in worker.text, what="the worker to come back")
    assert worker.stop(seconds=60) == 0
    assert here.leftovers() == {}
    assert any_server.client.hgetall("redelivery:leases") == any_server.client.hgetall("redelivery:owners") == {}
    # kombu 5.7 sometimes refreshes the expiry of its own remote-control queues, and warns if it may not
    said = re.sub(r"\[[^\n]*maybe_refresh_binding_expiry: Redis error.*?(?=\n\[2|\Z)", "", worker.text, flags=re.DOTALL)
    assert "OutOfMemoryError" not in said, said[-3000:]
    here.stop()


def test_the_log_is_exported_from_a_full_server(desk: Desk, folder: Path) -> None:
    """The export frees more memory than anything else."""
    for number in range(5):
        desk.die(task_message(f"t{number}"))
    recorded = [event.event_id for event in desk.events]
    fill(desk.server)
    assert export_outcomes(desk.client, desk.keys, str(folder / "out"), batch=3).events == len(recorded)
    assert desk.client.xlen(desk.keys.outcomes) == 0
    assert desk.server.client.hget(desk.keys.exported, "id").decode() == recorded[-1]
    assert export_outcomes(desk.client, desk.keys, str(folder / "out")).events == 0


def test_the_audit_is_exported_from_a_full_server(desk: Desk, folder: Path) -> None:
    """The export stores nothing on the broker; records written meanwhile are exported next."""
    letters = [desk.die(task_message(name)) for name in ("a", "b")]
    desk.json("dlq", "purge", LETTERS, "--id", letters[0], "--yes")
    fill(desk.server)
    first = desk.json("outcomes", "export", "--to", str(folder / "out"))["audit"]
    desk.json("dlq", "purge", LETTERS, "--id", letters[1], "--yes")
    second = desk.json("outcomes", "export", "--to", str(folder / "out"))["audit"]
    assert (first["records"], second["records"], first["gaps"] + second["gaps"]) == (2, 2, [])
    assert desk.json("outcomes", "export", "--to", str(folder / "out"))["audit"]["records"] == 0
    assert len(desk.json("audit", "--outcomes", str(folder / "out"))) == 4


def test_letters_go_back_and_away_on_a_full_server(desk: Desk) -> None:
    """A redrive frees as much as it adds, and a purge frees memory."""
    for name in ("a", "b", "c"):
        desk.die(task_message(name))
    fill(desk.server)
    assert redrive(desk.transport, LETTERS, Filter(task_ids=frozenset({"a"}))).moved == 1
    assert purge(desk.transport, LETTERS, Filter(task_ids=frozenset({"b"}))).moved == 1
    assert (desk.ids(QUEUE), desk.ids(LETTERS)) == (["a"], ["c"])


def test_what_is_due_leaves_the_delay_store_of_a_full_server(desk: Desk) -> None:
    """For the messages that stay, the answer says in how many seconds the next one is due."""
    soon = desk.delay(task_message(), delay_ms=200)
    desk.delay(task_message())
    fill(desk.server)
    assert desk.transport.stores.promote(100)[:2] == (0, 0)
    until(lambda: desk.transport.stores.promote(100)[0] == 1, what="the first one to be due")
    moved, _, seconds = desk.transport.stores.promote(100)
    assert moved == 0
    assert 0 < (seconds or 0) <= 3600
    assert desk.ids() == [soon]


def test_what_is_held_is_kept_from_plain_workers_on_a_full_server(desk: Desk) -> None:
    """Held messages are hidden for one more day; entries of messages that are no longer held are removed."""
    desk.publish()
    tag, index = desk.hold(), desk.keys.unacked_index
    desk.client.zadd(index, {tag: 1})
    fill(desk.server)
    desk.transport.leases.extend([tag, "w:99"], HELD_FOR)
    [(name, score)] = desk.server.client.zrange(index, 0, -1, withscores=True)
    assert name.decode() == tag
    assert abs(score - desk.transport.now_ms() / 1000 - HELD_FOR) < 60


def test_an_owner_is_forgotten_on_a_full_server(desk: Desk) -> None:
    """All entries about it are removed."""
    desk.publish()
    tag = desk.hold("w")
    desk.transport.acknowledge(tag, None)
    fill(desk.server)
    desk.transport.leases.unregister("w")
    assert desk.client.keys("*") == []


def test_a_watch_goes_on_where_nothing_can_be_extended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the right to extend is missing, for instance, a line says so once an hour, and a dead worker is fenced all the same."""
    lease = Lease(desk.install)
    begin(desk.install, "here@desk")
    desk.transport.leases.register("dead", {"worker": "w@desk"})
    desk.publish()
    desk.client.rename(desk.keys.list(QUEUE), desk.keys.unacked_index)  # of another type: the server refuses
    desk.install.owner.held["w:1"] = desk.install.owner.held.get("w:1")  # type: ignore[assignment]
    clock = time.monotonic
    with capture_logs() as logs:
        for seconds in (0, 2, 4, 3601, 3603, 3605, 3607, 3609, 3611, 3613, 3615):
            monkeypatch.setattr("redelivery.workers.duties.lease.time.monotonic", lambda seconds=seconds: clock() + seconds)
            _step(lease)
    assert [line["event"] for line in logs if line["event"].startswith("lease.not")] == ["lease.not_extended"]
    assert [line["token"] for line in logs if line["event"] == "owner.presumed_dead"] == ["dead"]


def _step(lease: Any) -> None:
    """As its thread takes it."""
    try:
        lease.step()
    except RedisError as exc:
        lease.unanswered(exc)
