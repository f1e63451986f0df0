"""Workers with nothing to do: what they cost the broker, and what each of them costs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.figures import less
from benchmarks.sides import side

if TYPE_CHECKING:
    from benchmarks.figures import Figure

__all__ = ["idle"]


def idle(name: str, *, workers: int, seconds: int) -> dict[str, Figure]:
    """So many workers of one process each, idle for so long: the cost for the broker per second, and that of one worker.

    Commands in scripts are counted, too.
    """
    with side(name) as here, here.idle_workers(workers) as parent:
        time.sleep(3 + workers * 0.05)  # the work that a worker does once after its start is not measured
        commands, before, began = _commands(here.client), here.spent(parent.pid), time.monotonic()
        time.sleep(seconds)
        spent, took = here.spent(parent.pid).since(before), time.monotonic() - began
        commands = _commands(here.client) - commands
    return {
        "broker_processor": less(spent.broker / took * 1e3, "ms/s"),
        "broker_commands": less(commands / took, "commands/s"),
        "worker_processor": less(spent.children / took / workers * 1e3, "ms/s"),
    }


def _commands(client: Any) -> int:
    return int(client.info("stats")["total_commands_processed"])
