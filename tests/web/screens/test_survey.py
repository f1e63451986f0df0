"""The background count of causes: an unfinished count continues, and an old one begins again."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from redelivery.workers.web.shared import survey
from redelivery.workers.web.shared.searches import Searches
from redelivery.workers.web.shared.source import Source
from redelivery.workers.web.shared.survey import Counted, Survey
from redelivery.workers.web.views import causes
from tests.support.desk import LETTERS, copies
from tests.support.running import until

if TYPE_CHECKING:
    import pytest

    from tests.support.desk import Desk


def left_by_all(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> tuple[Survey, Counted]:
    """A count of twenty dead letters that stopped before its end, because no request came."""
    copies(desk, 20)
    monkeypatch.setattr(survey, "PIECE", 5)
    monkeypatch.setattr(survey, "AT_ONCE", 0.0)
    monkeypatch.setattr(survey, "UNREAD", 0.0)
    made = Survey(Source(desk.install), Searches())
    left = made.of("", {LETTERS: 20})
    until(lambda: not made._counting, 30, "the walk to end")
    return made, left


def test_a_count_that_nobody_waited_for_is_made_to_its_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the screen is opened again, it shows all dead letters, and not only those that were counted before."""
    made, left = left_by_all(desk, monkeypatch)
    assert left.causes.looked_at < 20
    monkeypatch.setattr(survey, "UNREAD", 60.0)
    until(lambda: made.of("", {LETTERS: 20}).causes.looked_at == 20, 30, "all to be counted")


def test_a_count_that_was_left_is_not_shown_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is out of date. The new count is shown from its beginning on."""
    made, left = left_by_all(desk, monkeypatch)
    assert left.ended is None
    assert made.of("", {LETTERS: 20}) is not left


def test_one_walk_serves_all_who_come_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the first count: the other requests see what is counted so far."""
    copies(desk, 20)
    monkeypatch.setattr(survey, "PIECE", 5)
    turns = Searches()
    made = Survey(Source(desk.install), turns)
    with ThreadPoolExecutor(4) as visitors:
        turns.begin()
        asked = [visitors.submit(made.of, "", {LETTERS: 20}) for _ in range(4)]
        until(lambda: len(turns._order) == 2, 30, "a walk to wait")
        turns.end()
        found = [each.result(30) for each in asked]
    assert len({id(each) for each in found}) == 1


def test_a_queue_that_is_as_long_as_before_is_counted_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example at its maximum length: one dead letter has left, and another has come."""
    monkeypatch.setattr(survey, "FRESH", 0.0)
    made = Survey(Source(desk.install), Searches())
    for fingerprint in ("f-one", "f-two"):
        desk.client.delete(LETTERS)
        desk.die(fingerprint=fingerprint)
        assert [each.fingerprint for each in made.of("", {LETTERS: 1}).causes.ranked()] == [fingerprint]


class _Growing(Counter[str]):
    """Counts that another thread changes while they are read."""

    def items(self) -> Any:
        """Yield the items, and add one after each."""
        for each in super().items():
            self[f"task-{len(self)}"] += 1
            yield each


def test_a_screen_is_drawn_though_more_is_counted_meanwhile() -> None:
    """The tasks and queues of a cause are a snapshot."""
    counts = _Growing({"task-one": 3, "task-two": 2, "task-three": 1})
    assert causes._most(counts, 2) == [("task-one", 3), ("task-two", 2)]
