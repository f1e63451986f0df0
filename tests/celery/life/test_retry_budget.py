"""A retry budget with two real workers: their redeliveries together keep the budget, and nothing else is delayed."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.messages.events import Event

pytestmark = pytest.mark.xdist_group("retry_budget")

#: Milliseconds between two redeliveries of `shared`, and of `spent` and the letters' handler: longer than any test.
GAP, LONG = 250, 1_000_000
SETTINGS = {
    "queues": {
        "#": {"redelivery_delay": 0, "redelivery_collision_avoidance_factor": 0},
        "shared": {"redeliveries_per_second": 4},
        "spent": {"redeliveries_per_second": 0.001, "redelivery_delay": 0.1},
        "celery": {"max_delivery_attempts": 1},
        "DLQ.celery": {"redeliveries_per_second": 0.001},
    },
}


class Fleet(Shop):
    """The shop, by its tasks' own names."""

    def order(self, queue: str, task: str, *args: Any, module: str = "tests.support.shop") -> str:
        """Publish a task; its id."""
        return str(self.app.send_task(f"{module}.{task}", args, queue=queue).id)

    def scheduled(self, queue: str) -> list[Event]:
        """Each recorded redelivery of a queue."""
        return [each for each in self.events if (each.outcome, each.queue) == ("redelivery_scheduled", queue)]

    def waiting(self, queue: str) -> dict[str, dict[str, Any]]:
        """Our header of each message in the delay store, by task id."""
        raws = map(json.loads, self.server.client.hvals(f"redelivery:delayed:messages:{queue}"))
        return {each["headers"]["id"]: each["headers"]["redelivery"] for each in raws}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two workers on all queues; the budget of `spent` is spent."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        conf = {"worker_prefetch_multiplier": 1}
        made = Fleet(server, Path(name), settings=SETTINGS, conf=conf, module="tests.support.apps.letter_shop")
        try:
            for _ in range(2):
                made.start("-Q", "shared,spent,celery,DLQ.celery", pool="threads", concurrency=1)
            spender = made.order("spent", "fails")
            until(lambda: spender in made.waiting("spent"), what="the budget to be spent")
            yield made
        finally:
            made.stop()
            server.stop(9)


def test_two_workers_share_one_budget(fleet: Fleet) -> None:
    """Whichever worker met the failure, all redeliveries are a slot apart, and none runs before its time."""
    while len({each.worker for each in fleet.scheduled("shared")}) < 2:
        for task_id in [fleet.order("shared", "fails", 1) for _ in range(6)]:
            fleet.ended(task_id, "succeeded")
    events = fleet.scheduled("shared")
    dues = sorted(each.due_ms or 0 for each in events)
    assert all(later - earlier >= GAP for earlier, later in pairwise(dues))
    for event in events:
        (again,) = [run for run in fleet.runs(event.task_id) if run["attempt"] == 2]
        assert again["at"] * 1000 >= (event.due_ms or 0)


def test_first_deliveries_flow_on(fleet: Fleet) -> None:
    """First deliveries and countdowns of the same queue do not wait for slots."""
    failing = [fleet.order("spent", "fails") for _ in range(3)]
    until(lambda: fleet.waiting("spent").keys() >= set(failing), what="all to wait")
    fleet.ended(fleet.order("spent", "ok"), "succeeded")
    later = fleet.app.send_task("tests.support.shop.ok", queue="spent", countdown=1.5).id
    fleet.ended(str(later), "succeeded")
    assert fleet.waiting("spent").keys() >= set(failing)


@pytest.mark.parametrize(
    ("task", "words", "asked_ms"),
    [
        ("fails", (), 100),
        ("raises", ("after",), 300),
        ("raises", ("requeue",), 0),
        ("retries", (), 100),
        ("autoretries", (), 100),
        ("polls", (5,), 100),
    ],
    ids=str,
)
def test_whoever_asks_for_a_redelivery_it_is_paced(fleet: Fleet, task: str, words: tuple[Any, ...], asked_ms: int) -> None:
    """The message keeps the delay that was asked for; its event has the delay that it got."""
    task_id = fleet.order("spent", task, *words)
    event = fleet.ended(task_id, "redelivery_scheduled")
    assert (event.delay_ms or 0) > LONG // 2
    header = until(lambda: fleet.waiting("spent").get(task_id), what="the message in the delay store")
    assert header["attempts"][-1]["delay"] == asked_ms
    dues = sorted(each.due_ms or 0 for each in fleet.scheduled("spent"))
    assert all(later - earlier >= LONG for earlier, later in pairwise(dues))


def test_a_handler_that_fails_keeps_to_the_budget_of_its_dead_letter_queue(fleet: Fleet) -> None:
    """The next try of the handler is a redelivery like any other."""
    letters = [fleet.order("celery", "picky", "fail", module="tests.support.apps.letter_shop") for _ in range(2)]
    until(lambda: fleet.waiting("DLQ.celery").keys() >= set(letters), what="both handlers to wait")
    dues = sorted(due for _, due in fleet.server.client.zrange("redelivery:delayed:due:DLQ.celery", 0, -1, withscores=True))
    assert all(later - earlier >= LONG for earlier, later in pairwise(dues))
