"""`mode="observe"`: the worker behaves like plain Celery, records what happened, and logs what it would have decided."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery import Celery

from redelivery import Redelivery
from redelivery.errors import ConfigurationError
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("observe")

#: Name → task, its arguments, its options; each as any producer sends it.
STORIES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "succeeds": ("ok", ("value",), {}),
    "fails": ("fails", (), {}),
    "asks for retries": ("retries", (), {}),
    "is retried by autoretry_for": ("autoretries", (), {}),
    "raises DeadLetter": ("raises", ("dead_letter",), {}),
    "raises RedeliverAfter": ("raises", ("after",), {}),
    "rejects": ("raises", ("reject",), {}),
    "ignores": ("raises", ("ignore",), {}),
    "has a decorator": ("decorated", (), {}),
    "has a strategy for results": ("polls", (3,), {}),
    "is acknowledged early and fails": ("early", (), {"kwargs": {"fail": True}}),
    "kills its process": ("kills", (1,), {}),
    "runs out of time": ("naps", (600,), {"time_limit": 1}),
    "has a countdown": ("ok", (), {"countdown": 1.5}),
    "is expired": ("ok", (), {"expires": -1}),
    "is unknown": ("nobody", (), {}),
}
#: Events that describe what Celery did, beside `published` and the new messages of its own `retry`.
ENDS = {
    "succeeds": ("succeeded", ""),
    "fails": ("discarded", "exhausted"),
    "asks for retries": ("discarded", "exhausted"),
    "is retried by autoretry_for": ("discarded", "exhausted"),
    "raises DeadLetter": ("discarded", "exhausted"),
    "raises RedeliverAfter": ("discarded", "exhausted"),
    "rejects": ("discarded", "rejected"),
    "ignores": ("ignored", ""),
    "has a decorator": ("discarded", "exhausted"),
    "has a strategy for results": ("succeeded", ""),
    "is acknowledged early and fails": ("discarded", "exhausted"),
    "kills its process": ("discarded", "worker_lost"),
    "runs out of time": ("discarded", "time_limit"),
    "has a countdown": ("succeeded", ""),
    "is expired": ("expired", ""),
    "is unknown": ("discarded", "unknown_task"),
}

#: Nothing is ever stored for these; Celery 5.6 stores nothing for a rejection either.
UNSTORED = {"ignores", "is unknown", *(("rejects",) if celery.VERSION < (5, 7) else ())}


@pytest.fixture(scope="module")
def sides() -> Iterator[dict[str, Any]]:
    """A plain worker and an observing one, each with its own broker; every task is published on both."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        shops, ids = {}, {}
        servers = []
        settings = {"mode": "observe", "queues": {"#": {"max_delivery_attempts": 3, "redelivery_collision_avoidance_factor": 0}}}
        for side, options in (("plain", {"plain": True}), ("observed", {"settings": settings})):
            folder = Path(name) / side
            folder.mkdir()
            servers.append(Server(folder, binaries()["valkey"]).start())
            shops[side] = Shop(servers[-1], folder, backend=True, conf={"worker_lost_wait": 1}, **options)
        try:
            for side, shop in shops.items():
                # One process: with more, a retry may end before the attempt that asked for it has stored its state.
                shop.start(concurrency=1)
                sent = {story: shop.send(task, *args, **dict(options)) for story, (task, args, options) in STORIES.items()}
                ids[side] = sent
            yield {"shops": shops, "ids": ids}
        finally:
            for shop in shops.values():
                shop.stop()
            for server in servers:
                server.stop(9)


def outcome_of(sides: dict[str, Any], side: str, story: str) -> tuple[Any, ...]:
    """What the caller and the task's own notes show in the end."""
    shop, task_id = sides["shops"][side], sides["ids"][side][story]
    result = shop.app.AsyncResult(task_id)
    if story not in UNSTORED:
        until(result.ready, what=f"{story} on {side}")
    runs = [{key: value for key, value in run.items() if key not in {"id", "at", "pid"}} for run in shop.runs(task_id)]
    return result.state, repr(result.result) if result.state != "FAILURE" else type(result.result).__name__, runs


@pytest.mark.parametrize("story", STORIES)
def test_an_observed_worker_does_what_a_plain_one_does(sides: dict[str, Any], story: str) -> None:
    """State, result and every run are the same; and one event says how it ended."""
    shop, task_id = sides["shops"]["observed"], sides["ids"]["observed"][story]
    outcome, reason = ENDS[story]
    event = shop.ended(task_id, outcome)
    assert (event.outcome, event.reason) == (outcome, reason)
    assert outcome_of(sides, "observed", story) == outcome_of(sides, "plain", story)
    assert [each.outcome for each in shop.events_of(task_id)].count(outcome) == 1


def test_nothing_is_left_on_the_broker_that_a_plain_worker_does_not_leave(sides: dict[str, Any]) -> None:
    """No dead letters, no delay store, no lease: only the outcome log and the keys that maintain it."""
    observed, plain = sides["shops"]["observed"], sides["shops"]["plain"]
    for story in STORIES:
        observed.ended(sides["ids"]["observed"][story], ENDS[story][0])
    until(lambda: observed.leftovers() == {} and plain.leftovers() == {}, what="both brokers to be empty")
    ours = {key.decode() for key in observed.server.client.keys("*")}
    theirs = {key.decode() for key in plain.server.client.keys("*")}
    extra = {key for key in ours - theirs if not key.startswith("celery-task-meta-")}
    assert extra <= {"redelivery:outcomes", "redelivery:outcomes:watermark"}, extra


@pytest.mark.parametrize(
    ("story", "words"),
    [
        ("fails", ("decision=redeliver", "delay=1.0", "attempt=1", 'celery="ended it"')),
        ("asks for retries", ("decision=redeliver", "delay=0.1", "celery=retried")),
        ("raises DeadLetter", ("decision=dead_letter", "reason=non_retryable", 'detail="card stolen"')),
        ("raises RedeliverAfter", ("decision=redeliver", "delay=0.3")),
        ("rejects", ("decision=dead_letter", "reason=rejected")),
        ("kills its process", ("decision=redeliver",)),
        ("runs out of time", ("decision=redeliver",)),
    ],
)
def test_the_decision_that_would_be_taken_is_logged(sides: dict[str, Any], story: str, words: tuple[str, ...]) -> None:
    """One line for each failed attempt, with the policy's answer and what Celery did instead."""
    shop, task_id = sides["shops"]["observed"], sides["ids"]["observed"][story]
    shop.ended(task_id, ENDS[story][0])

    def line() -> str:
        lines = shop.workers[0].text.splitlines()
        return next((line for line in lines if "event=decision.observed" in line and task_id in line), "")

    said = until(line, what=f"the decision on {story}")
    for word in words:
        assert word in said


def test_the_start_up_line_says_that_nothing_is_changed(sides: dict[str, Any]) -> None:
    """The line names the mode."""
    line = next(line for line in sides["shops"]["observed"].workers[0].text.splitlines() if "event=worker.started" in line)
    assert "mode=observe" in line
    assert "received_by=kombu" in line
    assert "nothing is changed" in line


def test_the_mode_may_be_given_to_redelivery_itself() -> None:
    """The argument wins over the settings; an unknown mode is refused."""
    given = Redelivery(Celery("given", set_as_current=False), {"lease": 5}, mode="observe")
    assert (given.settings.mode, given.settings.lease, given.enforces) == ("observe", 5.0, False)
    with pytest.raises(ConfigurationError, match="mode must be 'enforce' or 'observe'"):
        _ = Redelivery(Celery("wrong", set_as_current=False), mode="watch").settings  # type: ignore[arg-type]
