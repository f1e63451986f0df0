"""What happens when the broker or the connection fails under running tasks."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lanes import first_quick
from tests.support.operators.balance import assert_balanced
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop


def cut(here: Shop) -> None:
    """Cut every connection to the broker, except the one that asks for it."""
    here.server.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    here.server.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


def starts(here: Shop, task_id: str) -> int:
    """How often a nap began."""
    return sum(run["event"] == "start" for run in here.runs(task_id))


def succeeded(here: Shop) -> Counter[str]:
    """How often each task has succeeded, in the outcome log."""
    return Counter(event.task_id for event in here.events if event.outcome == "succeeded")


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
def test_a_cut_connection_runs_no_running_task_twice(shop: Callable[..., Shop], pool: str) -> None:
    """A running task is held through the reconnect and ends once; one that had not begun is given back and runs once."""
    here = shop()
    worker = here.start(pool=pool)
    running = [here.send("naps", 3) for _ in range(2)]
    until(lambda: all(starts(here, task_id) for task_id in running), 60)
    waiting = [here.send("ok") for _ in range(8)]
    until(lambda: here.server.client.hlen("unacked") >= 4, 60)
    cut(here)
    for task_id in running + waiting:
        here.ended(task_id, "succeeded", 30)
    assert "owner.reconnected" in worker.text
    assert [starts(here, task_id) for task_id in running] == [1, 1]
    assert [len(here.runs(task_id)) for task_id in waiting] == [1] * 8
    assert_balanced(here)


def test_connections_cut_again_and_again_lose_nothing(shop: Callable[..., Shop]) -> None:
    """After twenty cuts under load every task has ended once, and each that ran twice is named."""
    here = shop(settings={"lease": 3})
    here.start()
    ids = []
    for _ in range(20):
        ids += [here.send("ok") for _ in range(10)]
        ids.append(here.send("naps", 0.05))
        time.sleep(0.1)  # the cut must come in the middle of the load
        cut(here)
    until(lambda: set(ids) <= succeeded(here).keys(), 240, "all to succeed")
    assert_balanced(here)
    counts = succeeded(here)
    assert {counts[task_id] for task_id in ids} == {1}


def test_a_task_longer_than_the_visibility_timeout_runs_once(shop: Callable[..., Shop]) -> None:
    """Without the lease, kombu would deliver it to the other worker."""
    options = {"visibility_timeout": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    here = shop(conf={"broker_transport_options": options})
    here.start(concurrency=1)
    here.start(concurrency=1)
    task_id = here.send("naps", 5)
    here.ended(task_id, "succeeded", 30)
    assert starts(here, task_id) == 1


def test_an_outage_longer_than_the_lease_runs_nothing_twice(shop: Callable[..., Shop]) -> None:
    """The broker stands still for longer than a lease while tasks run on two workers; neither takes the other for dead."""
    here = shop(settings={"lease": 2})
    here.start(concurrency=1)
    here.start(concurrency=1)
    ids = [here.send("naps", 5) for _ in range(2)]
    until(lambda: all(starts(here, task_id) for task_id in ids), 60)
    assert here.server.process is not None
    os.kill(here.server.process.pid, signal.SIGSTOP)
    time.sleep(4)  # the outage
    os.kill(here.server.process.pid, signal.SIGCONT)
    for task_id in ids:
        here.ended(task_id, "succeeded", 30)
    assert [starts(here, task_id) for task_id in ids] == [1, 1]
    assert_balanced(here)


def test_what_ends_while_the_broker_is_away_waits_in_the_outbox(shop: Callable[..., Shop]) -> None:
    """The broker is killed and comes back; a task that ended meanwhile is acknowledged then, and does not run again."""
    here = shop()
    here.server.keep_everything()
    worker = here.start(concurrency=1)
    task_id = here.send("naps", 2)
    until(lambda: starts(here, task_id), 60)
    here.server.kill()
    until(lambda: len(here.runs(task_id)) == 2, 60, "the nap to end")
    here.server.start()
    here.ended(task_id, "succeeded", 40)
    here.ended(here.send("ok"), "succeeded", 40)
    assert starts(here, task_id) == 1, worker.text[-2000:]
    assert_balanced(here)


def test_a_delay_survives_a_restart_of_broker_and_worker(shop: Callable[..., Shop]) -> None:
    """A due time does not shift, and nothing is early."""
    here = shop()
    here.server.keep_everything()
    worker = here.start(pool="solo")
    task_id = here.send("ok", countdown=6)
    deferred = here.ended(task_id, "deferred")
    worker.kill()
    here.server.kill()
    here.server.start()
    here.start(pool="solo")
    here.ended(task_id, "succeeded", 40)
    (run,) = here.runs(task_id)
    assert deferred.due_ms is not None
    assert run["at"] * 1000 >= deferred.due_ms
    assert_balanced(here)


def test_a_stalled_worker_changes_nothing_that_is_no_longer_its_own(shop: Callable[..., Shop]) -> None:
    """SIGSTOP past the lease, then SIGCONT: its acknowledgement is refused, and it continues with a new token."""
    here = shop(settings={"lease": 2})
    stalled = here.start(pool="threads", concurrency=1)
    task_id = here.send("naps", 3)
    until(lambda: starts(here, task_id), 60)
    os.killpg(stalled.process.pid, signal.SIGSTOP)
    here.start(pool="threads", concurrency=1)
    until(lambda: starts(here, task_id) == 2, 60, "another worker to run it")
    os.killpg(stalled.process.pid, signal.SIGCONT)
    here.ended(task_id, "succeeded", 30)
    until(lambda: "transition.refused" in stalled.text, 60, "the refusal")
    assert here.outcomes_of(task_id).count("succeeded") == 1
    assert [event.reason for event in here.events_of(task_id)] == ["", "worker_lost", ""]
    for other in [here.send("ok") for _ in range(10)]:
        here.ended(other, "succeeded", 20)
    assert_balanced(here)


def test_a_plain_worker_and_ours_share_a_queue(shop: Callable[..., Shop]) -> None:
    """Neither worker touches the messages that the other one holds."""
    here = shop(settings={"lease": 2})
    here.start()
    plain = type(here)(here.server, here.folder, plain=True)
    here.workers.append(plain.start("-n", "plain@shop"))
    ids = [here.send("naps", 0.05) for _ in range(100)]
    until(lambda: len({run["id"] for run in here.runs() if run["event"] == "end"}) == 100, 60)
    until(lambda: not here.leftovers(), 60, "everything to be acknowledged")
    assert all(starts(here, task_id) == 1 for task_id in ids)


def test_a_server_that_does_not_push_is_polled(shop: Callable[..., Shop], server: Any) -> None:
    """If tracking is refused, one warning says so, and messages still arrive soon."""
    server.client.execute_command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-client|tracking")
    here = shop(broker=f"redis+socket://limited:secret@{server.socket}")
    worker = here.start()
    began = time.monotonic()
    for _ in range(5):
        here.ended(here.send("ok"), "succeeded")
    assert time.monotonic() - began < 30
    assert worker.text.count("receiver.tracking_refused") == 1
