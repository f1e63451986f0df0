"""The reports' own tests, with the fixtures of `redelivery.testing`: a real worker on a private broker, without waiting.

Run them in this folder: `pytest`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from fastapi.testclient import TestClient
from tasks import app, build

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from redelivery.testing import Clock, DeadLetters, Outcomes, RunningWorker


@pytest.fixture
def redelivery_app() -> Celery:
    """The app under test."""
    return app


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sources."""
    monkeypatch.setenv("REPORTS_SOURCE", str(tmp_path))
    return tmp_path


def test_a_report_asks_to_be_built_later(redelivery_worker: RunningWorker, source: Path, advance_time: Clock) -> None:
    """After `RedeliverAfter` it waits in the broker, and is built when it is due."""
    (source / "later").write_text("figures")
    result = build.delay("later")
    redelivery_worker.settle()
    advance_time(0.5)
    assert result.get(timeout=60) == "later: 7 characters, at attempt 2"


def test_a_report_without_a_source_is_a_dead_letter_and_can_be_sent_back(
    source: Path, outcomes: Outcomes, dead_letters: DeadLetters, advance_time: Clock
) -> None:
    """Three attempts, a dead letter with the cause, a redrive, and the report."""
    result = build.delay("lost")
    advance_time(60)
    assert outcomes.wait_for(result).reason == "exhausted"
    (letter,) = dead_letters
    assert "FileNotFoundError" in letter.exception
    (source / "lost").write_text("found")
    letter.redrive()
    assert outcomes.wait_for(result).outcome == "succeeded"
    assert result.get(timeout=60) == "lost: 5 characters, at attempt 1"


def test_the_page_sends_a_dead_letter_back_for_who_has_the_token(
    source: Path, outcomes: Outcomes, advance_time: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the form of the operator's page, as a browser sends it."""
    monkeypatch.setenv("REPORTS_PAGE_TOKEN", "a-token-of-this-test")
    from api import api  # noqa: PLC0415 - the environment must have the token first

    result = build.delay("lost")
    advance_time(60)
    outcomes.wait_for(result)
    (source / "lost").write_text("found")
    client = TestClient(api)
    letter = {"queue": "DLQ.reports", "id": result.id}
    assert client.get("/redelivery/letter", params=letter).status_code == 401
    client.get("/redelivery/login", params={"token": "a-token-of-this-test"})
    page = client.get("/redelivery/letter", params=letter)
    form = {**letter, "token": re.findall('name="token" value="([^"]+)"', page.text)[0]}
    assert client.post("/redelivery/letter/redrive", data={**form, "token": "another"}).status_code == 403
    assert client.post("/redelivery/letter/redrive", data=form, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    sent = client.post("/redelivery/letter/redrive", data=form, headers={"sec-fetch-site": "same-origin"})
    assert "redriven" in sent.text  # the events of its task
    assert outcomes.wait_for(result).outcome == "succeeded"
