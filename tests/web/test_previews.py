"""Dry runs that take long: one that is asked for again is shown, and not begun once more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from redelivery.workers.operations.runs.operation import Kind
from redelivery.workers.operations.runs.preview import Preview
from redelivery.workers.web.shared import previews
from redelivery.workers.web.shared.previews import Previews
from tests.support.running import until

if TYPE_CHECKING:
    import pytest


def test_a_count_that_takes_longer_than_it_holds_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds from its end on; from its beginning it would be out of date before anybody has seen it, for ever."""
    monkeypatch.setattr(previews, "FRESH", 0.1)
    monkeypatch.setattr(previews, "PATIENCE", 0.0)
    made, counts = Previews(), []

    def count() -> Preview:
        counts.append(1)
        time.sleep(0.3)  # longer than a count holds
        return Preview(kind=Kind.PURGE, queue="DLQ.orders")

    job = made.of("plan", count)
    assert job.preview is None
    until(job.done.is_set, 30, "the count to end")
    assert made.of("plan", count).preview is not None
    assert len(counts) == 1
    time.sleep(0.15)  # until it is out of date
    until(lambda: made.of("plan", count) is not job, 30, "another count")
