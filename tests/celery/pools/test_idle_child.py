"""An idle child gets its task before the next turn of the event loop; a child that has just died loses none."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop


def await_children(here: Shop) -> None:
    """Wait until both children of a worker are there: each runs a task meanwhile."""
    warm = here.folder / "warm"
    before = [here.send("waits", str(warm)) for _ in range(2)]
    until(lambda: all(here.runs(each) for each in before), what="both children to be there")
    warm.touch()
    for each in before:
        here.ended(each, "succeeded")


def test_an_idle_child_begins_while_its_worker_looks_at_the_next_message(shop: Callable[..., Shop]) -> None:
    """Both messages come in one batch; the second blocks the main process until the first task has begun."""
    here = shop()
    here.start()
    await_children(here)
    with here.app.redelivery.publishing():
        first = here.send("ok")
        second = here.send("follows", first)
    here.ended(second, "succeeded")
    assert [run["begun"] for run in here.runs(second)] == [True]
    here.ended(first, "succeeded")


def test_what_is_written_to_children_that_have_just_died_runs_once(shop: Callable[..., Shop]) -> None:
    """The idle children are killed and a task comes at once: another child gets it as its first delivery."""
    here = shop()
    here.start()
    for _ in range(10):
        before = here.send("ok")
        here.ended(before, "succeeded")
        os.kill(here.runs(before)[0]["pid"], signal.SIGKILL)
        task_id = here.send("ok")
        assert here.ended(task_id, "succeeded").attempt == 1
        assert len(here.runs(task_id)) == 1


def test_the_loop_is_asked_about_no_pipe_that_nothing_is_written_to(shop: Callable[..., Shop]) -> None:
    """Once for each task, and once for each child at the start; Celery does it for each child at each turn."""
    here = shop()
    worker = here.start("-I", "tests.support.stops.counted_pipes", "-c", "4")
    for _ in range(10):
        here.ended(here.send("ok"), "succeeded")
    worker.stop()
    assert here.runs("asked")[0]["asked"] <= 10 + 4


def test_a_pool_that_shrinks_ends_no_child_that_has_just_been_given_a_task(shop: Callable[..., Shop]) -> None:
    """Both children have a task, and their reports are not read yet: none is idle. The tasks run once, to their end."""
    here = shop()
    gate = here.folder / "gate"
    here.start("-I", "tests.support.stops.early_shrink")
    await_children(here)
    with here.app.redelivery.publishing():  # they are received together
        held = [here.send("waits", str(gate)) for _ in range(2)]
        here.send("follows", held[-1])
    (noted,) = until(lambda: here.runs("shrunk"))
    gate.touch()
    assert noted["answer"] == "Can't shrink pool. All processes busy!"
    assert [here.ended(each, "succeeded").attempt for each in held] == [1, 1]
    assert [[run["event"] for run in here.runs(each)] for each in held] == [["start", "end"]] * 2
