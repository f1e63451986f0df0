"""The outcome events of publications, without a broker."""

from __future__ import annotations

import pytest

from redelivery.middleware.messages.events import Outcome
from redelivery.middleware.messages.recording import published


@pytest.mark.parametrize("retries", [None, 0, -3, "a", 1.5, True, [1]])
def test_a_publication_whose_retries_are_no_count_opens_a_life(retries: object) -> None:
    """Only Celery's own `retry` continues a life, and counts from one."""
    event = published({"headers": {"id": "t", "task": "shop.pack", "retries": retries}}, "celery")
    assert event is not None
    assert (event.outcome, event.attempt) == (Outcome.PUBLISHED, 0)


def test_a_publication_by_celerys_own_retry_continues_its_life() -> None:
    """The attempt goes up by one."""
    event = published({"headers": {"id": "t", "task": "shop.pack", "retries": 2}}, "celery")
    assert event is not None
    assert (event.outcome, event.attempt) == (Outcome.REDELIVERY_SCHEDULED, 2)
