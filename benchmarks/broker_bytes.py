"""The broker's memory for a task that waits in its queue, for a task that has run, and for one outcome event."""

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
    """Publish so many tasks, read the broker's memory, run them, read it again.

    `waiting` counts message, queue and record of a task in its queue; `left` what is left of it when it has succeeded: its events,
    until they are exported. `event` is the outcome log's memory for each of its events.
    """
    with side(name) as here:
        send = here.sender("noop")
        send()
        with here.worker():  # a first worker leaves scripts and client names for good: they are no cost of a task
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
    """Bytes that the broker holds, once the worker's connections are gone."""
    deadline = time.monotonic() + 10
    while client.info("clients")["connected_clients"] > 3 and time.monotonic() < deadline:  # noqa: PLR2004 - ours
        time.sleep(0.05)
    time.sleep(0.3)
    return int(client.info("memory")["used_memory"])
