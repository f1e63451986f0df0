"""The scheduler of duties: each step in time, with few threads."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from redelivery.workers.duties import scheduler as module
from redelivery.workers.duties.scheduler import Scheduler
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import Server

LONG = 60.0
#: The threads of a worker that leads: the main thread, the dispatcher's, one that waits for the next step, and the spare one.
EXPECTED = 4


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    """A scheduler; at the end of the test its threads end."""
    made, before = Scheduler(), threading.active_count()
    yield made
    for entry in list(made._entries):
        made.end(entry)
    until(lambda: threading.active_count() == before, what="the end of the threads")


def counting(pause: float) -> tuple[Callable[[], float], list[float]]:
    """A step that notes when it ran, and its notes."""
    times: list[float] = []

    def step() -> float:
        times.append(time.monotonic())
        return pause

    return step, times


def test_a_long_step_delays_no_other(scheduler: Scheduler) -> None:
    """As many long steps as there are: each has its own thread, and the short one goes on."""
    go, started = threading.Event(), threading.Semaphore(0)

    def wait() -> float:
        started.release()
        go.wait(LONG)
        return LONG

    for _ in range(5):
        scheduler.add(wait, "long", 0)
    for _ in range(5):
        assert started.acquire(timeout=LONG)
    step, times = counting(0.01)
    scheduler.add(step, "short", 0)
    until(lambda: len(times) > 10, what="ten short steps")
    go.set()


def test_threads_that_are_not_needed_end(scheduler: Scheduler) -> None:
    """Two stay: one waits for the next step, and one is spare."""
    before, barrier = threading.active_count(), threading.Barrier(6)

    def meet() -> float:
        barrier.wait(LONG)
        return LONG

    for _ in range(5):
        scheduler.add(meet, "meeting", 0)
    barrier.wait(LONG)
    until(lambda: threading.active_count() == before + 2, what="the other threads to end")
    step, times = counting(0.001)
    scheduler.add(step, "short", 0)
    until(lambda: len(times) > 50, what="fifty steps")
    assert threading.active_count() <= before + 3


def test_a_hurried_step_is_taken_now_or_follows_the_current_one(scheduler: Scheduler) -> None:
    """A wake during a step may tell of something that the step did not see."""
    in_step, go, numbers = threading.Semaphore(0), threading.Semaphore(0), itertools.count()

    def step() -> float:
        next(numbers)
        in_step.release()
        go.acquire(timeout=LONG)
        return LONG

    entry = scheduler.add(step, "step", LONG)
    scheduler.hurry(entry)
    assert in_step.acquire(timeout=LONG)
    scheduler.hurry(entry)
    go.release()
    assert in_step.acquire(timeout=LONG)
    go.release()
    assert not in_step.acquire(timeout=0.2)
    assert next(numbers) == 2


def test_a_step_that_exits_ends_its_entry_alone(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an exception that nobody catches ends a thread."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    exits, (step, times) = [], counting(0.001)

    def exit_() -> float:
        exits.append(1)
        raise SystemExit

    scheduler.add(exit_, "exits", 0)
    scheduler.add(step, "goes on", 0)
    until(lambda: len(times) > 20, what="the other's steps")
    assert exits == [1]


def test_without_more_threads_brief_steps_go_on_and_long_ones_wait(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may refuse a thread. A long step would keep the only thread from the lease, and the worker would be fenced."""
    go, (brief, times) = threading.Event(), counting(0.001)
    begun = threading.Event()

    def long() -> float:
        begun.set()
        go.wait(LONG)
        return LONG

    start = threading.Thread.start
    monkeypatch.setattr(module, "POSTPONED", 0.01)
    scheduler.add(brief, "brief", 0.1, is_brief=True)
    scheduler.add(long, "long", 0.1)
    monkeypatch.setattr(threading.Thread, "start", refused)
    with capture_logs() as lines:
        until(lambda: len(times) > 20, what="the brief steps")
    assert not begun.is_set()
    assert {(each["event"], each["duty"]) for each in lines} == {("duty.postponed", "long")}
    monkeypatch.setattr(threading.Thread, "start", start)
    assert begun.wait(LONG)
    seen = len(times)
    until(lambda: len(times) > seen + 20, what="the brief steps beside it")
    go.set()


def refused(_: threading.Thread) -> None:
    """As Python reports it."""
    msg = "can't start new thread"
    raise RuntimeError(msg)


def test_a_worker_has_few_threads(any_server: Server, folder: Path) -> None:
    """Its seven duties on Redis share them. During a step there may be one more."""
    worker = Shop(any_server, folder).start(pool="solo")
    until(lambda: "dispatcher.leads" in worker.log.read_text(), what="the duties to have begun")
    threads = Path(f"/proc/{worker.process.pid}/task")
    until(lambda: len(list(threads.iterdir())) == EXPECTED, what="the duties to rest")
