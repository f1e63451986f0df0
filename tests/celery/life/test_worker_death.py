"""What happens to messages when a worker stops, or when a worker or its child dies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import WorkerLostError

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop


def test_a_lost_child_is_a_counted_attempt(shop: Callable[..., Shop]) -> None:
    """A task that kills its process is delivered again, by its policy, and dies with reason `worker_lost`."""
    here = shop(backend=True)
    here.start()
    innocents = [here.send("ok") for _ in range(10)]
    task_id = here.send("kills")
    end = here.ended(task_id, "dead_lettered", 30)
    assert (end.reason, len(here.runs(task_id))) == ("worker_lost", 3)
    for innocent in innocents:
        here.ended(innocent, "succeeded")
    assert here.app.AsyncResult(task_id).state == "FAILURE"
    assert here.leftovers() == {}


def test_a_hard_time_limit_ends_an_attempt_once(shop: Callable[..., Shop]) -> None:
    """The pool reports both the time-out and the lost child; one attempt is counted."""
    here = shop(settings={"queues": {"#": {"max_delivery_attempts": 2, "redelivery_delay": 0.1}}})
    here.start()
    task_id = here.send("naps", 60, time_limit=1)
    end = here.ended(task_id, "dead_lettered", 30)
    assert end.reason == "time_limit"
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "dead_lettered"]


def test_a_stopped_worker_gives_back_what_it_has_not_run(shop: Callable[..., Shop]) -> None:
    """On a warm shutdown running tasks end; prefetched messages are in their queue again, uncounted."""
    here = shop()
    worker = here.start(concurrency=1)
    running = here.send("naps", 2)
    until(lambda: here.runs(running), 60)
    waiting = [here.send("ok") for _ in range(6)]
    until(lambda: here.server.client.hlen("unacked") > 1, 60)
    worker.stop()
    assert here.outcomes_of(running)[-1] == "succeeded"
    ran = [task_id for task_id in waiting if here.runs(task_id)]
    assert here.server.client.hlen("unacked") == 0
    assert here.server.client.llen("celery") == len(waiting) - len(ran)
    here.start(concurrency=1)
    for task_id in waiting:
        assert here.ended(task_id, "succeeded").attempt == 1


def test_a_dead_workers_messages_are_with_another_within_the_lease(shop: Callable[..., Shop]) -> None:
    """By default within 15 s, whatever the visibility timeout is; the suspect is named, but no attempt is counted."""
    here = shop(settings={})
    first = here.start(concurrency=1)
    task_id = here.send("stalls")
    until(lambda: here.runs(task_id), 60)
    here.start(concurrency=1)
    first.kill()
    died = time.monotonic()
    until(lambda: len(here.runs(task_id)) > 1, 60, "the task to run again")
    assert time.monotonic() - died <= 15
    end = here.ended(task_id, "succeeded")
    assert end.attempt == 1
    assert [event.reason for event in here.events_of(task_id)] == ["", "worker_lost", ""]


def test_a_task_that_kills_its_whole_worker_is_counted_from_the_second_time_on(shop: Callable[..., Shop]) -> None:
    """A poison message gets at most one start more than its policy allows."""
    here = shop(settings={"lease": 2, "queues": {"#": {"max_delivery_attempts": 2, "redelivery_delay": 0.1}}}, backend=True)
    task_id = here.send("kills", kwargs={"group": True})
    survivor = here.send("ok")

    def another_worker() -> Any:
        if not here.workers or here.workers[-1].process.poll() is not None:
            here.start(wait=False, concurrency=1)
        return [event for event in here.events_of(task_id) if event.outcome == "dead_lettered"]

    (end,) = until(another_worker, 60, "the poison to die")
    assert end.reason == "worker_lost"
    assert len(here.runs(task_id)) <= 3
    with pytest.raises(WorkerLostError):  # logged by the worker that found the message
        here.app.AsyncResult(task_id).get(timeout=60)
    here.ended(survivor, "succeeded")
