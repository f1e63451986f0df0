"""The sender's own tests, with the fixtures of `redelivery.testing`, a real worker and the demo's receiver."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import pytest
from webhooks import app as sender
from webhooks import journal
from webhooks.scenarios import Scenario, treatment_of
from webhooks.server import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from redelivery.testing import Clock, DeadLetters, Outcomes

SEED = 7


@pytest.fixture
def redelivery_app() -> Celery:
    """The app under test."""
    return sender.app


@pytest.fixture
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A running receiver with the sender's secret."""
    monkeypatch.setenv("WEBHOOKS_SECRET", "made up")
    # The demo has a short timeout. Here a busy machine must not look like a silent receiver.
    monkeypatch.setattr(sender, "TIMEOUT", 30.0)
    with Receiver(tmp_path / "journal", seed=SEED, secret=b"made up") as running:
        yield running


def sent(receiver: Receiver, scenario: Scenario) -> tuple[str, str]:
    """Send a webhook with this scenario; returns the ids of the task and of the webhook."""
    webhook_id = next(name for number in range(10_000) if treatment_of(SEED, name := f"webhook-{number}").scenario is scenario)
    return str(sender.deliver.delay(f"{receiver.url}/webhooks", {"id": webhook_id})), webhook_id


def test_an_accepted_webhook_is_sent_once(receiver: Receiver, outcomes: Outcomes, tmp_path: Path) -> None:
    """The receiver has processed it, and the task has succeeded."""
    task_id, webhook_id = sent(receiver, Scenario.ACCEPT)
    assert outcomes.wait_for(task_id).outcome == "succeeded"
    assert [(line.id, line.processed) for line in journal.read(tmp_path / "journal")] == [(webhook_id, True)]


def test_a_busy_receiver_is_asked_again_when_it_says(receiver: Receiver, outcomes: Outcomes, advance_time: Clock) -> None:
    """`Retry-After` replaces the delay of the policy."""
    task_id, _ = sent(receiver, Scenario.BUSY)
    assert outcomes.wait_for(task_id, "redelivery_scheduled").delay_ms == 1000
    advance_time(3)
    assert outcomes.wait_for(task_id).outcome == "succeeded"


def test_a_webhook_that_is_refused_is_not_sent_again(receiver: Receiver, dead_letters: DeadLetters, tmp_path: Path) -> None:
    """410 and 422 are permanent."""
    sent(receiver, Scenario.GONE)
    (letter,) = dead_letters
    assert (letter.reason, letter.attempts, letter.message) == ("non_retryable", 1, "410 Gone")
    assert len(journal.read(tmp_path / "journal")) == 1


def test_a_broken_endpoint_is_repaired_and_its_webhooks_redriven(
    receiver: Receiver, dead_letters: DeadLetters, outcomes: Outcomes, advance_time: Clock
) -> None:
    """After five attempts it is a dead letter. After the redrive it arrives."""
    task_id, webhook_id = sent(receiver, Scenario.BROKEN)
    advance_time(60)
    (letter,) = dead_letters
    assert (letter.reason, letter.attempts, letter.dead_letter_queue) == ("exhausted", 5, "DLQ.webhooks")
    assert letter.args == (f"{receiver.url}/webhooks", {"id": webhook_id})

    urllib.request.urlopen(urllib.request.Request(f"{receiver.url}/repair", method="POST")).close()  # noqa: S310 - the loopback
    letter.redrive()
    assert outcomes.wait_for(task_id).outcome == "succeeded"
    assert not dead_letters
