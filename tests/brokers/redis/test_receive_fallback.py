"""Kombu's own receive, if ours is switched off or kombu's version is untested: every task still obeys its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop, Worker

POLICY = {"queues": {"#": {"redelivery_delay": 0.2, "max_delivery_attempts": 3}}}


def works(here: Shop, worker: Worker) -> None:
    """Success, redelivery, death, a countdown and a lost child work as with our own receive."""
    ok, twice, bad, later = here.send("ok"), here.send("fails", 1), here.send("fails"), here.send("ok", countdown=1.5)
    killed, lost = here.send("kills", 1), here.send("raises", "reject")
    assert here.ended(ok, "succeeded").attempt == 1
    assert here.ended(twice, "succeeded").attempt == 2
    assert here.ended(bad, "dead_lettered").attempt == 3
    assert here.ended(later, "succeeded").attempt == 1
    assert "deferred" in here.outcomes_of(later)
    assert here.ended(killed, "succeeded").attempt == 2
    assert here.ended(lost, "dead_lettered").reason == "rejected"
    assert {letter["headers"]["id"] for letter in here.letters()} == {bad, lost}
    until(lambda: here.leftovers() == {}, what="the broker to be empty")
    assert worker.process.poll() is None


def test_an_unknown_kombu_is_left_to_receive_by_itself_and_said_aloud(shop: Callable[..., Shop]) -> None:
    """One warning names the version; nothing else changes for the tasks."""
    here = shop(settings=POLICY, versions={"kombu": "9.9.1"}, conf={"worker_lost_wait": 1})
    worker = here.start()
    works(here, worker)
    warnings = [line for line in worker.text.splitlines() if "event=kombu.unknown" in line]
    assert len(warnings) == 1
    assert "version=9.9.1" in warnings[0]
    assert "received_by=kombu" in worker.text


@pytest.mark.parametrize("pool", ["threads"])
def test_fast_receive_may_be_switched_off(shop: Callable[..., Shop], pool: str) -> None:
    """With priorities and several queues, a redelivered message still comes back to its own queue."""
    here = shop(settings={"fast_receive": False, **POLICY})
    worker = here.start("-Q", "celery,other", pool=pool)
    task_id = here.send("fails", 1, queue="other", priority=6)
    assert here.ended(task_id, "succeeded").queue == "other"
    assert "received_by=kombu" in worker.text
    assert "event=kombu.unknown" not in worker.text


def test_a_stopped_worker_gives_back_what_it_has_not_run(shop: Callable[..., Shop]) -> None:
    """Kombu restores what it took; the next worker runs it."""
    here = shop(settings={"fast_receive": False, **POLICY})
    worker = here.start(concurrency=1)
    running = here.send("naps", 1)
    until(lambda: here.runs(running))
    waiting = [here.send("ok", number) for number in range(3)]
    until(lambda: here.server.client.hlen("unacked") == 4, what="all to be held")
    worker.stop()
    here.start()
    for task_id in [running, *waiting]:
        here.ended(task_id, "succeeded")
    until(lambda: here.leftovers() == {})
