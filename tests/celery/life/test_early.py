"""Tasks with `acks_late=False`: acknowledged before they run, never run again after a crash, and still accounted for once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.ports import Answer
from tests.support.desk import Desk
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop
    from tests.support.servers import Server

SETTINGS = {"lease": 2, "queues": {"#": {"redelivery_delay": 0.05, "max_delivery_attempts": 2}}}


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads", "solo"]))
def test_every_way_to_end_is_recorded_once(shop: Callable[..., Shop], pool: str) -> None:
    """Rejected, requeued, ignored, retried by Celery itself, or lost: each has one recorded end, and no message stays held."""
    here = shop(settings=SETTINGS)
    here.start(pool=pool)
    expected = {
        "nothing": ["published", "succeeded"],
        "reject": ["published", "dead_lettered"],
        "requeue": ["published", "redelivery_scheduled", "dead_lettered"],
        "ignore": ["published", "ignored"],
        "publish": ["published", "redelivery_scheduled", "succeeded"],
        "exit": ["published", "dead_lettered"],
        **({"kill": ["published", "dead_lettered"]} if pool == "prefork" else {}),
    }
    ids = {what: here.send("early_does", what) for what in expected}
    for what, outcomes in expected.items():
        end = here.ended(ids[what], outcomes[-1])
        assert (what, here.outcomes_of(ids[what])) == (what, outcomes)
        if what in {"exit", "kill"}:
            assert (end.reason, len(here.runs(ids[what]))) == ("worker_lost", 1)
    until(lambda: here.leftovers() == {}, 60, "nothing to be held")
    assert not here.server.client.exists("redelivery:starts")


def test_a_terminated_task_is_recorded_as_revoked(shop: Callable[..., Shop]) -> None:
    """`revoke(terminate=True)` finds it acknowledged, but its end is recorded. Its prefetch place was free while it ran."""
    here = shop(settings=SETTINGS)
    worker = here.start("--prefetch-multiplier", "1", concurrency=1)
    task_id = here.send("early_does", "nap")
    until(lambda: here.runs(task_id), 60, "the nap to begin")
    behind = here.send("ok")
    until(lambda: here.server.client.hlen("unacked") == 2, 60, "the next message to be received beside the one that runs")
    here.app.control.revoke(task_id, terminate=True, signal="SIGKILL")
    here.ended(task_id, "revoked")
    here.ended(behind, "succeeded")
    assert here.outcomes_of(task_id) == ["published", "revoked"]
    until(lambda: here.leftovers() == {}, 60, "nothing to be held")
    assert worker.stop() == 0


def test_a_crash_of_the_whole_worker_is_its_end(shop: Callable[..., Shop]) -> None:
    """Another worker finds it: a task that had begun becomes a dead letter and does not run; one that had not begun runs."""
    here = shop(settings=SETTINGS)
    first = here.start(concurrency=1)
    task_id = here.send("early_does", "nap")
    until(lambda: here.runs(task_id) and here.server.client.hlen("redelivery:starts"), 60, "the nap to begin")
    waiting = here.send("early_does", "nothing")
    until(lambda: here.server.client.hlen("unacked") == 2, 60, "the next one to be received")
    first.kill()
    here.start(concurrency=1)
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, len(here.runs(task_id)), here.outcomes_of(task_id)) == ("worker_lost", 1, ["published", "dead_lettered"])
    here.ended(waiting, "succeeded")
    assert [letter["headers"]["id"] for letter in here.letters()] == [task_id]
    assert here.leftovers() == {}


def test_a_repeat_after_a_lost_answer_changes_nothing(any_server: Server) -> None:
    """The broker recognises both steps by the message's tag, so that each of them happens once."""
    desk = Desk(any_server)
    desk.publish()
    tag = desk.hold()
    (held,) = desk.transport.leases.held_by("w")
    assert [desk.transport.accept(tag), desk.transport.accept(tag)] == [Answer.DONE, Answer.DONE]
    assert desk.transport.leases.started([tag]) == ["accepted"]
    assert [desk.transport.acknowledge(held.tag, None) for _ in range(2)] == [Answer.DONE, Answer.ALREADY]
    assert desk.transport.accept(tag) is Answer.REFUSED
    assert not desk.client.exists("redelivery:starts", "unacked")


def test_a_cut_connection_ends_it_once(shop: Callable[..., Shop], server: Server) -> None:
    """Requests without an answer are sent again, and recorded once."""
    here = shop(settings={**SETTINGS, "lease": 30})
    here.start(pool="threads")
    ids = [here.send("early") for _ in range(20)]
    until(lambda: any(here.outcomes_of(task_id)[-1] == "succeeded" for task_id in ids), 60, "the first to end")
    server.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    for task_id in ids:
        here.ended(task_id, "succeeded")
    assert [here.outcomes_of(task_id).count("succeeded") for task_id in ids] == [1] * 20
    assert [len(here.runs(task_id)) for task_id in ids] == [1] * 20


def test_where_kombu_receives_it_is_gone_before_it_runs(shop: Callable[..., Shop]) -> None:
    """Kombu sweeps `unacked` after the visibility timeout, and would run a longer task again."""
    here = shop(settings={**SETTINGS, "fast_receive": False})
    here.start(concurrency=2)
    napping, quick = here.send("early_does", "nap"), here.send("early_does", "nothing")
    here.ended(quick, "succeeded")
    until(lambda: here.runs(napping) and not here.server.client.exists("unacked"), 60, "nothing to be held while it runs")
    assert here.outcomes_of(napping) == ["published"]
