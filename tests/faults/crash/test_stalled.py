"""A worker that stood still past its lease: its transitions of messages that it no longer owns are refused."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.messages.envelope import Envelope
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.running import Shop

#: How a task ends, and what that does to the message: an acknowledgement, a redelivery, and three ways to die or go back.
ENDS = {
    "succeeds": ("succeeded", ""),
    "fails": ("dead_lettered", "exhausted"),
    "gives up": ("dead_lettered", "non_retryable"),
    "rejects": ("dead_lettered", "rejected"),
}
SETTINGS = {"lease": 2, "queues": {"#": {"redelivery_delay": 0.05, "max_delivery_attempts": 3}}}


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
def test_what_a_stalled_worker_asks_is_refused_and_recorded(shop: Callable[..., Shop], tmp_path: Path, pool: str) -> None:
    """SIGSTOP past the lease while four tasks run, then SIGCONT: when they end, none of its transitions is carried out.

    The other worker, which runs them meanwhile, ends each as it should; the stalled one continues with a new token.
    """
    here = shop(settings=SETTINGS, module="tests.support.apps.deaths")
    stalled = here.start(pool=pool, concurrency=len(ENDS))
    ids = {how: here.send("ends_when_told", how, str(tmp_path)) for how in ENDS}
    until(lambda: len(here.runs()) == len(ENDS), what="all to run")
    os.killpg(stalled.process.pid, signal.SIGSTOP)
    other = here.start(pool=pool, concurrency=len(ENDS))
    until(lambda: len(here.runs()) == 2 * len(ENDS), what="the other worker to run them all")
    os.killpg(stalled.process.pid, signal.SIGCONT)
    (tmp_path / "w0@shop").touch()

    def refused() -> set[str]:
        lines = [line for line in stalled.text.splitlines() if "event=transition.refused" in line]
        return {how for how, task_id in ids.items() if any(task_id in line for line in lines)}

    until(lambda: refused() == set(ENDS), what=f"the refusals, not only {refused()}")
    assert {task_id: here.outcomes_of(task_id) for task_id in ids.values()} == {
        task_id: ["published", "redelivery_scheduled"] for task_id in ids.values()
    }
    assert (here.letters(), here.leftovers()) == ([], {"unacked": len(ENDS), "unacked_index": len(ENDS)})
    assert len(here.runs()) == 2 * len(ENDS)

    (tmp_path / "all").touch()
    for how, (outcome, reason) in ENDS.items():
        end = here.ended(ids[how], outcome)
        assert end.reason == reason
        assert how == "fails" or end.worker == "w1@shop"  # its last attempt may be either worker's
        assert [event.outcome for event in here.events_of(ids[how])].count(outcome) == 1
        assert here.events_of(ids[how])[1].reason == "worker_lost"
    until(lambda: here.leftovers() == {}, what="nothing to be held")
    letters = {letter["headers"]["id"]: Envelope.of(letter["headers"]) for letter in here.letters()}
    assert letters.keys() == {task_id for how, task_id in ids.items() if how != "succeeds"}
    assert [(each["queue"], each["count"]) for letter in letters.values() for each in letter.deaths] == [("celery", 1)] * 3
    assert len(letters[ids["fails"]].attempts) == 3

    assert "event=owner.fenced" in stalled.text
    assert other.stop() == 0
    after = here.send("ok")
    assert here.ended(after, "succeeded").worker == "w0@shop"


def test_a_broker_that_was_emptied_is_not_called_another_worker(shop: Callable[..., Shop], tmp_path: Path) -> None:
    """FLUSHALL while a task runs, with no other worker: the line says what may have happened, and the worker goes on."""
    here = shop(settings=SETTINGS)
    worker = here.start(concurrency=1)
    task_id = here.send("waits", str(tmp_path / "gate"))
    until(lambda: here.runs(task_id), what="the task to run")
    here.server.client.flushall()
    until(lambda: "event=owner.fenced" in worker.text, what="the worker to notice")
    (tmp_path / "gate").touch()
    line = until(lambda: [line for line in worker.text.splitlines() if "event=transition.refused" in line], what="the line")[0]
    assert task_id in line
    assert "or the broker has lost it" in line
    here.ended(here.send("ok"), "succeeded")
