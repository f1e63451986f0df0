"""Idle workers: the costs of the broker, and of each worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.figures import less
from benchmarks.sides import side

if TYPE_CHECKING:
    from benchmarks.figures import Figure

__all__ = ["idle"]


def idle(name: str, *, workers: int, seconds: int) -> dict[str, Figure]:
    """The costs per second of idle one-process workers, for the broker and for a worker. Commands in scripts count, too."""
    with side(name) as here, here.idle_workers(workers) as parent:
        time.sleep(3 + workers * 0.05)  # do not measure the initial work of a worker
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
