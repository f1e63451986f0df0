"""A worker frees the memory of a message without the garbage collector, which would take a sixth of the worker's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.ports import Capability
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from tests.conformance.brokers import Place

#: So many that what a worker leaves in each second, such as the frames of redis-py's timeouts, is less than one for each task.
TASKS = 100


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads", "solo"]))
def test_a_task_that_has_ended_leaves_nothing_to_the_garbage_collector(place: Place, pool: str) -> None:
    """As in plain Celery, no reference cycle is left after a success or, with a process pool, after a redelivery."""
    shop = place.shop()
    shop.start("-I", "tests.support.stops.uncollected", pool=pool)
    waits_there = Capability.BROKER_DELAYS in place.capabilities  # elsewhere it waits in Celery's timer, whose entries have cycles

    def ask(command: str) -> Any:
        broadcast = shop.app.control.broadcast
        (answer,) = until(lambda: broadcast(command, reply=True, timeout=10, limit=1), what=f"an answer to {command}")
        return next(iter(answer.values()))

    def play() -> None:
        kinds = [("ok", ())] * TASKS + ([("fails", (1,))] * TASKS if pool == "prefork" and waits_there else [])
        ids = {shop.send(task, *arguments) for task, arguments in kinds}
        until(lambda: ids <= {each.task_id for each in shop.events if each.outcome == "succeeded"}, what="the tasks to succeed")

    play()
    assert ask("leave_uncollected") == "ok"
    play()
    left = {name: count for name, count in ask("uncollected").items() if count >= TASKS * 0.9}
    assert left == {}
