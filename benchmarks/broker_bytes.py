"""The broker's memory for a waiting task, for a task that has run, and for an outcome event."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.figures import less
from benchmarks.sides import side
from redelivery.middleware.brokers.redis.keys import Keys

if TYPE_CHECKING:
    from benchmarks.figures import Figure

__all__ = ["broker_bytes"]


def broker_bytes(name: str, *, tasks: int) -> dict[str, Figure]:
    """Publish `tasks` tasks, read the broker's memory, run them, read it again.

    `waiting` is the memory of a task's message, queue and record. `left` is that of a task that has succeeded: its events, until
    they are exported. `event` is that of one event in the outcome log.
    """
    with side(name) as here:
        send = here.sender("noop")
        send()
        with here.worker():  # a first worker leaves scripts and client names, which are not a cost of tasks
            here.wait_until_empty()
        before, recorded = _used(here.client), int(here.client.xlen(Keys().outcomes))
        for _ in range(tasks):
            send()
        waiting = _used(here.client) - before
        with here.worker():
            here.wait_until_empty()
        left = _used(here.client) - before
        figures = {"waiting": less(waiting / tasks, "bytes/task"), "left": less(max(left, 0) / tasks, "bytes/task")}
        outcomes = Keys().outcomes
        if events := int(here.client.xlen(outcomes)):
            figures["event"] = less(here.client.memory_usage(outcomes, samples=0) / events, "bytes/event")
            figures["events"] = less((events - recorded) / tasks, "events/task")
        return figures


def _used(client: Any) -> int:
    """The bytes that the broker uses after the worker's connections are closed."""
    deadline = time.monotonic() + 10
    while client.info("clients")["connected_clients"] > 3 and time.monotonic() < deadline:  # noqa: PLR2004 - ours
        time.sleep(0.05)
    time.sleep(0.3)
    return int(client.info("memory")["used_memory"])
