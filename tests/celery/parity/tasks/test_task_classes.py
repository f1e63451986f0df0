"""Task and request classes of the application's own are called as on a plain worker: as often, and with the same arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import celery
import pytest

from tests.support.trials.trial import step

if TYPE_CHECKING:
    from tests.support.trials.trial import Trial

#: Celery 5.6 sends no signal for a rejection, and reports a success whose hook raises as a failure.
RECORDS_REJECTIONS = KEEPS_SUCCESSES = celery.VERSION >= (5, 7)

STORIES = {
    "success": ([step("ok", value={"a": 1})], {}),
    "failure": ([step("fail", kind="expected")], {"queue": "once"}),
    "rejected": ([step("reject")], {}),
    "requeued": ([step("reject", requeue=True), step("ok")], {}),
    "retried": ([step("retry"), step("retry", exc="value"), step("fail")], {"queue": "thrice"}),
}


def test_every_hook_is_called_as_in_celery(trial: Trial) -> None:
    """`before_start`, `on_success`, `on_retry`, `on_failure`, `after_return`, and the signals beside them."""
    stories = [trial.tell(*steps, task="hooked", **options) for steps, options in STORIES.values()]
    ignored = trial.tell(step("ignore"), task="hooked")
    for name, story in zip(STORIES, stories, strict=True):
        if name == "rejected" and RECORDS_REJECTIONS:
            story.matches(1, what="task_failure")
        else:
            story.matches(ready=name != "rejected" or RECORDS_REJECTIONS)
    ignored.matches(ready=False)


def test_a_redelivery_is_a_retry_to_the_hooks_and_only_the_last_failure_is_one(trial: Trial) -> None:
    """While deliveries are left, the hooks get as a retry what a plain worker reports as a failure."""
    task_id = trial.ours.play(step("fail"), task="hooked", queue="thrice")
    trial.ours.ended(task_id, "dead_lettered")
    retried, failed = trial.ours.notes(task_id, "on_retry"), trial.ours.notes(task_id, "on_failure")
    assert [(each["exc"], each["retries"], each["einfo"]) for each in retried] == [
        ("RuntimeError('no')", 0, "ExceptionInfo"),
        ("RuntimeError('no')", 1, "ExceptionInfo"),
    ]
    assert [(each["exc"], each["retries"]) for each in failed] == [("RuntimeError('no')", 2)]
    counts = trial.ours.counts(task_id)
    assert [counts[each] for each in ("before_start", "after_return", "task_retry", "task_failure")] == [3, 1, 2, 1]
    assert [each["status"] for each in trial.ours.notes(task_id, "after_return")] == ["FAILURE"]


@pytest.mark.parametrize("hook", ["before_start", "on_success", "on_failure", "after_return"])
def test_a_hook_that_raises_does_what_it_does_in_celery(trial: Trial, hook: str) -> None:
    """And the message does not stay held. Celery calls an `on_failure` that raises twice, and it ends a solo worker."""
    if hook == "on_failure" and trial.pool == "solo":
        task_id = trial.ours.play(step("fail"), task="raising", kwargs={"key": hook}, queue="once")
        trial.ours.ended(task_id, "dead_lettered")
        return
    story = trial.tell(step("fail") if hook == "on_failure" else step("ok"), task="raising", kwargs={"key": hook}, queue="once")
    if hook == "on_failure":
        story.matches(2, what="on_failure", but=("task_failure", "task_postrun"), ready=False)
    else:
        called_failed = not KEEPS_SUCCESSES and hook in {"on_success", "after_return"}
        story.matches(what="task_failure" if called_failed else "task_postrun")
    outcome = "succeeded" if KEEPS_SUCCESSES and hook in {"on_success", "after_return"} else "dead_lettered"
    trial.ours.ended(story.id, outcome)


@pytest.mark.parametrize("what", ["ignores", "rejects"])
def test_an_on_failure_cannot_undo_the_death_of_its_task(trial: Trial, what: str) -> None:
    """The caller has been told of a failure: the dead letter is kept and has the task's own reason, whatever the hook raises."""
    task_id = trial.ours.play(step("fail"), task="raising", kwargs={"key": f"on_failure {what}"}, queue="once")
    end = trial.ours.ended(task_id, "dead_lettered")
    assert (end.reason, end.attempt) == ("exhausted", 1)
    assert trial.ours.outcomes_of(task_id) == ["published", "dead_lettered"]


def test_an_on_retry_that_raises_does_not_end_the_task(trial: Trial) -> None:
    """A plain worker then reports FAILURE for a task that will run again; here the redelivery stands, and the error is logged."""
    for steps in ([step("retry"), step("ok")], [step("fail"), step("ok")]):
        task_id = trial.ours.play(*steps, task="raising", kwargs={"key": "on_retry"})
        trial.ours.ended(task_id, "succeeded")
        assert trial.ours.outcomes_of(task_id) == ["published", "redelivery_scheduled", "succeeded"]
        assert "event=hook.failed" in trial.ours.workers[-1].text


def test_what_a_task_runs_in_is_entered_and_left_with_every_run(trial: Trial) -> None:
    """A task's own `__call__` runs around our wrapper, and sees what it sees in Celery."""
    trial.tell(step("retry"), step("ok", value=1), task="calling").matches()
    redelivered = trial.ours.play(step("fail"), step("ok"), task="calling")
    trial.ours.ended(redelivered, "succeeded")
    assert [each["retries"] for each in trial.ours.notes(redelivered, "called")] == [0, 1]
    assert trial.ours.counts(redelivered)["left"] == 2


def test_a_request_class_of_the_applications_own_is_asked_as_in_celery(trial: Trial) -> None:
    """Its methods wrap ours; but a redelivered message is moved, not copied and acknowledged."""
    stories = [trial.tell(*steps, task="requested", **options) for steps, options in STORIES.values()]
    for name, story in zip(STORIES, stories, strict=True):
        if name == "rejected":
            story.matches(1, what="request.reject", ready=RECORDS_REJECTIONS)
        else:
            for side, task_id in zip(trial.sides, story.ids, strict=True):
                side.noted(task_id, "task_postrun", len(story.steps))
            story.matches(1, what="request.acknowledge", but=("request.acknowledge",) if name == "retried" else ())


def test_what_a_task_throws_is_expected_and_final(trial: Trial) -> None:
    """`throws` dies at once, with reason `non_retryable`, and is logged as Celery logs it."""
    story = trial.tell(step("fail", kind="expected", message=f"thrown {trial.pool}"), task="expecting")
    story.matches()
    assert trial.ours.ended(story.id, "dead_lettered").reason == "non_retryable"
    for side, task_id in zip(trial.sides, story.ids, strict=True):
        line = next(line for line in side.workers[-1].text.splitlines() if task_id in line and "raised" in line)
        assert "INFO/" in line, line
        assert "raised expected" in line, line
