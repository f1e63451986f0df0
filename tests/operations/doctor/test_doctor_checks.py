"""Checks of the doctor without a broker: states that are hard to produce in a test, and names from outside."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from celery import Celery

from redelivery import Redelivery
from redelivery.workers.operations.doctor.dead_letters import check_unread
from redelivery.workers.operations.doctor.examination import CHECKS
from redelivery.workers.operations.doctor.finding import Finding
from redelivery.workers.operations.doctor.fleet import Fleet, Worker
from redelivery.workers.operations.doctor.queues import OVERDUE, check_consumers, check_dispatcher
from redelivery.workers.operations.doctor.seen import Queues, Seen
from redelivery.workers.operations.doctor.workers import check_versions
from redelivery.workers.ports import DeadLetterQueue, NotKnown
from tests.support.desk import harmless

HOSTILE = "or'd; rm -rf ~ $(id)\x1b[2J\u202e"


def seen(**facts: Any) -> Seen:
    """What the doctor has collected about an app without a broker."""
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    return Seen(runtime=Redelivery(app), **{"app": "shop", "kind": "redis", "now_ms": 10**12, **facts})


def test_a_broker_that_says_nothing_has_no_finding() -> None:
    """The doctor does not guess: without data there is no finding."""
    assert [each for check in CHECKS for each in check(seen())] == []


@pytest.mark.parametrize(("overdue", "found"), [(OVERDUE, []), (OVERDUE + 1, ["delays.overdue"])])
def test_a_dispatcher_that_cannot_move_a_message_is_found(overdue: float, found: list[str]) -> None:
    """It leads, but a message is overdue."""
    findings = check_dispatcher(seen(queues=Queues({}, delayed=1, overdue=overdue, dispatchers=1)))
    assert [each.name for each in findings] == found


def test_a_worker_that_does_not_answer_may_consume_a_queue() -> None:
    """Its lease is renewed, so it lives: whether it consumes the queue is unknown."""
    waiting = Queues({"orders": 3})
    assert [type(each) for each in check_consumers(seen(queues=waiting, fleet=Fleet(), silent=1))] == [NotKnown]
    assert [type(each) for each in check_consumers(seen(queues=waiting, fleet=Fleet()))] == [Finding]


def test_a_version_that_is_too_old_to_tell_is_another_one() -> None:
    """A worker that does not report a version counts as another version beside workers that do."""
    workers = [Worker(name=f"w{at}", queues=(), is_ours=True, version=version) for at, version in enumerate(["0.2", "0.2", None])]
    [found] = check_versions(seen(fleet=Fleet(workers=tuple(workers))))
    assert "w2" in found.what
    assert "redelivery==0.2" in found.fix


def test_a_strangers_name_runs_in_no_fix() -> None:
    """A name in a suggested shell command is quoted as one word, and its control characters are escaped."""
    findings = [
        *check_consumers(seen(queues=Queues({HOSTILE: 1}), fleet=Fleet())),
        *check_unread(seen(letters=[DeadLetterQueue(HOSTILE, "orders", 1, oldest_ms=0)])),
    ]
    for each in findings:
        assert isinstance(each, Finding)
        assert harmless(each.fix)
        assert any("rm -rf" in word and "$(id)" in word for word in shlex.split(each.fix))
        assert harmless(each.what)
    assert len(findings) == 2
