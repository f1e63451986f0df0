"""Attempts that do not end by themselves: time limits, exits, memory, lost processes; each ends once, and is reported once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import WorkerLostError

from tests.support.trials.trial import step

if TYPE_CHECKING:
    from tests.support.trials.trial import Side, Trial


#: Celery #9203, #3747 and #8395: only processes and gevent have hard time limits, and only processes soft ones.
NO_TIME_LIMITS = {"threads", "eventlet", "solo"}
ONCE = {"run": 1, "on_retry": 0, "task_retry": 0, "on_failure": 1, "task_failure": 1, "errback": 1}
THRICE = {"run": 3, "on_retry": 2, "task_retry": 2, "on_failure": 1, "task_failure": 1, "errback": 1}


def hook_counts(side: Side, task_id: str) -> dict[str, int]:
    """How often each hook, signal and error callback for failures was called."""
    counts = side.counts(task_id)
    return {name: counts.get(name, 0) for name in ("run", "on_retry", "task_retry", "on_failure", "task_failure", "errback")}


def test_a_soft_time_limit_is_an_exception_in_the_task(forked: Trial) -> None:
    """By the task's own limit and by the message's, as in Celery; a task may succeed after it."""
    stories = [
        forked.tell(step("nap", seconds=30), task="limited", queue="once"),
        forked.tell(step("nap", seconds=30), task="hooked", queue="once", soft_time_limit=1),
        forked.tell(step("nap", seconds=30, late="saved"), task="hooked", soft_time_limit=1),
    ]
    for story in stories:
        story.matches()
    forked.ours.ended(stories[2].id, "succeeded")
    again = forked.ours.play(step("nap", seconds=30), step("ok"), task="limited")
    forked.ours.ended(again, "succeeded")
    assert hook_counts(forked.ours, again) == {
        "run": 2,
        "on_retry": 1,
        "task_retry": 1,
        "on_failure": 0,
        "task_failure": 0,
        "errback": 0,
    }


def test_a_hard_time_limit_fires_once(forked: Trial) -> None:
    """The pool reports the time-out and the lost child; hooks, signals and error callbacks are called once."""
    for task in ("hooked", "requested"):
        errbacks = [side.sig("errback") for side in forked.sides]
        ids = [
            side.play(step("nap", seconds=60), task=task, queue="once", time_limit=1, link_error=errback)
            for side, errback in zip(forked.sides, errbacks, strict=True)
        ]
        for side, task_id in zip(forked.sides, ids, strict=True):
            side.noted(task_id, "task_failure")
            side.state(task_id, "FAILURE")
        forked.ours.ended(ids[1], "dead_lettered")
        # The lost child is reported next, to the same process: once a later task is in its log, that has been handled.
        forked.ours.noted(forked.ours.play(step("nap", seconds=60), task=task, queue="once", time_limit=1), "task_failure")
        assert hook_counts(forked.ours, ids[1]) == ONCE
        ours, plain = ({**forked.ours.counts(ids[1])}, {**forked.plain.counts(ids[0])})
        for name in ("on_failure", "after_return"):  # Celery 5.7 sends the signal and calls the error callback twice
            assert ours.get(name) == plain.get(name) == 1, (name, plain)


def test_a_hard_time_limit_is_a_counted_attempt(trial: Trial) -> None:
    """While deliveries are left it is a retry; the last reason is `time_limit`. Some pools have no such limit, as in Celery."""
    if trial.pool in NO_TIME_LIMITS:
        task_id = trial.ours.play(step("nap", seconds=1, value=1), task="hooked", queue="thrice", time_limit=0.2)
        trial.ours.ended(task_id, "succeeded")
        return
    errback = trial.ours.sig("errback")
    task_id = trial.ours.play(step("nap", seconds=60), task="hooked", queue="thrice", time_limit=0.5, link_error=errback)
    end = trial.ours.ended(task_id, "dead_lettered")
    assert (end.reason, end.attempt) == ("time_limit", 3)
    assert hook_counts(trial.ours, task_id) == THRICE


def test_a_lost_process_is_told_of_once_when_it_was_the_last(trial: Trial) -> None:
    """First retries; then FAILURE, the signal and the error callback, once. Without processes the whole worker is lost.

    Celery's pool gives a task to another process if the first one died and its report of the start was not read. That happens
    about once in some hundred deaths on an overloaded machine. Such a run is not counted as an attempt.
    """
    if trial.pool != "prefork":
        return
    task_id = trial.ours.play(step("kill"), task="hooked", queue="thrice", link_error=trial.ours.sig("errback"))
    end = trial.ours.ended(task_id, "dead_lettered")
    assert (end.reason, end.attempt) == ("worker_lost", 3)
    found = hook_counts(trial.ours, task_id)
    assert found.pop("run") in {3, 4}
    assert {"run": 3, **found} == {**THRICE, "on_failure": 0}
    said = trial.ours.workers[-1].text.partition("Task handler raised error: WorkerLostError(")[2]
    assert any("WorkerLostError: " in line for line in said.splitlines()[1:9]), "the exception itself is logged, for trackers"
    if trial.backend:
        with pytest.raises(WorkerLostError):
            trial.ours.result(task_id).get(timeout=60)


def test_memory_that_runs_out_ends_the_attempt_and_not_the_worker(trial: Trial) -> None:
    """`MemoryError` with `acks_late` ends a plain worker; here it is a failure like any other."""
    side = trial.ours
    out_of_memory = step("fail", kind="memory", message="too much")
    task_id = side.play(out_of_memory, task="hooked", queue="thrice", link_error=side.sig("errback"))
    assert side.ended(task_id, "dead_lettered").reason == "exhausted"
    assert hook_counts(side, task_id) == THRICE
    if trial.backend:
        with pytest.raises(MemoryError, match="too much"):
            side.result(task_id).get(timeout=60)
    side.ended(side.play(step("ok")), "succeeded")
    assert side.workers[-1].process.poll() is None


def test_an_exception_that_is_no_exception_is_a_failed_attempt(trial: Trial) -> None:
    """`asyncio.CancelledError`, for instance, is a `BaseException`. Pools without processes report it as a lost attempt."""
    side, cancelled = trial.ours, step("fail", kind="cancelled")
    side.ended(side.play(cancelled, step("ok"), task="hooked"), "succeeded")
    ever = side.play(cancelled, task="hooked", queue="thrice", link_error=side.sig("errback"))
    end = side.ended(ever, "dead_lettered")
    assert (end.reason, end.attempt) == ("exhausted" if trial.pool == "prefork" else "worker_lost", 3)
    side.noted(ever, "errback", 1)
    counts = hook_counts(side, ever)
    assert (counts["run"], counts["on_retry"], counts["errback"]) == (3, 2, 1)


def test_an_exception_that_cannot_be_shown_is_a_failed_attempt(trial: Trial) -> None:
    """Its `__getattr__` raises `KeyError`: not even `traceback` can format it. Its message is not held, and the slots stay free.

    Eventlet's own loop prints what a greenlet raises, and ends the worker because it cannot.
    """
    if trial.pool == "eventlet":
        return
    side, unshowable = trial.ours, step("fail", kind="unshowable")
    for task_id in [side.play(unshowable, task="hooked", queue="thrice") for _ in range(3)]:
        end = side.ended(task_id, "dead_lettered")
        assert (end.reason, end.attempt) == ("worker_lost", 3)
    side.ended(side.play(step("ok")), "succeeded")
    assert "unacked" not in side.leftovers()


EXIT = step("fail", kind="exit", message="3")


def exits_once_and_for_ever(side: Side, *, backend: bool) -> None:
    """A task that exits is redelivered, counted, and dies of it; its worker goes on."""
    once = side.play(EXIT, step("ok", value=4), task="hooked")
    ever = side.play(EXIT, task="hooked", queue="thrice", link_error=side.sig("errback"))
    side.ended(once, "succeeded")
    end = side.ended(ever, "dead_lettered")
    assert (end.reason, end.attempt) == ("worker_lost", 3)
    assert [run["retries"] for run in side.notes(ever, "run")] == [0, 0, 0]
    counts = hook_counts(side, ever)
    assert (counts["run"], counts["on_retry"], counts["task_failure"], counts["errback"]) == (3, 2, 1, 1)
    if backend:
        assert side.result(once).get(timeout=60) == 4
        with pytest.raises(WorkerLostError):
            side.result(ever).get(timeout=60)
    side.ended(side.play(step("ok")), "succeeded")
    assert "unacked" not in side.leftovers()


def test_a_task_that_exits_is_a_lost_attempt(trial: Trial) -> None:
    """Celery loses the process (prefork), holds the message for ever (threads, greenlets), or ends with it (solo)."""
    exits_once_and_for_ever(trial.ours, backend=trial.backend)
    assert trial.ours.workers[-1].process.poll() is None


def test_a_hook_that_exits_does_not_hold_the_message(stored: Trial) -> None:
    """The hook runs outside our wrapper, so the attempt cannot report, and counts as lost."""
    options: dict[str, Any] = {"task": "raising", "queue": "thrice", "kwargs": {"key": "before_start exits"}}
    task_id = stored.ours.play(step("ok"), **options)
    assert stored.ours.ended(task_id, "dead_lettered").reason == "worker_lost"
    assert stored.ours.counts(task_id)["before_start"] == 3
    with pytest.raises(WorkerLostError):
        stored.ours.result(task_id).get(timeout=60)
