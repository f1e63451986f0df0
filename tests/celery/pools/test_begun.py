"""Tasks that had begun when the consumer closes: a worker that stops among quick tasks runs none twice, and stops soon."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.worker.pool_patches.begun import TIMEOUT
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop

#: How long a child of Celery's waits until its result is read, in seconds.
CHILDS_PATIENCE = 30


def all_once(here: Shop, ids: list[str], waiting: int = 0) -> None:
    """Each task has run once and has one end, except so many that still wait; nothing is held."""
    ran = [run["id"] for run in here.runs()]
    assert len(ran) == len(set(ran)) == len(ids) - waiting
    until(lambda: _succeeded(here) == sorted(ran), 60, "an end for each")
    assert int(here.server.client.hlen("unacked")) == 0
    assert {event.outcome for event in here.events} == {"published", "succeeded"}


def _succeeded(here: Shop) -> list[str]:
    return sorted(event.task_id for event in here.events if event.outcome == "succeeded")


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads", "solo"]))
def test_a_worker_that_stops_among_quick_tasks_runs_none_twice(shop: Callable[..., Shop], pool: str) -> None:
    """Tasks that have not begun go back, tasks that have begun end, and the worker does not wait for its own children."""
    here = shop()
    ids = [here.send("ok") for _ in range(400)]
    for count in (60, 160, 260):
        worker = here.start(pool=pool)
        until(lambda count=count: len(here.runs()) > count, 60, "it to be in the middle")  # type: ignore[misc]
        began = time.monotonic()
        worker.stop()
        assert time.monotonic() - began < CHILDS_PATIENCE - 5
        all_once(here, ids, int(here.server.client.llen("celery")))


def test_a_worker_that_connects_again_among_quick_tasks_runs_none_twice(shop: Callable[..., Shop]) -> None:
    """Every connection is cut three times: a task that was just given to a child is not taken for a suspect."""
    here = shop()
    ids = [here.send("ok") for _ in range(400)]
    worker = here.start()
    for count in (60, 160, 260):
        until(lambda count=count: len(here.runs()) > count, 60, "it to be in the middle")  # type: ignore[misc]
        here.server.client.client_kill_filter(_type="normal", skipme=True)
    until(lambda: len(here.runs()) >= len(ids), 60, "all of them")
    all_once(here, ids)
    assert worker.text.count("owner.reconnected") >= 1


def test_a_child_that_is_stopped_is_not_waited_for(shop: Callable[..., Shop]) -> None:
    """A running task has reported that it began, so the child has nothing to report: the stop waits for the task alone."""
    here = shop()
    task_id = here.send("naps", 3 * TIMEOUT)
    worker = here.start()
    until(lambda: here.runs(task_id), 60, "it to begin")
    worker.stop()
    assert [run["event"] for run in here.runs(task_id)] == ["start", "end"]
    last: Any = here.ended(task_id, "succeeded")
    assert last.attempt == 1
