"""The verdict on a chaos run detects each kind of fault, in a log that has only this one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.chaos.verdict import Verdict, judge

PUBLISHED = {"outcome": "published"}
ENDED = {"outcome": "succeeded"}
AGAIN = {"outcome": "redelivery_scheduled", "reason": "worker_lost"}
DEAD = {"outcome": "dead_lettered", "reason": "exhausted"}
PURGED = {"outcome": "purged", "reason": "max_length"}
REDRIVEN = {"outcome": "redriven", "generation": 1}


def recorded(*events: dict[str, Any]) -> list[dict[str, Any]]:
    """These events of the task `t`, each by its own id."""
    facts = {"task_id": "t", "generation": 0, "queue": "celery", "reason": ""}
    return [{**facts, "event_id": f"{number}-0", **event} for number, event in enumerate(events)]


def verdict_on(*events: dict[str, Any], letters: int = 0, runs: int = 1, sure: str = "t", archived: bool = False) -> Verdict:
    """The verdict if the task ran so often in its first attempt."""
    return judge(
        recorded(*events),
        {"t"} if letters else set(),
        [{"id": "t", "attempt": 1}] * runs,
        [{"id": sure, "said": "published"}],
        {("t", 0)} if archived else set(),
    )


@pytest.mark.parametrize(
    ("events", "facts"),
    [
        ([PUBLISHED, ENDED], {}),
        ([PUBLISHED, AGAIN, ENDED], {"runs": 2}),
        ([{"outcome": "received"}, ENDED], {}),
        ([PUBLISHED, DEAD], {"letters": 1}),
        ([PUBLISHED, DEAD, PURGED], {"archived": True}),
        ([PUBLISHED, DEAD, REDRIVEN, {**ENDED, "generation": 1}], {"runs": 2}),
        ([PUBLISHED, ENDED, {**PUBLISHED, "queue": "right"}, {**ENDED, "queue": "right"}], {"runs": 2}),
    ],
)
def test_a_log_that_balances_has_no_fault(events: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    """Each life has one end; a task that ran twice was redriven, published twice, or is named."""
    assert verdict_on(*events, **facts).faults == []


@pytest.mark.parametrize(
    ("kind", "events", "facts"),
    [
        ("lost", [PUBLISHED], {}),
        ("lost", [PUBLISHED, AGAIN], {}),
        ("lost", [PUBLISHED, DEAD, REDRIVEN], {}),
        ("lost", [PUBLISHED, DEAD], {}),
        ("lost", [PUBLISHED, ENDED], {"sure": "another"}),
        ("lost", [PUBLISHED, DEAD, PURGED], {}),
        ("duplicated", [PUBLISHED, ENDED, ENDED], {}),
        ("duplicated", [PUBLISHED, ENDED, DEAD], {"letters": 1}),
        ("unnamed", [PUBLISHED, ENDED], {"runs": 2}),
        ("other", [ENDED], {}),
        ("other", [PUBLISHED, ENDED], {"letters": 1}),
    ],
)
def test_a_log_that_does_not_balance_is_named_by_its_fault(kind: str, events: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    """There is no other fault in the verdict."""
    verdict = verdict_on(*events, **facts)
    assert getattr(verdict, kind)
    assert verdict.faults == getattr(verdict, kind)
