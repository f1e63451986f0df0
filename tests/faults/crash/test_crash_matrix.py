"""Single kills, besides the chaos run: the next process finishes what a killed one left half done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.transitions.recovery import recover
from tests.faults.chaos.boundary import Order
from tests.faults.chaos.plans.plan import Plan
from tests.faults.chaos.run.harness import SETTINGS, Run
from tests.support.desk import Desk, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import Server


@pytest.fixture
def runs(folder: Path) -> Iterator[Callable[..., Run]]:
    """Makes one run without a fleet: the test starts the processes that it needs."""
    made: list[Run] = []

    def make(**settings: Any) -> Run:
        run = Run(folder, 1, Plan(1, 0, ()), faults=(), settings={**SETTINGS, **settings})
        run.open()
        made.append(run)
        return run

    yield make
    for each in made:
        each.close()


def killed(run: Run, argv: list[str], order: str) -> None:
    """Start a process that must die at a boundary, and wait until it has."""
    process = run.fleet.start("worker", argv, Order.read(order))
    until(lambda: not process.is_alive, 120, f"the process to die at {order}")
    assert process.ended == -9, process.log.read_text()


@pytest.mark.timeout(400)
def test_a_leave_that_is_killed_half_way_is_finished_by_the_next(runs: Callable[..., Run]) -> None:
    """Killed before or after its script: each delayed message is either in the delay store or in its queue, once."""
    run = runs()
    desk = Desk(run.fleet.server)
    ids = sorted(desk.delay(task_message()) for _ in range(6))
    desk.transport.leases.unregister("w")
    killed(run, ["redelivery", "leave", "--yes"], "hand_back.before:2")
    killed(run, ["redelivery", "leave", "--yes"], "hand_back.after:2")
    assert desk.client.llen("orders") == 3
    assert desk.client.zcard(desk.keys.due("orders")) == 3
    run.fleet.ask("leave", "--yes")
    assert sorted(desk.ids()) == ids
    assert not desk.client.zcard(desk.keys.due("orders"))


@pytest.mark.timeout(400)
def test_retention_that_is_killed_half_way_loses_no_letter(runs: Callable[..., Run], folder: Path) -> None:
    """Each dead letter that left its queue is in the archive, and is recorded as purged once."""
    archive = folder / "archive"
    run = runs(dead_letter_archive=str(archive), queues={"#": {"max_dead_letters": 2}})
    desk = Desk(run.fleet.server)
    ids = [desk.die() for _ in range(6)]
    worker = ["worker", "-P", "solo", "-Q", "celery", "--without-gossip", "--without-mingle", "-l", "INFO", "-n"]
    killed(run, [*worker, "one@chaos"], "purge.before:1")
    assert desk.client.llen("DLQ.orders") == 6
    desk.client.delete(desk.keys.letter_keeper)  # the dead worker's lead expires after a minute and a half
    killed(run, [*worker, "two@chaos"], "purge.after:1")
    assert [message["headers"]["id"] for message in desk.messages("DLQ.orders")] == ids[4:]
    assert sorted(event.task_id for event in desk.events if event.outcome == "purged") == sorted(ids[:4])
    assert [path for path in archive.rglob("*") if path.is_file()]


def test_what_died_before_its_arrival_was_recorded_is_opened_by_its_recovery(server: Server) -> None:
    """A plain producer's message died with its worker: the books know its life, although its publication was not recorded."""
    desk = Desk(server)
    task_id = desk.publish(task_message())
    tag = desk.hold()
    (held,) = desk.transport.leases.held_by("w")
    assert held.tag == tag
    for expected in ("done", "already"):
        assert recover(desk.install, held, started=None, worker="w@desk", now_ms=desk.transport.now_ms()) == expected
    assert [event.task_id for event in desk.events] == [task_id] * len(desk.events)
    assert [str(event.outcome) for event in desk.events][:2] == ["received", "redelivery_scheduled"]
    assert desk.events[0].reason == "unannounced"
