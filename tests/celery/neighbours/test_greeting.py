"""Workers that greet their neighbours and watch them, as Celery's do by default (mingle, gossip)."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support.control.pooled import POOLS
from tests.support.lanes import FULL
from tests.support.running import Shop, until
from tests.support.trials.trial import missing

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rabbit import Rabbit
    from tests.support.servers import Server


@pytest.mark.parametrize("pool", [pytest.param(each, marks=[] if each == "prefork" else [FULL]) for each in POOLS])
@pytest.mark.parametrize("broker", ["server", "rabbit"])
def test_workers_that_greet_each_other_work_and_stop(request: pytest.FixtureRequest, folder: Path, broker: str, pool: str) -> None:
    """Each answers a question and takes tasks; each ends at SIGTERM, also the one that has waited for the last task in vain."""
    if missing(pool):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing(pool))
    server: Server | Rabbit = request.getfixturevalue(broker)
    here = Shop(server, folder, {"queues": {"#": {"max_delivery_attempts": 1}}}, sociable=True)  # type: ignore[arg-type]
    try:
        workers = [here.start(pool=pool), here.start(pool=pool)]
        names = {f"w{number}@shop" for number in range(2)}
        until(lambda: {name for each in here.app.control.ping(timeout=1) for name in each} == names, what="both to answer")
        lives = {here.send("ok"): "succeeded", here.send("fails"): "dead_lettered"}
        until(partial(_have_ended, here, lives), what="the tasks to end")
        assert [each.stop(seconds=60) for each in workers] == [0, 0]
    finally:
        here.stop()


def _have_ended(here: Shop, lives: dict[str, str]) -> bool:
    ends = {event.task_id: event.outcome for event in here.server.events() if event.outcome in set(lives.values())}
    return ends == lives
