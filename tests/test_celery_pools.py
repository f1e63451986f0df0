"""The core stories of a message on every pool: prefork, threads, solo, gevent and eventlet. One worker each, ended by the last."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import TaskRevokedError

from redelivery.middleware.envelope import Envelope
from tests.control import Floor, floor
from tests.running import until
from tests.trial import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
#: Pools in which a task can be ended from outside; in the others Celery says so and lets it run.
CAN_TERMINATE = {"prefork", "gevent", "eventlet"}


@pytest.fixture(scope="module", params=[pytest.param(pool, marks=pytest.mark.xdist_group(f"pools-{pool}")) for pool in POOLS])
def on(request: pytest.FixtureRequest) -> Iterator[tuple[str, Floor]]:
    """A worker of each pool, with room for two tasks (one on solo) and a result backend. In CI no pool may be missing."""
    if missing(request.param):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing(request.param))
    with floor(backend=True) as made:
        made.start(pool=request.param)
        yield request.param, made


def places(pool: str) -> int:
    """How many tasks run at once."""
    return 1 if pool == "solo" else 2


def test_a_task_succeeds_and_its_caller_has_the_result(on: tuple[str, Floor]) -> None:
    """The ordinary path."""
    _, here = on
    task_id = here.send("ok", {"a": [1]})
    assert here.app.AsyncResult(task_id).get(timeout=60) == {"a": [1]}
    here.ended(task_id, "succeeded")
    assert here.outcomes_of(task_id) == ["published", "succeeded"]


def test_a_task_fails_is_redelivered_and_succeeds_or_dies(on: tuple[str, Floor]) -> None:
    """A failure is another delivery, until the last one; the letter holds its history and the caller the exception."""
    _, here = on
    once, always = here.send("fails", 1), here.send("fails")
    here.ended(once, "succeeded")
    assert here.outcomes_of(once) == ["published", "redelivery_scheduled", "succeeded"]
    assert here.ended(always, "dead_lettered").reason == "exhausted"
    assert len(here.noted(always)) == 3
    (letter,) = [letter for letter in here.letters() if letter["headers"]["id"] == always]
    assert len(Envelope.of(letter["headers"]).attempts) == 3
    with pytest.raises(RuntimeError, match="no"):
        here.app.AsyncResult(always).get(timeout=60)


def test_a_running_task_is_revoked_with_terminate(on: tuple[str, Floor]) -> None:
    """It ends, REVOKED, once; where the pool cannot end a task, it runs to its end, and the worker lives."""
    pool, here = on
    if pool == "solo":  # the worker cannot hear anything while its only task runs
        return
    (task_id,) = here.filled(1, "revoked-running")
    here.app.control.revoke(task_id, terminate=True, signal="SIGKILL")
    if pool in CAN_TERMINATE:
        here.ended(task_id, "revoked")
        until(lambda: here.app.AsyncResult(task_id).state == "REVOKED", what="REVOKED to be stored")
        assert here.outcomes_of(task_id) == ["published", "revoked"]
    else:
        here.open("revoked-running")
        here.ended(task_id, "succeeded")
    here.ended(here.send("ok"), "succeeded")


def test_a_task_that_waits_in_its_queue_is_revoked(on: tuple[str, Floor]) -> None:
    """It never runs, its caller is told, and `revoked` is recorded; a worker that runs its tasks itself hears it between two."""
    pool, here = on
    gate = "revoked-waiting"
    running = here.filled(places(pool), gate)
    before = [here.send("holds", gate, None, 0.1) for _ in range(7)]  # they fill the worker's window
    waiting = here.send("ok")
    here.app.control.revoke(waiting)
    if pool != "solo":
        until(lambda: waiting in here.ask("revoked"), what="the worker to know the revoked id")
    here.open(gate)
    here.ended(waiting, "revoked")
    assert here.noted(waiting) == []
    here.all_ended([*running, *before])
    with pytest.raises(TaskRevokedError):
        here.app.AsyncResult(waiting).get(timeout=60)
    assert [line["terminated"] for line in here.noted(waiting, "task_revoked")] == [False]


def test_a_worker_that_runs_its_tasks_itself_hears_a_revoke_between_two_of_a_batch(on: tuple[str, Floor]) -> None:
    """Both messages came at once; the second is revoked while the first one runs."""
    pool, here = on
    if pool != "solo":  # the others have threads or processes for their tasks
        return
    (running,) = here.filled(1, "first")
    batch = [here.send("holds", "second"), here.send("ok")]
    here.open("first")
    here.begun(batch[0])
    assert here.server.client.llen("celery") == 0
    here.app.control.revoke(batch[1])
    here.open("second")
    here.ended(batch[1], "revoked")
    assert here.noted(batch[1]) == []
    here.all_ended([running, batch[0]])


def test_a_task_that_waits_in_the_delay_store_is_revoked(on: tuple[str, Floor]) -> None:
    """The message leaves the store at once, not when it is due."""
    _, here = on
    task_id = here.send("ok", countdown=3600)
    here.ended(task_id, "deferred")
    here.app.control.revoke(task_id)
    here.ended(task_id, "revoked")
    assert here.outcomes_of(task_id) == ["published", "deferred", "revoked"]
    until(lambda: here.app.AsyncResult(task_id).state == "REVOKED", what="REVOKED to be stored")
    assert here.server.client.zcard("redelivery:delayed:due:celery") == 0


@pytest.mark.parametrize("countdown", [0.5, 1.5])
def test_a_countdown_is_kept(on: tuple[str, Floor], countdown: float) -> None:
    """A short one in the worker, a longer one in the delay store; never early."""
    _, here = on
    sent = time.time()
    task_id = here.send("ok", countdown=countdown)
    here.ended(task_id, "succeeded")
    assert here.noted(task_id)[0]["at"] - sent >= countdown
    assert ("deferred" in here.outcomes_of(task_id)) is (countdown > 1)


def test_a_limited_task_waits_for_its_tokens_and_runs_once(on: tuple[str, Floor]) -> None:
    """Six messages of a task that may run four times a second: none is lost, none twice, none too soon."""
    _, here = on
    ids = [here.send("limited") for _ in range(6)]
    here.all_ended(ids)
    moments = sorted(here.noted(task_id)[0]["at"] for task_id in ids)
    assert [len(here.noted(task_id)) for task_id in ids] == [1] * len(ids)
    assert moments[-1] - moments[0] >= 1  # the first at once, then one in a quarter of a second


def test_an_expired_message_does_not_run(on: tuple[str, Floor]) -> None:
    """It is a death with reason `expired`, and its caller is told in Celery's words."""
    _, here = on
    task_id = here.send("ok", expires=-1)
    assert here.ended(task_id, "dead_lettered").reason == "expired"
    assert here.noted(task_id) == []
    with pytest.raises(TaskRevokedError):
        here.app.AsyncResult(task_id).get(timeout=60)


def test_what_runs_is_finished_and_what_waits_goes_back_when_the_worker_is_told_to_stop(on: tuple[str, Floor]) -> None:
    """A warm shutdown ends what has begun; the rest is in its queue again, in order, uncounted, and runs once elsewhere."""
    pool, here = on
    here.waits_for_nothing()
    gate = "warm"
    running = here.filled(places(pool), gate)
    waiting = [here.send("holds", gate, value=number) for number in range(12)]
    worker = here.workers[-1]
    worker.process.terminate()
    until(lambda: "Warm shutdown" in worker.text, what="the worker to hear the signal")
    here.open(gate)
    assert worker.process.wait(60) == 0
    here.all_ended(running)
    ended = [task_id for task_id in waiting if here.outcomes_of(task_id) == ["published", "succeeded"]]
    returned = [task_id for task_id in waiting if task_id not in ended]
    assert len(ended) <= places(pool) * 4  # what the pool has been given is finished: no more than the worker's window
    assert here.leftovers() == {"celery": len(returned)}
    here.start(pool="threads")
    here.all_ended(returned)
    here.ran_once([*running, *waiting])
