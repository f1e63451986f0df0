"""The core behaviour of a message on every pool: prefork, threads, solo, gevent and eventlet (`tests.support.control.pooled`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import TaskRevokedError

from redelivery.middleware.messages.envelope import Envelope
from tests.support.control.control import waiting_ids
from tests.support.control.pooled import CAN_TERMINATE, GREEN, places
from tests.support.running import until

if TYPE_CHECKING:
    from tests.support.control.control import ControlShop


def test_a_task_succeeds_and_its_caller_has_the_result(on: tuple[str, ControlShop]) -> None:
    """The ordinary path."""
    _, here = on
    task_id = here.send("ok", {"a": [1]})
    assert here.app.AsyncResult(task_id).get(timeout=60) == {"a": [1]}
    here.ended(task_id, "succeeded")
    assert here.outcomes_of(task_id) == ["published", "succeeded"]


def test_a_task_fails_is_redelivered_and_succeeds_or_dies(on: tuple[str, ControlShop]) -> None:
    """Each failure leads to another delivery, until the last one; the dead letter has the history, the caller the exception."""
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


def test_a_running_task_is_revoked_with_terminate(on: tuple[str, ControlShop]) -> None:
    """It ends once, as REVOKED. If the pool cannot end a task, it runs to its end, and the worker lives."""
    pool, here = on
    if pool == "solo":  # the worker reads no command while its only task runs
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


def test_a_task_that_waits_in_its_queue_is_revoked(on: tuple[str, ControlShop]) -> None:
    """It never runs, its caller is informed, and `revoked` is recorded; a solo worker reads the command between two tasks."""
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
    until(lambda: here.noted(waiting, "task_revoked"), what="the signal")  # Celery sends it after all else
    assert [line["terminated"] for line in here.noted(waiting, "task_revoked")] == [False]


def test_a_worker_that_runs_its_tasks_itself_hears_a_revoke_between_two_of_a_batch(on: tuple[str, ControlShop]) -> None:
    """Both messages came at the same time; the second is revoked while the first one runs."""
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


@pytest.mark.parametrize("place", ["running", "queue", "delay store"])
def test_a_message_with_a_stamp_is_revoked_by_it(on: tuple[str, ControlShop], place: str) -> None:
    """Only messages with the stamp are revoked; a running one is ended if the pool can do that, on solo between two tasks."""
    pool, here = on
    stamp, options = f"stamp of {place}", {"countdown": 3600} if place == "delay store" else {}
    stamped: dict[str, Any] = {"stamped_headers": ["customer"], "customer": stamp, **options}
    revoke = {"headers": {"customer": [stamp]}, "terminate": place == "running", "signal": "SIGKILL"}
    if place == "running":
        if pool == "solo":
            return
        victim, other = here.send("holds", stamp, **stamped), here.send("holds", stamp)
        here.begun(victim, other)
    elif place == "queue":
        here.filled(places(pool), stamp)
        for _ in range(7):  # they fill the worker's window
            here.send("holds", stamp, None, 0.1)
        other, victim = here.send("ok"), here.send("ok", **stamped)
    else:
        victim, other = here.send("ok", **stamped), here.send("ok", **options)
        here.ended(victim, "deferred")
        here.ended(other, "deferred")
    here.app.control.broadcast("revoke_by_stamped_headers", arguments=revoke, reply=pool != "solo", timeout=60, limit=1)
    here.open(stamp)
    is_ended = place != "running" or pool in CAN_TERMINATE
    here.ended(victim, "revoked" if is_ended else "succeeded")
    if is_ended:
        until(lambda: here.app.AsyncResult(victim).state == "REVOKED", what="REVOKED to be stored")
        until(lambda: here.noted(victim, "task_revoked"), what="the signal")
        assert [line["terminated"] for line in here.noted(victim, "task_revoked")] == [place == "running"]
    if place == "delay store":
        assert here.server.client.zcard("redelivery:delayed:due:celery") == 1
        here.app.control.revoke(other)
        here.ended(other, "revoked")
    else:
        here.ended(other, "succeeded")


def test_a_task_that_waits_in_the_delay_store_is_revoked(on: tuple[str, ControlShop]) -> None:
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
def test_a_countdown_is_kept(on: tuple[str, ControlShop], countdown: float) -> None:
    """A short one waits in the worker, a longer one in the delay store; neither is early."""
    _, here = on
    sent = time.time()
    task_id = here.send("ok", countdown=countdown)
    here.ended(task_id, "succeeded")
    assert here.noted(task_id)[0]["at"] - sent >= countdown
    assert ("deferred" in here.outcomes_of(task_id)) is (countdown > 1)


def test_a_limited_task_waits_for_its_tokens_and_runs_once(on: tuple[str, ControlShop]) -> None:
    """Six messages of a task that may run four times a second: none is lost, runs twice, or is too early."""
    _, here = on
    ids = [here.send("limited") for _ in range(6)]
    here.all_ended(ids)
    moments = sorted(here.noted(task_id)[0]["at"] for task_id in ids)
    assert [len(here.noted(task_id)) for task_id in ids] == [1] * len(ids)
    assert moments[-1] - moments[0] >= 1  # the first at once, then one each quarter of a second


def test_a_limit_is_changed_by_remote_control(on: tuple[str, ControlShop]) -> None:
    """The limit of once an hour becomes a thousand a second, from then on."""
    _, here = on
    here.ended(here.send("hourly"), "succeeded")
    assert here.tell("rate_limit", "tests.support.control.control_app.hourly", "1000/s") == {
        "ok": "new rate limit set successfully"
    }
    here.all_ended([here.send("hourly") for _ in range(4)])
    here.tell("rate_limit", "tests.support.control.control_app.hourly", "1/h")


def test_a_worker_prefetches_what_its_multiplier_says(on: tuple[str, ControlShop]) -> None:
    """Four for each of two places: at most eight are held, and the rest stays available to other workers."""
    pool, here = on
    here.waits_for_nothing()
    first = here.filled(places(pool), "window")
    rest = [here.send("holds", "open window") for _ in range(40)]
    client = here.server.client
    if pool in {"prefork", "threads"}:
        until(lambda: client.hlen("unacked") == 8, what="the window to be full")
    here.open("window")  # solo and greenlets take the next batch when they have room for its first
    here.all_ended(first)
    here.begun(*rest[: places(pool)])
    if pool == "solo":
        assert 0 < client.hlen("unacked") <= 8
    else:
        until(lambda: client.hlen("unacked") > 2 if pool in GREEN else client.hlen("unacked") == 8, what="the window to be used")
        here.ask("ping")
        here.ask("stats")  # the loop has turned once since
        assert client.hlen("unacked") <= 8
    assert client.llen("celery") >= 32
    here.open("open window")
    here.all_ended(rest)
    here.ran_once([*first, *rest])


def test_a_pool_of_greenlets_grows_and_shrinks_while_it_works(on: tuple[str, ControlShop]) -> None:
    """A third task begins at once; afterwards there is room for two again. Threads and solo cannot, as in Celery."""
    pool, here = on
    if pool == "prefork":  # `test_control.py`
        return
    if pool not in GREEN:
        assert "error" in here.tell("pool_grow", 1)
        return
    running = here.filled(2, "grown")
    third = here.send("holds", "grown")
    assert here.tell("pool_grow", 1) == {"ok": "pool will grow"}
    here.begun(third)
    here.open("grown")
    here.all_ended([*running, third])
    assert here.tell("pool_shrink", 1) == {"ok": "pool will shrink"}
    until(lambda: here.ask("stats")["prefetch_count"] == 8, what="the window to shrink")
    running, waiting = here.filled(2, "shrunk"), here.send("ok")
    until(lambda: here.server.client.hlen("unacked") == 3, what="a message that waits for room")
    assert here.noted(waiting) == []
    here.open("shrunk")
    here.all_ended([*running, waiting])


def test_a_queue_is_added_and_cancelled_while_messages_flow(on: tuple[str, ControlShop]) -> None:
    """Messages taken from the cancelled queue run or go back, the others stay, and nothing runs twice."""
    _, here = on
    sent: list[str] = []

    def load(count: int) -> None:
        for _ in range(count):
            sent.extend((here.send("ok"), here.send("ok", queue="extra")))

    load(5)
    assert here.tell("add_consumer", "extra") == {"ok": "add consumer extra"}
    until(lambda: "extra" in {queue["name"] for queue in here.ask("active_queues")}, what="the queue to be consumed")
    load(15)
    assert here.tell("cancel_consumer", "extra") == {"ok": "no longer consuming from extra"}
    load(5)
    until(lambda: "extra" not in {queue["name"] for queue in here.ask("active_queues")}, what="the queue to be let go")
    load(15)
    here.all_ended(sent[::2])
    until(lambda: "unacked" not in here.leftovers(), what="nothing to be held")
    done, left = {line["id"] for line in here.runs()} & set(sent[1::2]), here.server.client.llen("extra")
    assert left >= 15
    assert len(done) + left == len(sent[1::2])
    here.tell("add_consumer", "extra")
    here.all_ended(sent[1::2])
    here.tell("cancel_consumer", "extra")
    until(lambda: "extra" not in {queue["name"] for queue in here.ask("active_queues")}, what="the queue to be let go")
    here.ran_once(sent)


def test_what_was_in_line_when_its_queue_was_cancelled_goes_back_in_its_order(on: tuple[str, ControlShop]) -> None:
    """A solo worker has received a batch, and reads the command after its first task: the rest goes back in its old order."""
    pool, here = on
    if pool != "solo":  # the others give everything that they receive to the pool at once
        return
    here.tell("add_consumer", "line")
    until(lambda: "line" in {queue["name"] for queue in here.ask("active_queues")}, what="the queue to be consumed")
    (first,) = here.filled(1, "line")
    batch = [here.send("holds", "in line", None, 0.1, queue="line") for _ in range(7)]
    here.open("line")
    here.begun(batch[0])
    assert here.server.client.llen("line") == 0
    here.app.control.cancel_consumer("line")
    here.open("in line")
    until(lambda: "unacked" not in here.leftovers(), what="nothing to be held")
    ended = [task_id for task_id in batch if here.noted(task_id)]
    assert waiting_ids(here, "line") == batch[len(ended) :]
    assert len(ended) < len(batch)
    here.tell("add_consumer", "line")
    here.all_ended([first, *batch])
    here.tell("cancel_consumer", "line")
    here.ran_once([first, *batch])
    order = [line["id"] for line in here.runs() if line["event"] == "run" and line["id"] in batch]
    assert order == batch


def test_an_expired_message_does_not_run(on: tuple[str, ControlShop]) -> None:
    """It dies with reason `expired`, and its caller gets Celery's own error."""
    _, here = on
    task_id = here.send("ok", expires=-1)
    assert here.ended(task_id, "dead_lettered").reason == "expired"
    assert here.noted(task_id) == []
    with pytest.raises(TaskRevokedError):
        here.app.AsyncResult(task_id).get(timeout=60)


def test_what_runs_is_finished_and_what_waits_goes_back_when_the_worker_is_told_to_stop(on: tuple[str, ControlShop]) -> None:
    """A warm shutdown finishes what has begun; the rest is in its queue again, in order and uncounted, and runs once elsewhere."""
    pool, here = on
    here.waits_for_nothing()
    gate = "warm"
    running = here.filled(places(pool), gate)
    lasts = 0.5 if pool in GREEN else 0
    waiting = [here.send("holds", gate, number, lasts) for number in range(12)]
    worker = here.workers[-1]
    worker.process.terminate()
    until(lambda: "Warm shutdown" in worker.text, what="the worker to hear the signal")
    if pool in GREEN:
        # Nothing that can be seen tells when such a worker stops receiving: until its tasks have ended its connections stay, it
        # answers commands, and it sends no `worker-offline`. It has this time, and the two seconds that the tasks of a window last:
        # if that is too short, more tasks end than the limit below allows.
        time.sleep(1.5)
    elif pool != "solo":  # its only task keeps the loop from looking
        until(lambda: not here.server.client.pubsub_numpat(), what="the worker to stop receiving, messages and commands")
    here.open(gate)
    assert worker.process.wait(60) == 0
    here.all_ended(running)
    ended = [task_id for task_id in waiting if here.outcomes_of(task_id) == ["published", "succeeded"]]
    returned = [task_id for task_id in waiting if task_id not in ended]
    assert len(ended) <= places(pool) * 4  # tasks in the pool are finished: no more than the worker's window
    assert here.leftovers() == {"celery": len(returned)}
    assert waiting_ids(here, "celery") == returned
    here.start(pool=pool)
    here.all_ended(returned)
    here.ran_once([*running, *waiting])
