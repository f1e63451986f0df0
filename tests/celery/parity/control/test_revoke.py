"""`revoke` wherever a message is: in the pool, in the worker, in the queue, in the delay store; by id and by stamps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import chord, group
from celery.exceptions import ChordError, TaskRevokedError

from tests.support.control.control import ControlShop, control_shop
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("celery-revoke")


@pytest.fixture(scope="module")
def here() -> Iterator[ControlShop]:
    """A worker with room for two, a worker on another queue, and a result backend: a revoke reaches both, and counts once."""
    with control_shop(backend=True, settings={"queues": {"#": {"redelivery_delay": 3600, "max_delivery_attempts": 3}}}) as made:
        made.start("-Q", "celery")
        made.start("-Q", "second")
        yield made


def delayed(here: ControlShop) -> int:
    """How many messages wait in the delay store."""
    return int(here.server.client.zcard("redelivery:delayed:due:celery"))


def ends_revoked(here: ControlShop, task_id: str, outcomes: list[str], *, terminated: bool = False) -> None:
    """Check the end of a revoked task: its outcomes, its result, its signal, and nothing left."""
    here.ended(task_id, "revoked")
    with pytest.raises(TaskRevokedError):
        here.app.AsyncResult(task_id).get(timeout=60)
    until(lambda: here.noted(task_id, "task_revoked"), what="the signal")
    assert here.outcomes_of(task_id) == outcomes
    assert [line["terminated"] for line in here.noted(task_id, "task_revoked")] == [terminated]


def test_a_running_task_is_terminated_once(here: ControlShop) -> None:
    """Its process is killed, but the task does not count as lost and is not redelivered; the task beside it is not disturbed."""
    victim, neighbour = here.filled(1, "victim") + here.filled(1, "neighbour")
    here.app.control.revoke(victim, terminate=True, signal="SIGKILL")
    ends_revoked(here, victim, ["published", "revoked"], terminated=True)
    here.open("neighbour")
    here.ended(neighbour, "succeeded")
    assert len(here.noted(neighbour)) == 1


def test_a_task_that_fails_of_the_signal_stays_revoked(here: ControlShop) -> None:
    """SIGUSR1 raises `SoftTimeLimitExceeded` in the task: this attempt stores RETRY, but no other follows."""
    (victim,) = here.filled(1, "interrupted")
    here.app.control.revoke(victim, terminate=True, signal="SIGUSR1")
    until(lambda: f"[{victim}] retry:" in here.workers[0].text, what="the attempt to fail")
    until(lambda: here.app.AsyncResult(victim).state == "REVOKED", what="REVOKED")
    ends_revoked(here, victim, ["published", "revoked"], terminated=True)


def test_a_running_task_without_terminate_runs_to_its_end(here: ControlShop) -> None:
    """As in Celery: a revoke alone stops only tasks that have not begun."""
    (task_id,) = here.filled(1, "unharmed")
    here.app.control.revoke(task_id, reply=True, timeout=60, destination=["w0@shop", "w1@shop"])
    here.open("unharmed")
    here.ended(task_id, "succeeded")


def test_messages_that_wait_in_the_worker_and_in_the_queue_are_revoked(here: ControlShop) -> None:
    """The pool is busy and the prefetch window is full."""
    running = here.filled(2, "busy")
    waiting = [here.send("ok") for _ in range(30)]
    until(lambda: here.server.client.hlen("unacked") == 8, what="the window to be full")
    here.app.control.revoke(waiting, reply=True, timeout=60, destination=["w0@shop", "w1@shop"])
    here.open("busy")
    for task_id in waiting:
        ends_revoked(here, task_id, ["published", "revoked"])
    assert [here.noted(task_id) for task_id in waiting] == [[]] * 30
    here.all_ended(running)
    here.waits_for_nothing()


def test_a_message_with_an_eta_leaves_the_delay_store(here: ControlShop) -> None:
    """One of the two workers takes it out, informs its caller, and records it once; other waiting messages stay."""
    victim, other = here.send("ok", countdown=3600), here.send("ok", countdown=3600)
    here.ended(victim, "deferred")
    here.ended(other, "deferred")
    here.app.control.revoke(victim)
    ends_revoked(here, victim, ["published", "deferred", "revoked"])
    assert delayed(here) == 1
    assert here.server.client.zcard("redelivery:delayed:tasks") == 1
    assert here.server.client.hlen("redelivery:delayed:messages:celery") == 1
    here.app.control.revoke([other])
    ends_revoked(here, other, ["published", "deferred", "revoked"])
    assert not here.server.client.exists("redelivery:delayed", "redelivery:delayed:due:celery", "redelivery:delayed:tasks")


def test_a_message_that_waits_for_its_redelivery_leaves_the_delay_store(here: ControlShop) -> None:
    """The event says which attempt would have been next."""
    task_id = here.send("fails")
    here.ended(task_id, "redelivery_scheduled")
    until(lambda: delayed(here) == 1, what="its place in the delay store")
    here.app.control.terminate(task_id, signal="SIGTERM")
    ends_revoked(here, task_id, ["published", "redelivery_scheduled", "revoked"])
    assert here.ended(task_id, "revoked").attempt == 2
    here.waits_for_nothing()


def test_a_revoked_id_is_not_put_into_the_delay_store(here: ControlShop) -> None:
    """A message with an ETA that comes after its revoke is revoked when it comes, not when it is due."""
    here.app.control.revoke("known-before", reply=True, timeout=60, destination=["w0@shop", "w1@shop"])
    here.send("ok", task_id="known-before", countdown=3600)
    ends_revoked(here, "known-before", ["published", "revoked"])


def test_a_chord_hears_of_a_member_that_was_revoked_in_the_delay_store(here: ControlShop) -> None:
    """Its callback never runs, and its caller gets an error."""
    tasks = [here.app.signature("tests.support.control.control_app.ok", args=[number], app=here.app) for number in range(2)]
    tasks[1].set(countdown=3600)
    body = here.app.signature("tests.support.control.control_app.gathers", app=here.app)
    result = chord(group(tasks, app=here.app), body, app=here.app).apply_async()
    members = [each.id for each in result.parent.results]
    here.ended(members[0], "succeeded")
    here.ended(members[1], "deferred")
    here.app.control.revoke(members[1])
    here.ended(members[1], "revoked")
    with pytest.raises(ChordError):
        here.app.AsyncResult(result.id).get(timeout=60)  # the body's own result; `get` would first ask for the members
    assert here.noted(result.id) == []


@pytest.mark.parametrize("place", ["running", "queue", "delay store"])
def test_a_stamped_message_is_revoked_by_its_stamp(here: ControlShop, place: str) -> None:
    """All messages with the stamp are revoked, wherever they are, and no others."""
    stamp = f"stamp of {place}"
    stamped: dict[str, Any] = {"stamped_headers": ["customer"], "customer": stamp}
    if place == "running":
        victim, other = here.send("holds", place, **stamped), here.send("holds", place)
        here.begun(victim, other)
    elif place == "queue":
        here.filled(2, place)
        other, victim = here.send("ok"), here.send("ok", **stamped)
    else:
        victim, other = here.send("ok", countdown=3600, **stamped), here.send("ok", countdown=3600)
        here.ended(victim, "deferred")
        here.ended(other, "deferred")
    here.app.control.revoke_by_stamped_headers(
        {"customer": [stamp]},
        terminate=place == "running",
        signal="SIGKILL",
        reply=True,
        timeout=60,
        destination=["w0@shop", "w1@shop"],
    )
    here.open(place)
    here.ended(victim, "revoked")
    if place == "delay store":
        assert delayed(here) == 1
        here.app.control.revoke(other)
        here.ended(other, "revoked")
    else:
        here.ended(other, "succeeded")


def test_the_schedule_shows_what_waits_in_the_delay_store(here: ControlShop) -> None:
    """In Celery's own format, ordered by due time; a message that has left the store is not shown."""
    later, sooner = here.send("ok", "later", countdown=7200), here.send("ok", "sooner", countdown=3600)
    due = {task_id: here.ended(task_id, "deferred").due_ms for task_id in (later, sooner)}
    shown = here.ask("scheduled", worker=0)
    assert here.ask("scheduled", worker=1) == []  # it does not consume that queue
    assert [entry["request"]["id"] for entry in shown] == [sooner, later]
    assert [entry["request"]["args"] for entry in shown] == [["sooner"], ["later"]]
    assert [set(entry) for entry in shown] == [{"eta", "priority", "request"}] * 2
    first, sooner_due = shown[0], due[sooner]
    assert sooner_due is not None
    assert first["eta"].startswith(_iso(sooner_due)[:19])
    assert first["request"]["name"] == first["request"]["type"] == "tests.support.control.control_app.ok"
    here.app.control.revoke([later, sooner])
    here.ended(later, "revoked")
    here.ended(sooner, "revoked")
    assert here.ask("scheduled", worker=0) == []


def _iso(milliseconds: int) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415 - one use

    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
