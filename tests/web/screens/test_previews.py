"""Dry runs that take long: a repeated request shows the running one and begins no other."""

from __future__ import annotations

import functools
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.operations.letters.walk import Walked
from redelivery.workers.operations.runs.preview import Preview
from redelivery.workers.web.guard import Refused
from redelivery.workers.web.shared import previews
from redelivery.workers.web.shared.previews import FRESH, Previews
from redelivery.workers.web.shared.searches import Searches
from tests.support.desk import LETTERS, copies
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.desk import Desk
    from tests.support.page.web_page import WebPage


def test_a_count_that_takes_longer_than_it_holds_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count is valid for a while after its end. Counted from its beginning, a long one would expire before it is shown."""
    clock, counts = [0.0], []
    monkeypatch.setattr(previews, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(previews, "TIMEOUT", 30.0)
    made = Previews(Searches())

    def count(_: object) -> Preview:
        counts.append(1)
        clock[0] += FRESH + 1
        return Preview()

    job = made.of("plan", count)
    assert job.preview is not None
    assert made.of("plan", count) is job
    assert len(counts) == 1
    clock[0] += FRESH + 1
    assert made.of("plan", count) is not job


def test_a_count_lets_other_searches_go_between_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen also shows its progress."""
    monkeypatch.setattr(previews, "TIMEOUT", 30.0)
    searches, others = Searches(), list[int]()
    walked = Walked(dead_letter_queue="DLQ.orders", dry_run=True, total=300)

    def another() -> None:
        with searches.one():
            others.append(walked.looked_at)

    def count(another_piece: Callable[[Walked], None]) -> Preview:
        thread = threading.Thread(target=another)
        thread.start()
        until(lambda: len(searches._order) > 1, 30, "it to wait")
        for _ in range(3):
            walked.looked_at += 100
            another_piece(walked)
        thread.join()
        return Preview()

    job = Previews(searches).of("plan", count)
    assert (job.looked_at, job.total, others) == (300, 300, [100])


def test_a_dry_run_that_nobody_looks_at_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one can begin, and a new request begins it again. A running dry run blocks no request."""
    monkeypatch.setattr(previews, "UNREAD", 0.05)
    monkeypatch.setattr(previews, "RUNNING", 1)
    waits = threading.Event()
    monkeypatch.setattr(previews, "TIMEOUT", 0.0)
    walked = Walked(dead_letter_queue="DLQ.orders", dry_run=True, total=300)

    def count(another_piece: Callable[[Walked], None]) -> Preview:
        assert waits.wait(30)
        another_piece(walked)
        return Preview()

    made = Previews(Searches())
    job = made.of("plan", count)
    with pytest.raises(Refused, match="Other dry runs are under way"):
        made.of("another", count)
    monkeypatch.setattr(previews, "TIMEOUT", 30.0)
    assert made.of("plan", count) is job
    until(lambda: time.monotonic() - job.asked > 0.05, 30, "nobody to look")
    waits.set()
    assert job.done.wait(30)
    assert job.preview is None
    monkeypatch.setattr(previews, "UNREAD", 60.0)
    assert made.of("another", count).preview is not None
    assert made.of("plan", count) is not job


@pytest.mark.full
def test_a_dry_run_that_is_under_way_shows_how_far_it_is(
    desk: Desk, open_page: Callable[..., WebPage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is done, the screen shows what would go."""
    monkeypatch.setenv("WEB_SHOP_TIMEOUT", "0")
    copies(desk, 20_000)
    operator = open_page("--allow", "purge").operator()
    path = f"/operations/preview?kind=purge&queue={LETTERS}"

    def is_said(words: str) -> bool:
        return words in operator.get(path).read

    for words in ("of 20,000 so far. This screen asks again every second.", "20,000 dead letters of 20,000 would go."):
        until(functools.partial(is_said, words), 60, words)
