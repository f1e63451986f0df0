"""The ordinary path and the failing path: tasks or attempts of one worker in a second, and the cost of each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.figures import less, more
from benchmarks.sides import side

if TYPE_CHECKING:
    from benchmarks.figures import Figure
    from benchmarks.processor import Spent

__all__ = ["failing", "ordinary"]

ATTEMPTS = 5
POLICY = {
    "queues": {
        "#": {
            "redelivery_delay": 1,
            "redelivery_delay_multiplier": 1,
            "redelivery_collision_avoidance_factor": 0,
            "max_delivery_attempts": ATTEMPTS,
        },
    },
}


def ordinary(
    name: str,
    *,
    tasks: int,
    pool: str,
    argument_bytes: int = 0,
    results: bool = False,
    settings: dict[str, Any] | None = None,
    **broker: Any,
) -> dict[str, Figure]:
    """Publish no-op tasks, then let one worker run them.

    With `results` each task stores a result. `settings` are redelivery's; `broker` goes to `sides.side`. The clock starts when all
    of the worker's processes consume. Tasks that ran earlier do not count.
    """
    with side(name, settings, results=results, **broker) as here:
        send = here.sender("answer" if results else "noop")
        arguments = ["x" * argument_bytes] if argument_bytes else []
        for _ in range(tasks):
            send(*arguments)
        with here.worker(pool=pool) as worker:
            left, began, before = here.waiting(), time.monotonic(), here.spent(worker.pid)
            seconds = here.wait_until_empty() - began
            spent = here.spent(worker.pid).since(before)
        return {"tasks_per_second": more(left / seconds, "tasks/s"), **_costs(spent, left, "task", has_children=pool == "prefork")}


def failing(name: str, *, tasks: int, **broker: Any) -> dict[str, Figure]:
    """Tasks that fail five times, a second apart: attempts a second, from the worker's start to the last attempt."""
    with side(name, POLICY, **broker) as here:
        send = here.sender("failing")
        for _ in range(tasks):
            send()
        with here.worker() as worker:
            began, before = time.monotonic(), here.spent(worker.pid)
            seconds = here.wait_until_empty() - began
            spent = here.spent(worker.pid).since(before)
        attempts = tasks * ATTEMPTS
        return {
            "attempts_per_second": more(attempts / seconds, "attempts/s"),
            **_costs(spent, attempts, "attempt", has_children=True),
        }


def _costs(spent: Spent, count: int, what: str, *, has_children: bool) -> dict[str, Figure]:
    parts = {"broker": spent.broker, "main": spent.main, **({"children": spent.children} if has_children else {})}
    return {f"{part}_processor": less(seconds / count * 1e6, f"µs/{what}") for part, seconds in parts.items()}
