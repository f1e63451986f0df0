"""A task's own retry means the same as on a plain worker: each task runs on both, and the runs are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.envelope import Envelope
from tests.support.running import until
from tests.support.trials.trial import step

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event
    from tests.support.trials.trial import Trial

LIMITS: list[dict[str, Any]] = [
    {},
    {"exc": "expected"},
    {"during": "value"},
    {"exc": "expected", "during": "value"},
    {"max_retries": 1},
    {"max_retries": 0},
    {"in_seconds": 0.3, "countdown": 0},
    {"in_seconds": -5},
    {"countdown": 0},
]

CHANGES: list[dict[str, Any]] = [
    {"args": [step("ok", value=1), step("ok", value=2)]},
    {"kwargs": {"key": "changed"}},
    {"queue": "other"},
    {"priority": 6},
    {"headers": {"tenant": "changed"}},
    {"time_limit": 50, "soft_time_limit": 40},
    {"exc": "expected", "kwargs": {"key": "changed"}},
    {"kwargs": {"key": "changed"}, "throw": False},
    {"throw": False},
]


def test_a_retry_ends_in_the_same_success(trial: Trial) -> None:
    """Two retries and a success give the same hooks, signals and results; ours has moved one message."""
    story = trial.tell(step("retry"), step("retry", exc="expected"), step("ok", value=3), task="hooked")
    story.matches()
    trial.ours.ended(story.id, "succeeded")
    assert trial.ours.outcomes_of(story.id) == ["published", "redelivery_scheduled", "redelivery_scheduled", "succeeded"]


def test_a_retrys_own_limit_ends_it_with_the_same_exception(trial: Trial) -> None:
    """With and without an exception, with a limit for the task or for the call, and with an ETA."""
    stories = [(trial.tell(step("retry", **options), task="hooked"), options) for options in LIMITS]
    for story, options in stories:
        story.matches(options.get("max_retries", 3) + 1)
        end = trial.ours.ended(story.id, "dead_lettered")
        assert end.reason == "exhausted", options
        assert "the task's own max_retries" in death_of(trial, story.id)["detail"]


def test_a_retry_with_other_arguments_or_options_is_the_next_attempt_of_the_same_life(trial: Trial) -> None:
    """Celery's new message goes to the same queue with the same options as without us, and carries our header."""
    ends = [step("retry", **options) for options in CHANGES]
    stories = [(trial.tell(end, step("ok"), task="hooked", headers={"tenant": "t"}), end[1]) for end in ends]
    for story, options in stories:
        story.matches(ready=options.get("throw", True))
        trial.ours.ended(story.id, "succeeded")
        events = of_attempt(trial, story.id, 2)
        assert {(event.queue, event.generation) for event in events} == {("celery", 0)}, options
        if options.get("throw", True):
            assert [event.outcome for event in events] == ["published", "redelivery_scheduled", "succeeded"], options
            assert [(event.attempt, event.delivery) for event in events] == [(0, 0), (1, 1), (2, 2)], options


def of_attempt(trial: Trial, task_id: str, attempt: int) -> list[Event]:
    """A task's events, once its last event is about this attempt."""
    events: list[Event] = until(lambda: found if (found := trial.ours.events_of(task_id))[-1].attempt == attempt else None)
    return events


def death_of(trial: Trial, task_id: str, queue: str = "DLQ.celery") -> dict[str, Any]:
    """The newest death of a letter."""
    letter = next(each for each in trial.ours.letters(queue) if each["headers"]["id"] == task_id)
    return dict(Envelope.of(letter["headers"]).deaths[0])


@pytest.mark.parametrize("options", [{}, {"kwargs": {"key": "changed"}}], ids=["moved", "published-anew"])
def test_a_policys_limit_ends_endless_retries(trial: Trial, options: dict[str, Any]) -> None:
    """A task without a limit stops at its queue's limit, however it retries; the record names that limit."""
    task_id = trial.ours.play(step("retry", **options), task="endless", queue="thrice")
    trial.ours.ended(task_id, "dead_lettered")
    assert [run["retries"] for run in trial.ours.notes(task_id, "run")] == [0, 1, 2]
    assert "attempt 3 of 3 (max_delivery_attempts)" in death_of(trial, task_id, "DLQ.thrice")["detail"]
    if trial.backend:
        with pytest.raises(Exception, match=r"Can't retry.*max_delivery_attempts") as caught:
            trial.ours.result(task_id).get(timeout=60)
        assert type(caught.value).__name__ == "MaxRetriesExceededError"


def test_autoretry_for_obeys_its_options(trial: Trial) -> None:
    """Its limits, its delays, the exceptions that it excludes, and the task's own calls of `retry`."""
    expected = {
        "auto": [step("fail", kind="expected")],
        "auto_kwargs": [step("fail", kind="expected")],
        "auto_steady": [step("fail", kind="expected")],
        "auto_all": [step("fail", kind="value")],
    }
    stories = {task: trial.tell(*steps, task=task) for task, steps in expected.items()}
    jitter = trial.ours.play(step("fail", kind="expected"), task="auto_jitter")
    mixed = [
        trial.tell(step("retry", max_retries=1), task="auto_short"),
        trial.tell(step("fail", kind="value"), step("retry"), step("ok"), task="auto_all"),
    ]
    spared = trial.tell(step("fail", kind="key"), task="auto_all", queue="once")
    ignored = trial.tell(step("ignore"), task="auto_all")
    for task, story in stories.items():
        story.matches(2 if task == "auto_kwargs" else 3)
        trial.ours.ended(story.id, "dead_lettered")
    mixed[0].matches(2)
    mixed[1].matches()
    spared.matches()
    ignored.matches(ready=False)
    trial.ours.ended(ignored.id, "ignored")

    def delays(task_id: str) -> list[int | None]:
        return [event.delay_ms for event in trial.ours.events_of(task_id) if event.outcome == "redelivery_scheduled"]

    trial.ours.ended(jitter, "dead_lettered")
    assert all(delay is not None and 0 <= delay <= 1000 for delay in delays(jitter))
    assert delays(stories["auto"].id) == [100, 100]
    assert delays(stories["auto_kwargs"].id) == [200]
    assert delays(stories["auto_steady"].id) == [1000, 1000]


def test_a_retry_of_the_tasks_own_class_is_called(trial: Trial) -> None:
    """Its `super().retry` is ours: the delay that it chooses is kept, and the message moves."""
    steps = [step("retry", countdown=60), step("fail", kind="expected"), step("ok")]
    for task, those in (("asking", [steps[0], steps[2]]), ("auto_asking", steps)):
        story = trial.tell(*those, task=task)
        story.matches()
        trial.ours.ended(story.id, "succeeded")
        moves = trial.ours.events_of(story.id)[1:-1]
        assert [(each.outcome, each.delay_ms) for each in moves] == [("redelivery_scheduled", 200)] * (len(those) - 1)


@pytest.mark.parametrize("how", [{"when": 0.1}, {"in_seconds": 0.1}, {"exc": "no"}, {"called": True}], ids=str)
def test_a_retry_that_nobody_has_published_is_asked_for(trial: Trial, how: dict[str, Any]) -> None:
    """In plain Celery the message is acknowledged, and the task stays RETRY for ever."""
    task_id = trial.ours.play(step("raise_retry", **how), step("ok"), task="auto")
    trial.ours.ended(task_id, "succeeded")
    assert trial.ours.outcomes_of(task_id) == ["published", "redelivery_scheduled", "succeeded"]
    ever = trial.ours.play(step("raise_retry", **how), task="auto")
    assert trial.ours.ended(ever, "dead_lettered").reason == "exhausted"
    assert len(trial.ours.notes(ever, "run")) == 3


def test_a_rejection_inside_autoretry_for_everything_is_a_rejection(forked: Trial) -> None:
    """Celery's `autoretry_for=(Exception,)` would retry a `Reject`, which is meant for the worker."""
    task_id = forked.ours.play(step("reject"), task="auto_all")
    end = forked.ours.ended(task_id, "dead_lettered")
    assert (end.reason, forked.ours.counts(task_id)["run"]) == ("rejected", 1)


def test_our_own_words_hold_inside_autoretry_for_everything(forked: Trial) -> None:
    """`DeadLetter` ends the task, and the delay of `RedeliverAfter` is used."""
    dead = forked.ours.play(step("fail", kind="dead_letter", message="stolen"), task="auto_all")
    after = forked.ours.play(step("fail", kind="after", message="0.3"), step("ok"), task="auto_all")
    end = forked.ours.ended(dead, "dead_lettered")
    assert (end.reason, forked.ours.counts(dead)["run"]) == ("non_retryable", 1)
    forked.ours.ended(after, "succeeded")
    assert [event.delay_ms for event in forked.ours.events_of(after)][1] == 300


def test_a_retry_whose_publication_fails_keeps_the_message(trial: Trial) -> None:
    """Celery drops it (`Reject(requeue=False)`); here the attempt has failed, and the next one may succeed."""
    better = trial.ours.play(step("retry", odd=True), step("ok", value=5), task="hooked", queue="thrice")
    worse = trial.ours.play(step("retry", odd=True), task="auto_all", queue="thrice")
    trial.ours.ended(better, "succeeded")
    end = trial.ours.ended(worse, "dead_lettered")
    assert trial.ours.outcomes_of(better) == ["published", "redelivery_scheduled", "succeeded"]
    assert (end.reason, trial.ours.counts(worse)["run"]) == ("exhausted", 3)
    if trial.backend:
        assert trial.ours.result(better).get(timeout=60) == 5
        with pytest.raises(Exception, match="Can't retry"):
            trial.ours.result(worse).get(timeout=60)


def test_a_crash_does_not_use_up_a_tasks_own_retries(forked: Trial) -> None:
    """On both, `self.request.retries` counts only the retries that the task asked for."""
    story = forked.tell(step("kill"), step("retry", max_retries=2), task="hooked")
    for side, task_id in zip(forked.sides, story.ids, strict=True):
        side.noted(task_id, "on_failure")
        assert [run["retries"] for run in side.notes(task_id, "run")] == [0, 0, 1, 2]
    assert forked.ours.ended(story.id, "dead_lettered").attempt == 4


def test_an_end_that_celery_has_overwritten_is_no_measure(forked: Trial) -> None:
    """Only the plain side is played again, so that there is an end to compare."""
    story = forked.tell(step("fail", kind="value"), task="hooked", queue="once")
    before = story.ids
    forked.plain.noted(story.ids[0], "task_postrun")
    until(forked.plain.result(story.ids[0]).ready)
    client, key = forked.plain.server.client, f"celery-task-meta-{story.ids[0]}"
    client.set(key, client.get(key).replace(b'"FAILURE"', b'"RETRY"'))
    story.matches()
    assert story.ids[0] != before[0]
    assert story.id == before[1]
