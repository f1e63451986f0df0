"""A shop on each pool, shared by the test modules that run on all pools.

Each shop has a private broker, a result backend, and one worker with two places (one on solo) that consumes the queues of
`tests.support.control.control_queues`. The worker starts at its first use, and again if a test has ended it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.control.control import ControlShop, control_shop
from tests.support.control.control_queues import QUEUES, ROUTES
from tests.support.lanes import FULL
from tests.support.trials.trial import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CAN_TERMINATE", "GREEN", "POOLS", "ControlShops", "control_shops", "on", "places", "pool_param"]

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
#: Pools of greenlets: the worker's loop waits while they are full.
GREEN = {"gevent", "eventlet"}
#: Pools that can terminate a running task. Other pools log that they cannot.
CAN_TERMINATE = {"prefork", *GREEN}


def places(pool: str) -> int:
    return 1 if pool == "solo" else 2


def pool_param(pool: str) -> object:
    """A parameter whose tests all run in one process, and share its shop."""
    marks = [pytest.mark.xdist_group(f"pools-{pool}")]
    return pytest.param(pool, marks=marks if pool == POOLS[0] else [*marks, FULL])


class ControlShops:
    """The shops of one process of the test run, each opened at its first use."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._open: dict[str, ControlShop] = {}

    def of(self, pool: str) -> ControlShop:
        """The pool's shop, with a running worker."""
        here = self.without_worker(pool)
        if not here.workers or here.workers[-1].process.poll() is not None:
            here.start(pool=pool)
        return here

    def without_worker(self, pool: str) -> ControlShop:
        """The pool's shop, with or without a running worker. In CI a missing pool is a failure."""
        if missing(pool):
            (pytest.fail if os.environ.get("CI") else pytest.skip)(missing(pool))
        if pool not in self._open:
            here = self._stack.enter_context(control_shop(backend=True, variables={"CONTROL_ROUTES": "1"}))
            here.app.conf.update(task_queues=QUEUES, task_routes=ROUTES)
            self._open[pool] = here
        return self._open[pool]


@pytest.fixture(scope="session")
def control_shops() -> Iterator[ControlShops]:
    with ExitStack() as stack:
        yield ControlShops(stack)


@pytest.fixture(params=[pool_param(pool) for pool in POOLS])
def on(request: pytest.FixtureRequest, control_shops: ControlShops) -> tuple[str, ControlShop]:
    return request.param, control_shops.of(request.param)
