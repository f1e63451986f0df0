"""A worker's estimate of the server's clock; no server is needed."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from redelivery.middleware.brokers.redis.receiving import server_clock
from redelivery.middleware.brokers.redis.receiving.server_clock import MEMORY, ServerClock


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """This machine's monotonic clock (seconds), advanced by hand."""
    now = [1000.0]
    monkeypatch.setattr(server_clock, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_an_answer_that_is_read_late_does_not_set_the_clock_back(passing: list[float]) -> None:
    """A busy worker reads an answer 0.9 s after the server sent it: the earlier estimate is better."""
    clock = ServerClock()
    clock.observe(5_000_000)
    passing[0] += 1.0
    clock.observe(5_000_100)
    assert clock.now_ms() == 5_001_000


def test_an_answer_that_is_read_sooner_sets_it_right(passing: list[float]) -> None:
    """The first answer had been read late, so the second one is closer to the truth."""
    clock = ServerClock()
    clock.observe(5_000_000)
    passing[0] += 1.0
    clock.observe(5_001_700)
    passing[0] += 0.5
    assert clock.now_ms() == 5_002_200


def test_a_clock_that_was_set_back_is_believed_within_two_memories(passing: list[float]) -> None:
    """Older answers are forgotten after `MEMORY`, so the new time is believed."""
    clock = ServerClock()
    clock.observe(5_000_000)
    for _ in range(3):
        passing[0] += MEMORY
        clock.observe(round(passing[0] * 1000))
    assert clock.now_ms() == round(passing[0] * 1000)


def test_it_is_known_once_it_was_heard() -> None:
    """Before the first answer it is unknown, and must be asked for."""
    clock = ServerClock()
    assert not clock.is_known
    clock.observe(round(time.time() * 1000))
    assert clock.is_known
