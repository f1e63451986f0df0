"""What a message carries besides its arguments is the same in every attempt, and the same as on a plain worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import InvalidTaskError, MaxRetriesExceededError

from tests.support.trials.trial import step

if TYPE_CHECKING:
    from tests.support.trials.trial import Side, Trial

CARRIED: dict[str, Any] = {
    "priority": 6,
    "headers": {"tenant": "t1", "nested": {"a": [], "b": {}}},
    "stamped_headers": ["customer", "region"],
    "customer": "c1",
    "region": ["north", "south"],
    "soft_time_limit": 40,
    "time_limit": 50,
    "shadow": "shown.as",
    "correlation_id": "correlated",
    "reply_to": "nobody",
    "expires": 3600,
    "ignore_result": False,
}


def runs(side: Side, task_id: str) -> list[dict[str, Any]]:
    """What each attempt saw of its message, except the counts of attempts."""
    return [
        {key: value for key, value in run.items() if key not in {"retries", "redelivered"}} for run in side.notes(task_id, "run")
    ]


def test_a_task_sees_in_each_attempt_what_it_sees_in_celery(trial: Trial) -> None:
    """Priority, custom headers, stamps, limits and properties: with `self.retry`, with a redelivery, and after a crash.

    Celery's own retry loses the correlation id.
    """
    carried = {key: value for key, value in CARRIED.items() if key != "correlation_id"}
    story = trial.tell(step("retry"), step("ok"), task="hooked", **carried)
    first, second = [line for line in story.matches() if line["what"] == "run"]
    assert first["headers"] == CARRIED["headers"]
    assert first["stamps"] == {"customer": "c1", "region": ["north", "south"]}
    assert (first["priority"], first["timelimit"]) == (6, [50, 40])
    assert {**first, "retries": 1} == second

    steps = [step("fail"), step("reject", requeue=True), step("ok")]
    if trial.pool == "prefork":
        steps.insert(0, step("kill"))
    redelivered = trial.ours.play(*steps, task="hooked", **CARRIED)
    trial.ours.ended(redelivered, "succeeded")
    seen = runs(trial.ours, redelivered)
    assert len(seen) == len(steps)
    assert all(each == seen[0] for each in seen), seen
    wanted = {**first, "steps": len(steps), "correlation_id": "correlated"}
    assert seen[0] == {key: value for key, value in wanted.items() if key not in {"retries", "redelivered"}}


def test_a_letter_is_the_message_whole(trial: Trial) -> None:
    """Body, properties and foreign headers are byte for byte what was published."""
    side = trial.ours
    task_id = side.play(step("fail"), queue="thrice", **CARRIED)
    side.ended(task_id, "dead_lettered")
    letter = next(each for each in side.letters("DLQ.thrice") if each["headers"]["id"] == task_id)
    for header in ("tenant", "nested", "stamps", "timelimit", "shadow"):
        wanted = {"stamps": {"customer": "c1", "region": ["north", "south"]}, "timelimit": [50, 40], "shadow": "shown.as"}
        assert letter["headers"][header] == wanted.get(header, CARRIED["headers"].get(header)), header
    assert (letter["properties"]["correlation_id"], letter["properties"]["reply_to"]) == ("correlated", "nobody")
    assert letter["properties"]["priority"] == CARRIED["priority"]


def test_what_a_task_publishes_does_not_carry_our_headers(forked: Trial) -> None:
    """An application that passes its headers on (`headers=self.request.headers`) starts a new life."""
    task_id = forked.ours.play(step("fail"), step("forward"), headers={"tenant": "t1"})
    forked.ours.ended(task_id, "succeeded")
    child = forked.ours.noted(task_id, "forwarded")[0]["child"]
    forked.ours.ended(child, "succeeded")
    assert forked.ours.outcomes_of(child) == ["published", "succeeded"]
    assert forked.ours.notes(child, "run")[0]["headers"] == {"tenant": "t1"}


def test_who_waits_is_told_of_what_died_before_it_ran(forked: Trial) -> None:
    """It was stopped on arrival, because its attempts are used up or its headers are invalid; its caller gets the error."""
    side = forked.ours
    exhausted = {"redelivery": {"version": 1, "attempt": 3, "delivery": 3, "first_seen": 1, "origin": {"queue": "thrice"}}}
    expected = [
        (side.play(step("ok"), queue="thrice", headers=exhausted, link_error=side.sig("errback")), MaxRetriesExceededError),
        (side.play(step("ok"), headers={"timelimit": "soon"}, link_error=side.sig("errback")), InvalidTaskError),
    ]
    for task_id, kind in expected:
        with pytest.raises(kind):
            side.result(task_id).get(timeout=60)
        side.ended(task_id, "dead_lettered")
        assert side.counts(task_id) == {"errback": 1, "task_failure": 1}
