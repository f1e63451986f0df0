"""The balance of a shop: nothing is lost, each life ends once, and each task that ran twice is named."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tests.faults.chaos.verdict import judge
from tests.support.running import until

if TYPE_CHECKING:
    from tests.support.running import Shop

__all__ = ["assert_balanced"]


def assert_balanced(shop: Shop, *, running: frozenset[str] = frozenset()) -> None:
    """Wait until no message waits or is held, and judge the shop's whole outcome log, as the chaos run does.

    `running` tasks are left out.
    """
    client = shop.server.client
    until(lambda: _is_at_rest(shop, running), what="everything to be at rest")
    queues = [name.decode() for name in client.hkeys("redelivery:dead_letter_queues")]
    letters = {letter["headers"]["id"] for queue in queues for letter in shop.letters(queue)}
    events = [asdict(event) for event in shop.events if event.task_id not in running]
    runs = [run for run in shop.runs() if run["id"] not in running]
    verdict = judge(events, letters, runs, [], set())
    assert verdict.lives
    assert verdict.faults == []


def _is_at_rest(shop: Shop, running: frozenset[str]) -> bool:
    left = shop.leftovers()
    held = left.pop("unacked", 0)
    left.pop("unacked_index", None)
    if left or not held:
        return not left
    return held <= len(running - {event.task_id for event in shop.events if event.outcome == "succeeded"})
