"""The ways to stop a worker: warm, cold and soft. Unfinished messages go back at once, and nothing is lost."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control.control import ControlShop, control_shop, waiting_ids
from tests.support.control.pooled import POOLS, ControlShops, places, pool_param
from tests.support.lanes import first_quick
from tests.support.running import until
from tests.support.trials.trial import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.running import Worker

HERE = pytest.mark.xdist_group("celery-shutdown")


@pytest.fixture(scope="module")
def here() -> Iterator[ControlShop]:
    """A broker; each test starts its own worker on its own queue. A lease lasts so long that no recovery can help."""
    with control_shop(settings={"lease": 600, "queues": {"#": {"redelivery_delay": 0.1}}}) as made:
        yield made


def occupied(here: ControlShop, queue: str, *words: str) -> tuple[Worker, list[str], list[str]]:
    """A worker with two running tasks, six waiting in it, and four more in the queue."""
    worker = here.start("-Q", queue, *words)
    running = here.filled(2, queue, queue=queue)
    waiting = [here.send("holds", queue, queue=queue) for _ in range(10)]
    until(lambda: here.server.client.llen(queue) == 4, what="the window to be full")
    return worker, running, waiting


def heard(worker: Worker, words: str) -> None:
    """Wait until a worker logs that it got a signal."""
    until(lambda: words in worker.text or worker.process.poll() is not None, what=words)


def all_are_back(here: ControlShop, queue: str, running: list[str], waiting: list[str]) -> None:
    """Check that nothing is held. Tasks that ran are redelivered and marked, the others are unchanged; both are in order."""
    assert here.leftovers() == {}
    ids = waiting_ids(here, queue)
    assert sorted(ids) == sorted([*running, *waiting])
    assert [task_id for task_id in ids if task_id in waiting] == waiting
    assert [task_id for task_id in ids if task_id in running] == running
    assert {tuple(here.outcomes_of(task_id)) for task_id in waiting} == {("published",)}
    assert {tuple(here.outcomes_of(task_id)) for task_id in running} == {("published", "redelivery_scheduled")}


@HERE
@pytest.mark.parametrize("signals", [("QUIT",), ("TERM", "QUIT")], ids=["quit", "term-then-quit"])
def test_a_cold_shutdown_gives_everything_back(here: ControlShop, signals: tuple[str, ...]) -> None:
    """Running tasks are ended and go back as suspects, at once and not when the lease ends; waiting ones are not counted."""
    queue = "-".join(signals)
    worker, running, waiting = occupied(here, queue)
    for name in signals:
        worker.process.send_signal(getattr(signal, f"SIG{name}"))
        heard(worker, {"TERM": "Warm shutdown", "QUIT": "Cold shutdown"}[name])
    worker.process.wait(60)
    assert "Traceback" not in worker.text
    all_are_back(here, queue, running, waiting)
    if signals == ("QUIT",):
        here.open(queue)
        here.start("-Q", queue, pool="threads")
        here.all_ended([*running, *waiting])
        here.ran_once(waiting)
        assert [[run["redelivered"] for run in here.noted(task_id)] for task_id in running] == [[False, True]] * 2


@HERE
def test_sigterm_can_be_made_to_mean_a_cold_shutdown(here: ControlShop) -> None:
    """Container platforms need `REMAP_SIGTERM=SIGQUIT`."""
    here.variables = {"REMAP_SIGTERM": "SIGQUIT"}
    worker, running, waiting = occupied(here, "remapped")
    here.variables = {}
    worker.process.terminate()
    worker.process.wait(60)
    assert "Cold shutdown" in worker.text
    all_are_back(here, "remapped", running, waiting)


@HERE
def test_a_soft_shutdown_waits_for_what_can_end_in_time(here: ControlShop) -> None:
    """`worker_soft_shutdown_timeout`: tasks that end in this time have succeeded; the others are given back."""
    here.conf["worker_soft_shutdown_timeout"] = 4
    worker = here.start("-Q", "soft")
    del here.conf["worker_soft_shutdown_timeout"]
    (short,), (long,) = here.filled(1, "soft-short", queue="soft"), here.filled(1, "soft-long", queue="soft")
    waiting = [here.send("holds", "soft-long", queue="soft") for _ in range(3)]
    until(lambda: here.server.client.hlen("unacked") == 5, what="all to be received")
    worker.process.send_signal(signal.SIGQUIT)
    heard(worker, "Initiating Soft Shutdown")
    here.open("soft-short")
    worker.process.wait(60)
    assert here.outcomes_of(short) == ["published", "succeeded"]
    assert len(here.noted(short)) == 1
    all_are_back(here, "soft", [long], waiting)


@HERE
def test_a_warm_shutdown_gives_back_what_waits_for_a_moment_or_a_rate(here: ControlShop) -> None:
    """A stopping worker does not wait for short countdowns and rate limits, which it keeps in memory."""
    worker = here.start("-Q", "moments")
    first, limited = here.send("hourly", queue="moments"), here.send("hourly", queue="moments")
    here.ended(first, "succeeded")
    (running,) = here.filled(1, "moments", queue="moments")
    until(lambda: here.server.client.hlen("unacked") == 2, what="the second to wait for its token")
    worker.process.terminate()
    heard(worker, "Warm shutdown")
    here.open("moments")
    assert worker.process.wait(60) == 0
    here.ended(running, "succeeded")
    assert here.leftovers() == {}
    assert waiting_ids(here, "moments") == [limited]
    assert here.outcomes_of(limited) == ["published"]


def scattered(here: ControlShop, queue: str) -> list[str]:
    """The task ids in a queue, and those that return to it within a second, because the pool took no more tasks."""
    later: Any = here.server.client.hvals(f"redelivery:delayed:messages:{queue}")
    return [*waiting_ids(here, queue), *(json.loads(raw)["headers"]["id"] for raw in later)]


@HERE
@pytest.mark.parametrize("pool", first_quick(["gevent", "eventlet"]))
def test_a_cold_shutdown_ends_greenlets_and_does_not_take_them_for_done(here: ControlShop, pool: str) -> None:
    """Celery reports an ended greenlet as a success and acknowledges its message, so the task would be lost."""
    if missing(pool):
        pytest.skip(missing(pool))
    worker = here.start("-Q", pool, pool=pool)
    running = here.filled(2, pool, queue=pool)
    waiting = [here.send("holds", pool, queue=pool) for _ in range(6)]
    until(lambda: here.server.client.hlen("unacked") > 2, what="a message that waits for room in the pool")
    worker.process.send_signal(signal.SIGQUIT)
    worker.process.wait(60)
    ended = {"succeeded", "dead_lettered", "discarded", "revoked"}
    assert [task_id for task_id in [*running, *waiting] if ended & set(here.outcomes_of(task_id))] == []
    held: Any = here.server.client.hvals("unacked")  # a task that eventlet still begins during the stop is given back by its lease
    assert len(held) <= (0 if pool == "gevent" else 1)
    for raw in held:
        waiting.remove(json.loads(raw)[0]["headers"]["id"])
    here.server.client.delete("unacked", "unacked_index")
    assert sorted(scattered(here, pool)) == sorted([*running, *waiting])
    assert {tuple(here.outcomes_of(task_id)) for task_id in running} == {("published", "redelivery_scheduled")}


@HERE
def test_a_cold_shutdown_of_threads_takes_no_message_for_an_invalid_one(here: ControlShop) -> None:
    """Celery #10490: the signal handler raises while a message is being received, and Celery took that message for invalid."""
    worker = here.start("-Q", "threads", pool="threads")
    running = here.filled(2, "threads", queue="threads")
    waiting = [here.send("holds", "threads", queue="threads") for _ in range(6)]
    worker.process.send_signal(signal.SIGQUIT)
    heard(worker, "event=worker.terminated")
    here.open("threads")
    worker.process.wait(60)
    here.all_ended(running)
    ended = [task_id for task_id in waiting if here.outcomes_of(task_id)[1:]]
    here.ran_once([*running, *ended])
    assert here.leftovers() == {}
    assert sorted(scattered(here, "threads")) == sorted(set(waiting) - set(ended))


@HERE
def test_a_cold_shutdown_ends_the_task_of_a_solo_worker(here: ControlShop) -> None:
    """The worker ends during the task and gives it back as a suspect; plain Celery fails the task and acknowledges it."""
    worker = here.start("-Q", "solo", pool="solo")
    running = here.filled(1, "solo", queue="solo")
    waiting = [here.send("holds", "solo", queue="solo") for _ in range(6)]
    worker.process.send_signal(signal.SIGQUIT)
    worker.process.wait(60)
    all_are_back(here, "solo", running, waiting)


def test_each_pool_shuts_down_by_remote_control(on: tuple[str, ControlShop]) -> None:
    """A warm stop, as by SIGTERM: running tasks finish, waiting ones go back; solo reads the command between two tasks."""
    pool, here = on
    here.waits_for_nothing()
    running = here.filled(places(pool), "remote")
    waiting = [here.send("holds", "remote") for _ in range(12)]
    here.app.control.shutdown(destination=[f"w{len(here.workers) - 1}@shop"])
    if pool != "solo":
        heard(here.workers[-1], "Got shutdown from remote")
    here.open("remote")
    assert here.workers[-1].process.wait(60) == 0
    here.all_ended(running)
    ended = [task_id for task_id in waiting if here.noted(task_id)]
    returned = [task_id for task_id in waiting if task_id not in ended]
    assert {tuple(here.outcomes_of(task_id)) for task_id in returned} == {("published",)}
    assert waiting_ids(here, "celery") == returned
    assert here.leftovers() == {"celery": len(returned)}
    here.ran_once([*running, *ended])
    here.server.client.delete("celery")


#: What a worker logs when a soft shutdown is over: on most pools Celery's own raises there.
OVER = ("Cold shutdown", "Unrecoverable error", "worker.terminated")


def softly(here: ControlShop, pool: str) -> list[int]:
    """How often each of two tasks (one on solo) ended in a soft shutdown by SIGTERM: the first can end in time, the second cannot.

    On prefork the second has no end, because it is killed.
    """
    conf, variables = dict(here.conf), dict(here.variables)
    here.conf["worker_soft_shutdown_timeout"], here.variables["REMAP_SIGTERM"] = 4 if pool == "prefork" else 1, "SIGQUIT"
    worker = here.start("-Q", "softly", pool=pool)
    here.conf, here.variables = conf, variables
    ids = here.filled(1, "soft-short", queue="softly")
    ids += here.filled(1, "soft-long", queue="softly") if places(pool) == 2 else []
    worker.process.terminate()
    heard(worker, "Initiating Soft Shutdown")
    here.open("soft-short")
    try:
        until(lambda: any(words in worker.text for words in OVER) or worker.process.poll() is not None, what="its end")
    except AssertionError as exc:
        exc.add_note(worker.text[-4000:])  # a plain worker has its log nowhere else
        raise
    if pool != "prefork":
        here.open("soft-long")
    worker.process.wait(60)
    for task_id in ids:
        ended, back = here.noted(task_id, "end"), waiting_ids(here, "softly")
        if not here.plain:
            assert here.outcomes_of(task_id) == ["published", "succeeded" if ended else "redelivery_scheduled"]
            assert (task_id in back) is not bool(ended)
    assert "unacked" not in here.leftovers()
    return [len(here.noted(task_id, "end")) for task_id in ids]


@pytest.mark.parametrize("pool", [pool_param(pool) for pool in POOLS])
def test_a_soft_shutdown_is_celerys_on_each_pool(control_shops: ControlShops, pool: str) -> None:
    """`worker_soft_shutdown_timeout` and `REMAP_SIGTERM`: the same tasks end as on a plain worker, and ours loses no other.

    Celery waits inside a signal handler. Meanwhile processes and threads go on, but a solo worker's own task does not. The event
    loops of greenlets refuse to wait there, so their workers end when all running tasks have ended; if the signal comes while a
    greenlet runs, Celery waits in that one, and the second task is given back.
    """
    with control_shop(plain=True, conf={"task_acks_late": True, "task_reject_on_worker_lost": True}) as there:
        plain = softly(there, pool)
    ours = softly(control_shops.without_worker(pool), pool)
    expected: dict[str, set[tuple[int, ...]]] = {"prefork": {(1, 0)}, "solo": {(0,)}, "threads": {(1, 1)}}
    assert {tuple(ours), tuple(plain)} <= expected.get(pool, {(1, 1), (1, 0)})
