"""`redelivery leave`: plain workers take over waiting messages, and the command lists what is left."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.errors import InputError
from redelivery.middleware.messages.steps import dead, undelivered
from redelivery.middleware.ports import Answer
from redelivery.settings import RedeliverySettings
from redelivery.workers.brokers.redis.delay_store import RedisDelayStore
from redelivery.workers.operations.adoption.leaving import PAGE, leave
from redelivery.workers.operations.delayed.changes import reschedule
from tests.support.desk import LETTERS, QUEUE, Desk, each_desk, task_message
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import Server

__all__ = ["each_desk"]

HOUR = 3_600_000


def put(desk: Desk, *messages: dict[str, Any], delay_ms: int = HOUR) -> None:
    """Put messages into the delay store; the worker that put them there is gone."""
    for message in messages:
        desk.delay(message, delay_ms)
    desk.transport.leases.unregister("w")


def test_delayed_messages_become_plain_ones_with_an_eta(desk: Desk) -> None:
    """In their queue, with their due time as ETA. Our own header would make our workers wait again; plain workers ignore it."""
    put(desk, task_message("a", custom="kept"))
    waiting: Any = desk.client.zrange(desk.keys.due(QUEUE), 0, -1, withscores=True)
    done = leave(desk.install)
    assert (dict(done.handed_back), done.stay) == ({QUEUE: 1}, 0)
    [message] = desk.messages()
    assert datetime.fromisoformat(message["headers"]["eta"]).timestamp() * 1000 == pytest.approx(waiting[0][1], abs=1)
    assert message["headers"]["custom"] == "kept"
    left: Any = desk.client.keys("redelivery:delayed*")
    assert left == []


def test_a_later_eta_of_its_own_stays(desk: Desk) -> None:
    """A message that expires before it is due leaves the store when it expires; a plain worker checks both times itself."""
    put(desk, task_message("a", eta="2100-01-01T00:00:00+00:00", redelivery={"served_eta": "2100-01-01T00:00:00+00:00"}))
    leave(desk.install)
    [message] = desk.messages()
    assert message["headers"]["eta"].startswith("2100-01-01T00:00:00")
    assert "served_eta" not in message["headers"]["redelivery"]


@pytest.mark.parametrize("count", [PAGE - 1, PAGE, PAGE + 1])
def test_everything_is_handed_back_in_order(desk: Desk, count: int) -> None:
    """The first to become due is first in its queue, across pages; a dry run gives the same counts and changes nothing."""
    put(desk, task_message("first"))
    keys = desk.keys
    members: dict[Any, Any] = {}
    raws: Any = desk.client.hvals(keys.waiting(QUEUE))
    desk.client.flushall()
    for number in range(count):
        members[f"id-{number:05}"] = raws[0].replace(b'"id":"first"', f'"id":"task-{number:05}"'.encode())
    desk.client.hset(keys.waiting(QUEUE), mapping=members)
    due = desk.transport.now_ms() + HOUR
    desk.client.zadd(keys.due(QUEUE), {ident: due + at for at, ident in enumerate(members)})
    desk.client.zadd(keys.destinations, {QUEUE: due})
    dry = leave(desk.install, dry_run=True)
    assert (dict(dry.handed_back), desk.ids()) == ({QUEUE: count}, [])
    assert leave(desk.install).handed_back == dry.handed_back
    assert desk.ids() == [f"task-{number:05}" for number in range(count)]


def test_what_is_dead_stays_and_is_counted(desk: Desk) -> None:
    """A plain worker must not run a dead letter that waits for its queue or for its handler."""
    facts: dict[str, Any] = {"reason": "exhausted", "at_ms": 5, "seen_ms": 1, "attempt": None, "failed": None}
    letter = dead(task_message("a"), QUEUE, dead_letter_queue=LETTERS, **facts)
    desk.die(task_message("b"))
    put(desk, undelivered(letter, LETTERS), letter, task_message("c"))
    done = leave(desk.install)
    assert (done.stay, dict(done.handed_back), done.dead_letters) == (2, {QUEUE: 1}, {LETTERS: 1})
    assert desk.ids() == ["c"]


def test_the_command_says_what_is_left(desk: Desk) -> None:
    """Dead letters, the log, the keys; as text and as JSON."""
    desk.die(task_message("b"))
    put(desk, task_message("a"))
    dry = desk.json("leave", "--dry-run")
    assert (dry["handed_back"], dry["dead_letters"], dry["dry_run"]) == ({QUEUE: 1}, {LETTERS: 1}, True)
    done = desk.run("leave", "--yes", "--as", "ana", "--why", "back to plain Celery")
    assert done.exit_code == 0
    for part in (
        f"1 delayed message handed back: {QUEUE} 1.",
        f"1 dead letter in {LETTERS}",
        "the outcome log, 2 events",
        "redelivery:",
    ):
        assert part in done.stdout
    again = json.loads(desk.run("leave", "--yes", "--json").stdout)
    assert again["handed_back"] == {}
    [record] = desk.json("audit")  # none of a dry run, or of a run that found nothing
    assert {name: record[name] for name in ("actor", "why", "act", "acted", "queue", "result")} == {
        "actor": "ana",
        "why": "back to plain Celery",
        "act": "leave",
        "acted": "done",
        "queue": "",
        "result": {"moved": 1},
    }


def test_while_workers_run_nobody_leaves(desk: Desk) -> None:
    """Workers that run would take the messages back."""
    put(desk, task_message("a"))
    desk.transport.leases.register("living", {"worker": "w1@shop"})
    renew, looks = desk.transport.leases.renew, []

    class Hearing:
        """A client that renews the lease before each look, as the worker would."""

        def __getattr__(self, name: str) -> Any:
            if name == "hgetall":
                looks.append(renew("living"))
            return getattr(client, name)

    client = desk.transport.client
    desk.transport.client = Hearing()  # type: ignore[assignment]
    try:
        with pytest.raises(InputError, match=r"still run \(w1@shop\): stop them first"):
            leave(desk.install)
    finally:
        desk.transport.client = client
    assert desk.ids() == []


def test_plain_workers_run_what_waited_and_what_a_dead_worker_held(shop: Callable[..., Shop], server: Server) -> None:
    """A task with an ETA, a failed task that waits for its redelivery, and one that a killed worker held."""
    settings = {"lease": 2, "queues": {"#": {"redelivery_delay": 3600}}}
    ours = shop(settings=settings)
    worker = ours.start("-Q", "celery")
    later, failing, held = ours.send("ok", countdown=3600), ours.send("fails", 1), ours.send("stalls")
    ours.ended(later, "deferred")
    ours.ended(failing, "redelivery_scheduled")
    until(lambda: ours.runs(held), what="the task to run")
    worker.kill()
    desk = Desk(server)
    desk.install.policies.__dict__["settings"] = RedeliverySettings.load(settings)
    due_ms = desk.transport.now_ms() + 4000
    for each in RedisDelayStore(desk.transport).soonest(10):
        assert reschedule(desk.install, each, due_ms=due_ms) is Answer.DONE
    done = leave(desk.install)
    assert (done.recovered, dict(done.handed_back), done.held) == (["w0@shop"], {"celery": 2}, 0)
    plain = shop(plain=True)
    plain.start("-Q", "celery")
    until(lambda: plain.runs(later), what="the ETA task to run")
    until(lambda: [run["attempt"] for run in plain.runs(failing)] == [1, 2], what="the failed task to run again")
    until(lambda: len(plain.runs(held)) == 2, what="the killed worker's task to run again")
    assert min(run["at"] for run in [*plain.runs(later), plain.runs(failing)[1]]) * 1000 >= due_ms - 1
    desk.transport.close()
