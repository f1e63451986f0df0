"""What all duties have in common: they go on after any failure, and end when they are stopped."""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from amqp.exceptions import ConnectionForced
from redis.exceptions import ConnectionError as Unreachable

from redelivery.errors import BrokerUnavailable
from redelivery.workers.duties import bootstep, duty
from redelivery.workers.duties.bootstep import LEASE, Duties
from redelivery.workers.duties.duty import Duty
from redelivery.workers.duties.scheduler import Scheduler
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG = 60.0


class Errand(Duty):
    """A duty for the tests; `ends` says how each of its steps ends, and `seen` is what happened."""

    title = "errand"
    begins_at_once = True

    def __init__(self, *ends: Exception | None, leads: tuple[bool, ...] = ()) -> None:
        super().__init__(0.001)
        self.ends, self.turns = iter(ends), iter(leads)
        self.seen: list[str] = []
        self.is_over = threading.Event()

    def leads(self) -> bool:
        """As it was told, then always."""
        return next(self.turns, True)

    def step(self) -> None:
        """End as configured; after the last step, signal that."""
        end = next(self.ends, self)
        if end is self:
            self.is_over.set()
        elif isinstance(end, Exception):
            raise end
        else:
            self.seen.append("done")

    def unanswered(self, exc: Exception) -> None:
        """Note it."""
        self.seen.append(f"unanswered: {exc}")

    def failed(self, exc: Exception) -> None:
        """Note it."""
        self.seen.append(f"failed: {exc}")


@pytest.fixture
def started() -> Iterator[list[Duty]]:
    """The duties that a test started, stopped at its end."""
    duties: list[Duty] = []
    yield duties
    for each in duties:
        each.stop()


def run(started: list[Duty], errand: Errand) -> list[str]:
    """Let it run until nothing is left to do; what it saw."""
    started.append(errand)
    errand.start()
    assert errand.is_over.wait(LONG)
    return errand.seen


def test_it_goes_on_whatever_fails(started: list[Duty]) -> None:
    """An absent broker and a bug are reported differently, and the next step follows after both."""
    absent = [Unreachable("away"), OSError("cut"), BrokerUnavailable("gone"), ConnectionForced("closed")]
    errand = Errand(None, *absent, ValueError("ours"), None)
    assert run(started, errand) == ["done", *(f"unanswered: {each}" for each in absent), "failed: ours", "done"]


def test_only_the_leader_takes_a_step(started: list[Duty]) -> None:
    """It asks before each step; without the lead it does nothing."""
    errand = Errand(None, leads=(False, False, True))
    assert run(started, errand) == ["done"]
    assert next(errand.turns, "all asked") == "all asked"


class Alone(Errand):
    """Counts the steps that run at once; each waits for the test."""

    def __init__(self) -> None:
        super().__init__(*[None] * 50)
        self.running = self.most = 0
        self.inside, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def step(self) -> None:
        """Say that it is in the middle, and wait."""
        self.running += 1
        self.most = max(self.most, self.running)
        self.inside.release()
        self.go.acquire(timeout=LONG)
        self.running -= 1
        super().step()


def test_it_takes_one_step_at_a_time_however_often_it_is_started(started: list[Duty]) -> None:
    """A consumer that reconnects starts its duties again, and a renewal may wake one that is busy."""
    errand = Alone()
    errand.start()
    for _ in range(51):
        assert errand.inside.acquire(timeout=LONG)
        errand.start()
        errand.wake()  # in the middle of a step
        errand.go.release()
    errand.go.release(9)  # for steps that were woken at the end
    assert run(started, errand) == ["done"] * 50
    assert errand.most == 1


def test_it_ends_in_the_middle_of_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A duty with a step once an hour must not delay the end of its worker, and leaves no thread."""
    errand = Errand()
    errand._every = 3600.0
    monkeypatch.setattr(duty, "scheduler", functools.cache(Scheduler))
    before = threading.active_count()
    errand.start()
    assert errand.is_over.wait(LONG)
    errand.stop()
    until(lambda: threading.active_count() == before, what="the end of its threads")


def test_it_takes_no_step_after_it_was_stopped() -> None:
    """Also if it is stopped before it starts, or in the moment of its start."""
    errand = Errand(None)
    errand.stop()
    errand.start()
    errand._take_step()
    assert errand.seen == []


def in_child(function: Callable[[], object]) -> int:
    """Call it in a forked child; its exit code: 0, or 1 for a result that is not true."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_leaves_its_parents_duties_alone_and_can_start_its_own(started: list[Duty]) -> None:
    """The parent's are in the middle of a step. The child has no thread of its parent's."""
    go = threading.Event()
    stuck, fresh = Stuck(go), Errand(None)
    started.append(stuck)
    stuck.start()
    assert stuck.is_over.wait(LONG)

    def child() -> bool:
        began = time.monotonic()
        stuck.stop(LONG)
        fresh.start()
        return time.monotonic() - began < LONG / 2 and fresh.is_over.wait(LONG) and fresh.seen == ["done"]

    assert in_child(child) == 0
    go.set()


class Stuck(Errand):
    """Its broker is away: a step lasts until the test releases it."""

    def __init__(self, go: threading.Event) -> None:
        super().__init__()
        self._go = go

    def step(self) -> None:
        """Say that it is in the middle, and wait."""
        self.is_over.set()
        self._go.wait(LONG)


def test_duties_that_are_stuck_hold_a_stop_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If they were stopped one after the other, the stop would take ten times as long."""
    go = threading.Event()
    stuck = [Stuck(go) for _ in range(10)]
    for each in stuck:
        each.start()
        assert each.is_over.wait(LONG)
    step = object.__new__(Duties)
    step._duties = tuple(stuck)
    monkeypatch.setattr(bootstep, "TIMEOUT", LEASE + 0.5)
    began = time.monotonic()
    step.shutdown(None)
    took = time.monotonic() - began
    go.set()
    assert 0.5 <= took < 10 * 0.5


class Late(Errand):
    """Rests first."""

    begins_at_once = False


def test_it_rests_first_unless_it_says_otherwise(started: list[Duty]) -> None:
    """A duty with a step once a second need not run while its worker starts."""
    errand, began = Late(None), time.monotonic()
    errand._every = 0.2
    assert run(started, errand) == ["done"]
    assert time.monotonic() - began >= 0.2
