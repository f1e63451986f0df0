"""Searches of one page run one at a time, in order, half of the time. A search that nobody waits for does not begin."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from redelivery.workers.web.guard import Refused
from redelivery.workers.web.shared import searches
from redelivery.workers.web.shared.searches import Searches
from redelivery.workers.web.shared.threads import Turn
from tests.support.running import until


class _Clock(SimpleNamespace):
    """A clock that only `sleep` advances."""

    now = 100.0

    def monotonic(self) -> float:
        """The time of this clock."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


def test_they_rest_as_long_as_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """They pause after their first second, and again after a long pause."""
    clock = _Clock()
    monkeypatch.setattr(searches, "time", clock)
    made = Searches()
    for _ in range(2):
        began = clock.now
        for _ in range(12):
            with made.one(Turn()):
                clock.sleep(0.25)
        assert clock.now - began == 12 * 0.25 + 7 * 0.25
        clock.sleep(10)
    with made.one():
        clock.sleep(60)  # the broker is slow, perhaps because of other clients
    began = clock.now
    with made.one():
        assert clock.now - began == searches.REST
    for _ in range(2):
        began = clock.now
        with made.one():
            clock.sleep(3)
    assert clock.now - began == 3 + 3, "a long one rests, too"


def test_they_go_one_after_the_other_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of searches."""
    monkeypatch.setattr(searches, "AT_ONCE", 60.0)
    made, running, order = Searches(), list[int](), list[int]()

    def search(number: int) -> None:
        with made.one(Turn()):
            running.append(number)
            assert running == [number]
            order.append(number)
            running.remove(number)

    with ThreadPoolExecutor(8) as threads:
        made.begin()
        begun = []
        for number in range(8):
            begun.append(threads.submit(search, number))
            until(functools.partial(lambda many: len(made._order) == many, number + 2), 30, "it to wait")
        made.end()
        for each in begun:
            each.result(30)
    assert order == list(range(8))


def test_one_that_waits_too_long_is_refused_and_the_next_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that was given up is refused, too. A search without a request waits without a limit."""
    monkeypatch.setattr(searches, "WAIT", 0.05)
    made, given_up, begun = Searches(), Turn(), threading.Event()

    def count() -> None:
        with made.one():
            begun.set()

    made.begin()
    with pytest.raises(Refused, match="other searches are under way"), made.one(Turn()):
        pytest.fail("it searches")
    counting = threading.Thread(target=count)
    counting.start()
    assert not begun.wait(0.2)
    made.end()
    assert begun.wait(30)
    counting.join(30)
    given_up.give_up(Future())
    with pytest.raises(Refused, match="does not answer in time"), made.one(given_up):
        pytest.fail("it searches")
    with made.one(Turn()):
        assert len(made._order) == 1
