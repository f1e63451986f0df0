"""Dry runs that take long: one that is asked for again is shown, and not begun once more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from redelivery.workers.operations.runs.operation import Kind
from redelivery.workers.operations.runs.preview import Preview
from redelivery.workers.web.shared import previews
from redelivery.workers.web.shared.previews import FRESH, Previews

if TYPE_CHECKING:
    import pytest


def test_a_count_that_takes_longer_than_it_holds_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds from its end on; from its beginning it would be out of date before anybody has seen it, for ever."""
    clock, counts = [0.0], []
    monkeypatch.setattr(previews, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(previews, "PATIENCE", 30.0)
    made = Previews()

    def count() -> Preview:
        counts.append(1)
        clock[0] += FRESH + 1
        return Preview(kind=Kind.PURGE, queue="DLQ.orders")

    job = made.of("plan", count)
    assert job.preview is not None
    assert made.of("plan", count) is job
    assert len(counts) == 1
    clock[0] += FRESH + 1
    assert made.of("plan", count) is not job
