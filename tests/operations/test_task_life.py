"""The events of one task in the log, by its id or its beginning, however many others there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.messages.events import ENTRY, Event, Outcome
from redelivery.workers.brokers.redis import task_life
from redelivery.workers.operations.inventory.task_life import life_of

if TYPE_CHECKING:
    import pytest

    from tests.support.desk import Desk


def recorded(desk: Desk, task_id: str, outcome: Outcome) -> None:
    """One event more."""
    entry: Any = dict(zip(ENTRY, Event(task_id=task_id, outcome=outcome, task="desk.pack", queue="orders").to_entry(), strict=True))
    desk.client.xadd(desk.keys.outcomes, entry)


def test_the_events_of_a_task_are_found_among_others_piece_by_piece(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first, up to a bound that the output names; foreign entries are skipped."""
    monkeypatch.setattr(task_life, "ENTRIES", 7)
    for number in range(30):
        recorded(desk, f"other-{number}", Outcome.SUCCEEDED)
        if number % 10 == 0:
            recorded(desk, "task-one-1", Outcome.REDELIVERY_SCHEDULED if number else Outcome.PUBLISHED)
            desk.client.xadd(desk.keys.outcomes, {"t": "task-one-1", "o": "nothing of ours"})
            desk.client.xadd(desk.keys.outcomes, {"f": "t"})
    found = ["published", "redelivery_scheduled", "redelivery_scheduled"]
    for given in ("task-one-1", "task-o"):
        life = life_of(desk.install, given, most=1000)
        assert ([each.outcome for each in life.events], life.task_id, life.cut) == (found, "task-one-1", [])
    life = life_of(desk.install, "task-one-1", most=20)
    assert [each.outcome for each in life.events] == found[2:]
    assert life.cut == ["outcome log: only the newest 20 of 39 events were looked at"]
    assert life_of(desk.install, "task-two-2", most=1000).events == []
