"""Results: the states of a task, and what its caller gets at the end, whatever way it dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError

from tests.support.trials.trial import step

if TYPE_CHECKING:
    from tests.support.trials.trial import Trial


def test_a_result_goes_through_celerys_states(stored: Trial) -> None:
    """PENDING before it runs, STARTED where that is tracked, RETRY while it waits, SUCCESS at the end."""
    for side in stored.sides:
        assert side.result("nobody").state == "PENDING"
        task_id = side.play(step("nap", seconds=0.5), task="tracked")
        started = side.result(task_id)
        if side.state(task_id, "STARTED", "SUCCESS") == "STARTED" and isinstance(info := started.info, dict):
            assert set(info) == {"pid", "hostname"}
        side.state(task_id, "SUCCESS")
    stories = [
        stored.tell(step("retry", exc="value", countdown=600), task="hooked"),
        stored.tell(step("retry", countdown=600), task="hooked"),
    ]
    for story in stories:
        for side, task_id in zip(stored.sides, story.ids, strict=True):
            side.state(task_id, "RETRY")
        story.matches(ready=False)
        plain, ours = (side.result(task_id) for side, task_id in zip(stored.sides, story.ids, strict=True))
        assert repr(ours.result) == repr(plain.result)
    failing = stored.ours.play(step("fail", message="first"), step("nap", seconds=0), queue="celery")
    stored.ours.state(failing, "RETRY", "SUCCESS")
    stored.ours.state(failing, "SUCCESS")


def test_a_redelivery_is_stored_as_a_retry_of_what_was_raised(stored: Trial) -> None:
    """While the message waits its caller sees RETRY, with the exception and its traceback."""
    task_id = stored.ours.play(step("fail", kind="after", message="600"))
    stored.ours.state(task_id, "RETRY")
    result = stored.ours.result(task_id)
    assert "to be delivered again after 600 s" in str(result.result)
    assert "RedeliverAfter" in str(result.traceback)


DEATHS: list[tuple[list[Any], dict[str, Any], type[Exception] | str, str, str]] = [
    (step("fail", kind="value", message="bad"), {}, ValueError, "bad", "exhausted"),
    (step("fail", kind="dead_letter", message="stolen"), {}, "DeadLetter", "stolen", "non_retryable"),
    (step("reject"), {}, Reject, "rejected by the task", "rejected"),
    (step("reject", requeue=True), {}, Reject, "rejected", "rejected"),
    (step("fail", kind="unpicklable", message="locked"), {}, "UnpickleableExceptionWrapper", "locked", "exhausted"),
    (step("fail", kind="unbuildable", message="wrong"), {}, "UnpickleableExceptionWrapper", "wrong", "exhausted"),
    (step("fail", kind="frozen", message="hard"), {}, "Frozen", "hard", "exhausted"),
    (step("nap", seconds=30), {"soft_time_limit": 1}, SoftTimeLimitExceeded, "", "exhausted"),
    (step("nap", seconds=30), {"time_limit": 1}, TimeLimitExceeded, "1", "time_limit"),
    (step("kill"), {}, WorkerLostError, "", "worker_lost"),
    (step("object"), {}, "EncodeError", "JSON serializable", "result_not_stored"),
]


def test_the_caller_gets_the_right_exception_whatever_way_a_task_dies(forked: Trial) -> None:
    """`get()` raises what the task died of; its error callback is called once; its dead letter is kept, with the reason."""
    side = forked.ours
    calls = []
    for verb, options, kind, text, reason in DEATHS:
        errback = side.sig("errback")
        calls.append((side.play(verb, queue="once", link_error=errback, **options), kind, text, reason))
    for task_id, kind, text, reason in calls:
        caught = side.result(task_id).get(timeout=60, propagate=False)
        found = {each.__name__ for each in type(caught).__mro__}
        assert (kind if isinstance(kind, str) else kind.__name__) in found, (reason, repr(caught))
        assert text in str(caught)
        assert side.result(task_id).state == "FAILURE"
        assert side.ended(task_id, "dead_lettered").reason == reason
        side.noted(task_id, "errback")
    for task_id, *_ in calls:
        assert side.counts(task_id)["errback"] == 1


@pytest.mark.parametrize("kind", ["Unpicklable", "Unbuildable", "Frozen"])
def test_a_dead_letter_names_the_exception_that_was_raised(forked: Trial, kind: str) -> None:
    """Celery shows another class for an exception that cannot be pickled. The record has the exception's own, and its fingerprint.

    The decision is that of the attempt, too: it knows that the task's own `max_retries` are used up.
    """
    side, fails = forked.ours, step("fail", kind=kind.lower())
    first = side.ended(side.play(fails, step("ok")), "redelivery_scheduled")
    died = side.ended(side.play(fails, queue="once"), "dead_lettered")
    assert (died.exception, died.fingerprint) == (first.exception, first.fingerprint)
    assert died.exception.endswith(f".{kind}")
    gave_up = side.ended(side.play(step("retry", exc=kind.lower(), max_retries=0)), "dead_lettered")
    assert (gave_up.reason, gave_up.exception) == ("exhausted", died.exception)


def test_celery_too_ends_with_these_exceptions(forked: Trial) -> None:
    """A plain worker reports the same exceptions, except for deaths that it would repeat for ever."""
    side = forked.plain
    calls = [
        (side.play(verb, **options), kind)
        for verb, options, kind, _, reason in DEATHS
        if reason != "worker_lost" and verb != step("reject", requeue=True)
    ]
    for task_id, kind in calls:
        caught = side.result(task_id).get(timeout=60, propagate=False)
        found = {each.__name__ for each in type(caught).__mro__}
        assert (kind if isinstance(kind, str) else kind.__name__) in found, repr(caught)


def test_results_of_any_size_are_stored_as_in_celery(stored: Trial) -> None:
    """A megabyte comes back whole."""
    story = stored.tell(step("big", size=1_000_000))
    for side, task_id in zip(stored.sides, story.ids, strict=True):
        assert len(side.result(task_id).get(timeout=60)) == 1_000_000
    stored.ours.ended(story.id, "succeeded")


def test_a_result_that_cannot_be_stored_is_a_failure_as_in_celery(stored: Trial) -> None:
    """The task has run, so it does not run again, and its message is kept."""
    story = stored.tell(step("object"), task="hooked")
    story.matches()
    assert stored.ours.ended(story.id, "dead_lettered").reason == "result_not_stored"
    assert stored.ours.counts(story.id)["run"] == 1


def test_a_result_that_is_not_wanted_is_not_stored(stored: Trial) -> None:
    """`ignore_result`, on the task or on the call; a failure is not stored either."""
    stories = [
        stored.tell(step("ok", value=1), task="forgotten"),
        stored.tell(step("ok", value=1), task="hooked", ignore_result=True),
        stored.tell(step("fail"), task="forgotten", queue="once"),
        stored.tell(step("retry"), step("ok"), task="forgotten"),
    ]
    for story in stories:
        story.matches(ready=False)
        for side, task_id in zip(stored.sides, story.ids, strict=True):
            assert side.result(task_id).state == "PENDING"
    stored.ours.ended(stories[2].id, "dead_lettered")


def test_an_ignored_task_has_no_result(forked: Trial) -> None:
    """`Ignore` stores nothing, and is an outcome of its own."""
    assert Ignore.__name__ == "Ignore"
    story = forked.tell(step("ignore"), task="hooked")
    story.matches(ready=False)
    forked.ours.ended(story.id, "ignored")
    assert {side.result(task_id).state for side, task_id in zip(forked.sides, story.ids, strict=True)} == {"PENDING"}


def test_a_refused_result_is_told_to_the_caller(forked: Trial) -> None:
    """A result that `retry=` refuses until the last delivery ends as `ResultRefused`."""
    task_id = forked.ours.play(step("ok", value="not yet"), task="polling", queue="celery")
    with pytest.raises(Exception, match="which its retry= refuses") as caught:
        forked.ours.result(task_id).get(timeout=60)
    assert type(caught.value).__name__ == "ResultRefused"
    assert forked.ours.ended(task_id, "dead_lettered").reason == "exhausted"
    accepted = forked.ours.play(step("ok", value="not yet"), step("ok", value="ready"), task="polling")
    assert forked.ours.result(accepted).get(timeout=60) == "ready"
