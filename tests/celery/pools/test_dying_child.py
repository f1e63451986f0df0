"""Children that die at the same time, and threads that would: each attempt is counted, and no task runs again uncounted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop

POLICY = {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 3}


@pytest.mark.full
@pytest.mark.slow
def test_of_children_that_die_beside_each_other_each_counts(shop: Callable[..., Shop]) -> None:
    """Forty tasks kill their processes, six at a time: each runs as often as its policy allows, and no other task runs twice."""
    here = shop(settings={"queues": {"#": POLICY}})
    here.start(concurrency=6)
    poisons = [here.send("kills") for _ in range(40)]
    innocents = [here.send("ok") for _ in range(40)]
    for poison in poisons:
        assert here.ended(poison, "dead_lettered", 240).reason == "worker_lost"
    assert Counter(len(here.runs(poison)) for poison in poisons) == {3: len(poisons)}
    for innocent in innocents:
        here.ended(innocent, "succeeded", 60)
    assert Counter(len(here.runs(innocent)) for innocent in innocents) == {1: len(innocents)}


def test_a_receiver_that_exits_holds_no_message_and_ends_no_thread(shop: Callable[..., Shop]) -> None:
    """If receivers of `task_retry` and `task_failure` exit, each attempt counts; the pool's one thread runs the next task."""
    here = shop(settings={"queues": {"#": {**POLICY, "max_delivery_attempts": 2}}}, module="tests.support.apps.quitting")
    worker = here.start(pool="threads", concurrency=1)
    failing = here.app.send_task("tests.support.shop.fails").id
    exiting = here.app.send_task("tests.support.shop.raises", ["exit"]).id
    for task_id in (failing, exiting):
        here.ended(task_id, "dead_lettered", 20)
        assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "dead_lettered"]
        assert len(here.runs(task_id)) == 2
    fine = here.app.send_task("tests.support.shop.ok").id
    here.ended(fine, "succeeded", 20)
    assert "Task handler raised error: WorkerLostError('SystemExit(" in worker.text
    until(lambda: not here.leftovers(), what="everything to have left")
