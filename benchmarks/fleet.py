"""A mostly idle fleet of workers: the broker's cost of one task, without the cost of the idle fleet.

Every worker has one process. No-op tasks are published at an even rate, so most workers wait while one works.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.figures import less, more
from benchmarks.sides import side

if TYPE_CHECKING:
    from benchmarks.figures import Figure
    from benchmarks.processor import Spent

#: Seconds for the initial work of a worker after its start.
SETTLING = 3.0


def fleet(name: str, *, workers: int, seconds: int, per_second: int) -> dict[str, Figure]:
    """Run `workers` workers for `seconds` without tasks, and then for `seconds` with tasks.

    Commands in scripts count, too. A request is what the server reads from a connection at once. Raises `RuntimeError` if a task is
    left over.
    """
    with side(name) as here, here.idle_workers(workers) as parent:
        time.sleep(SETTLING + workers * 0.05)
        send = here.sender("noop")

        def spent_in(publish: bool) -> tuple[Spent, int, int, float, int]:
            commands, requests, before, began, sent = *_asked(here.client), here.spent(parent.pid), time.monotonic(), 0
            while (now := time.monotonic()) < began + seconds:
                if publish:
                    while sent < (now - began) * per_second:
                        send()
                        sent += 1
                time.sleep(0.5 / per_second)
            deadline = time.monotonic() + 30
            while publish and here.waiting():
                if time.monotonic() > deadline:
                    msg = f"{here.waiting()} tasks are left over"
                    raise RuntimeError(msg)
                time.sleep(0.05)
            spent, now_asked = here.spent(parent.pid).since(before), _asked(here.client)
            return spent, now_asked[0] - commands, now_asked[1] - requests, time.monotonic() - began, sent

        idle, idle_commands, idle_requests, idle_took, _ = spent_in(publish=False)
        busy, busy_commands, _, busy_took, sent = spent_in(publish=True)
        connections = int(here.client.info("clients")["connected_clients"])
    share = busy_took / idle_took
    return {
        "broker_us_per_task": less((busy.broker - idle.broker * share) / sent * 1e6, "µs"),
        "commands_per_task": less((busy_commands - idle_commands * share) / sent, "commands"),
        "idle_broker_processor": less(idle.broker / idle_took * 1e3, "ms/s"),
        "idle_broker_commands": less(idle_commands / idle_took, "commands/s"),
        "idle_broker_requests": less(idle_requests / idle_took, "requests/s"),
        "idle_worker_processor": less(idle.children / idle_took / workers * 1e3, "ms/s"),
        "connections": less(connections, "connections"),
        "tasks_per_second": more(sent / busy_took, "tasks/s"),
    }


def _asked(client: Any) -> tuple[int, int]:
    """The numbers of commands that the server has executed, and of requests that it has read."""
    stats = client.info("stats")
    return int(stats["total_commands_processed"]), int(stats["total_reads_processed"])
