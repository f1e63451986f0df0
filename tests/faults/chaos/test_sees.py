"""The chaos harness detects each of four deliberately broken builds, for the right reason."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.chaos.plans.plan import Plan
from tests.faults.chaos.run.harness import Run
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.chaos.processes.fleet import Process
    from tests.faults.chaos.verdict import Verdict


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("build", "boundary"),
    first_quick(
        [
            ("pop_then_push", "receive.after"),
            ("acknowledge_then_record", "acknowledge.after"),
            ("publish_after_acknowledge", "defer.after"),
        ]
    ),
)
def test_a_build_with_two_steps_for_one_is_caught(folder: Path, build: str, boundary: str) -> None:
    """A kill between the two steps loses a message, and the verdict names it as lost."""
    assert _run(folder, build, boundary).lost


@pytest.mark.timeout(600)
def test_a_build_without_the_check_of_the_owner_is_caught(folder: Path) -> None:
    """A worker that stood still past its lease ends a message that belongs to another worker: it ended twice."""
    verdict = _stalled(folder, "no_owner_check")
    assert verdict.duplicated


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_build_that_is_whole_passes_where_the_broken_ones_fail(folder: Path) -> None:
    """With the check, after the same stall nothing ends twice, and the repeated run is named."""
    verdict = _stalled(folder, "")
    assert not verdict.faults
    assert verdict.repeats


def _run(folder: Path, build: str, boundary: str) -> Verdict:
    """One worker that dies at a boundary, and one that lives after it."""
    run = Run(folder, 1, Plan(1, 1, {f"worker:{boundary}"}), build=build, faults=(), mix="plain", workers=1, pools=("solo",))
    run.open()
    try:
        run.go(seconds=240)
        assert not run.plan.missing
        run.settle(240)
        return run.judge(export=False)
    finally:
        run.close()


def _stalled(folder: Path, build: str) -> Verdict:
    """One worker is stopped while it runs a task, the other runs it too, and the first goes on."""
    run = Run(folder, 1, Plan(1, 0, ()), build=build, faults=(), mix="slow", workers=2, pools=("threads",))
    run.open()
    try:
        stalled = until(lambda: _turned(run, lambda: _running(run)), 120, "a worker to be in the middle of a task")
        stalled.signal(signal.SIGSTOP)
        task_ids = _in_hand(run, stalled)
        until(lambda: _turned(run, lambda: task_ids & run.ended()), 240, "another worker to end what the stalled one runs")
        before = _ran_in(run, stalled)
        stalled.signal(signal.SIGCONT)
        until(lambda: _turned(run, lambda: _ran_in(run, stalled) > before + 4), 240, "the stalled worker to go on")
        run.settle(240)
        return run.judge(export=False)
    finally:
        run.close()


def _running(run: Run) -> Process | None:
    """A worker that runs a task of one second."""
    return next((each for each in run.fleet.workers() if _in_hand(run, each)), None)


def _in_hand(run: Run, worker: Process) -> set[str]:
    """The tasks that have begun in this process and have not ended."""
    said: dict[str, set[str]] = {"start": set(), "end": set()}
    for line in run.notes():
        if line["pid"] == worker.pid and line.get("event"):
            said[line["event"]].add(line["id"])
    return said["start"] - said["end"]


def _ran_in(run: Run, worker: Process) -> int:
    """How many of the notes are this process's."""
    return sum(line["pid"] == worker.pid for line in run.notes())


def _turned(run: Run, condition: Callable[[], Any]) -> Any:
    run.turn()
    return condition()
