"""Each way in which a stop could hang or run a task again: what a signal interrupts is finished, or known not to have begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from redelivery.middleware.messages.envelope import HEADER, Envelope
from redelivery.middleware.worker.pool_patches.threads import GRACE
from tests.support.control.pooled import POOLS, pool_param
from tests.support.lanes import first_quick
from tests.support.running import ROOT, Shop, until
from tests.support.signals import is_pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.rabbit import Rabbit
    from tests.support.running import Worker

#: More bytes than fit into a pipe, so that they are written in pieces.
LARGE = "x" * 1_500_000
SIGNALS = {"quit": (signal.SIGQUIT,), "int-twice": (signal.SIGINT, signal.SIGINT), "term-quit": (signal.SIGTERM, signal.SIGQUIT)}
#: What a worker logs when it gets the first of two signals, and the last.
HEARD = {signal.SIGTERM: "Warm shutdown", signal.SIGINT: "will initiate cold shutdown"}
COLD = "will terminate all running tasks"


def told(worker: Worker, signals: tuple[signal.Signals, ...]) -> None:
    """Send these signals, each after the worker has logged the one before."""
    for at, number in enumerate(signals):
        worker.process.send_signal(number)
        words = COLD if at == len(signals) - 1 else HEARD[number]
        until(lambda words=words: words in worker.text or worker.process.poll() is not None, what=words)  # type: ignore[misc]


def test_a_worker_whose_pool_has_ended_tells_the_broker_what_it_could_not_tell_before(shop: Callable[..., Shop]) -> None:
    """The broker is away while one of several workers stops: tasks that have ended there do not run again."""
    here = shop()
    here.server.keep_everything()
    workers = [here.start(concurrency=1) for _ in range(3)]
    task_id = here.send("naps", 3)
    until(lambda: here.runs(task_id), what="it to begin")
    (busy,) = [each for each in workers if f"[{task_id}] received" in each.text]
    busy.process.terminate()
    until(lambda: HEARD[signal.SIGTERM] in busy.text, what="it to stop")
    here.server.kill()
    until(lambda: "transition.postponed" in busy.text, what="the end of the task")
    children = Path(f"/proc/{busy.process.pid}/task/{busy.process.pid}/children")
    until(lambda: not children.read_text(), what="the pool to end")
    here.server.start()
    busy.process.wait(60)
    here.ended(task_id, "succeeded")
    assert [run["event"] for run in here.runs(task_id)] == ["start", "end"]
    assert "transition.failed" not in busy.text


@pytest.mark.parametrize("goes_on", [True, False], ids=["child-goes-on", "child-stands-still"])
@pytest.mark.parametrize("signals", first_quick(pytest.param(each, id=name) for name, each in SIGNALS.items()))
def test_a_task_that_is_half_written_to_its_child_goes_back(
    shop: Callable[..., Shop], signals: tuple[signal.Signals, ...], goes_on: bool
) -> None:
    """Its child stands still, so its pipe is full: the task has not begun, and another worker runs it as its first attempt."""
    here = shop()
    worker = here.start(concurrency=1)
    before = here.send("ok")
    here.ended(before, "succeeded")
    (child,) = [run["pid"] for run in here.runs(before)]
    os.kill(child, signal.SIGSTOP)
    task_id = here.send("ok", LARGE)
    until(lambda: f"[{task_id}] received" in worker.text, what="it to be received")
    told(worker, signals)
    if goes_on:
        os.kill(child, signal.SIGCONT)
    worker.process.wait(30)
    assert not here.runs(task_id)
    assert here.leftovers() == {"celery": 1}
    here.start()
    assert here.ended(task_id, "succeeded").attempt == 1
    assert here.outcomes_of(task_id) == ["published", "succeeded"]


@pytest.mark.full
def test_a_task_that_has_begun_unheard_is_ended(shop: Callable[..., Shop]) -> None:
    """The main process is busy when the signal comes, and has not read that the task began, which would run for an hour."""
    here = shop()
    task_id = here.send("naps", 3600)
    here.send("follows", "nobody")
    worker = here.start(wait=False)
    until(lambda: here.runs(task_id), what="it to begin")
    worker.process.send_signal(signal.SIGQUIT)
    worker.process.wait(60)
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled"]
    assert "unacked" not in here.leftovers()


def test_a_child_that_does_not_end_when_it_is_told_to_is_killed(shop: Callable[..., Shop]) -> None:
    """The child is stopped in the middle of its task; Celery would wait for it."""
    here = shop()
    worker = here.start(concurrency=1)
    task_id = here.send("naps", 3600)
    until(lambda: here.runs(task_id), what="it to begin")
    os.kill(here.runs(task_id)[0]["pid"], signal.SIGSTOP)
    worker.process.send_signal(signal.SIGQUIT)
    worker.process.wait(30)
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled"]
    assert here.leftovers() == {"celery": 1}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_ends_just_after_a_cold_shutdown_of_threads_does_not_run_again(rabbit: Rabbit, folder: Path, kind: str) -> None:
    """RabbitMQ redelivers everything that is unacknowledged when the connection closes, so a worker waits for a moment."""
    conf = {"task_default_queue_type": kind, "task_create_missing_queue_type": kind}
    here = Shop(cast("Any", rabbit), folder, conf=conf)
    try:
        worker = here.start(pool="threads")
        ids = [here.send("naps", GRACE / 2) for _ in range(2)]
        until(lambda: len(here.runs()) == len(ids), what="both to begin")
        worker.process.send_signal(signal.SIGQUIT)
        worker.process.wait(60)
        assert {tuple(here.outcomes_of(each)) for each in ids} == {("published", "succeeded")}
        assert here.leftovers() == {}
    finally:
        here.stop()


@pytest.mark.parametrize("pool", [pool_param(pool) for pool in POOLS])
def test_a_signal_in_the_middle_of_a_question_about_a_start_holds_nobody_up(rabbit: Rabbit, folder: Path, pool: str) -> None:
    """The lock of that connection is held then; a handler that talked to the broker would receive the next message there."""
    here = Shop(cast("Any", rabbit), folder, module="tests.support.stops.interrupted_shop")
    try:
        suspect = {HEADER: Envelope(delivery=1, suspect=True).to_header()}
        ids = [str(here.app.send_task("tests.support.shop.ok", headers=suspect).id) for _ in range(4)]
        worker = here.start(pool=pool, wait=False)
        worker.process.wait(30)
        assert COLD in worker.text
        ended = [each for each in ids if here.outcomes_of(each)[-1] == "succeeded"]
        assert len(here.runs()) == len(ended)
        assert here.leftovers() == ({"celery": len(ids) - len(ended)} if len(ended) < len(ids) else {})
    finally:
        here.stop()


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
@pytest.mark.parametrize("signals", first_quick(pytest.param(SIGNALS[each], id=each) for each in ("quit", "term-quit")))
@pytest.mark.parametrize("part", ["handler", "pool"])
def test_a_celery_that_a_stop_does_not_know_stops_as_its_own_does_and_a_line_says_so(
    shop: Callable[..., Shop], part: str, signals: tuple[signal.Signals, ...], pool: str
) -> None:
    """In a process, a task of an hour is ended; a thread ends by itself or with its process, and the next worker has its task."""
    here = shop(module="tests.support.stops.unrecognised_shop", conf={"unrecognised": part})
    worker = here.start(pool=pool)
    task_id = str(here.app.send_task("tests.support.shop.naps", (3600 if pool == "prefork" else 5,)).id)
    until(lambda: here.runs(task_id), what="it to begin")
    assert ("event=stop.unknown" in worker.text) is (part == "handler")
    told(worker, signals)
    worker.process.wait(40)
    assert "event=stop.unknown" in worker.text
    assert "stop.overdue" not in worker.text
    if pool == "prefork":
        assert (here.outcomes_of(task_id), here.leftovers()) == (["published", "redelivery_scheduled"], {"celery": 1})
    else:
        here.start(pool=pool)
        here.ended(task_id, "succeeded")
        until(lambda: here.leftovers() == {}, what="nothing to be held")


@pytest.mark.parametrize("pool", first_quick(POOLS))
def test_a_signal_in_the_middle_of_another_ones_handler_holds_nobody_up(shop: Callable[..., Shop], pool: str) -> None:
    """Celery's handler holds a lock while it looks up its receivers, and the second handler needs the same lock."""
    here = shop(module="tests.support.stops.impatient_shop")
    worker = here.start(pool=pool)
    worker.process.send_signal(signal.SIGINT)
    worker.process.wait(30)
    assert COLD in worker.text
    assert "stop.overdue" not in worker.text


@pytest.mark.full
def test_what_is_received_after_a_cold_shutdown_has_begun_is_not_begun(rabbit: Rabbit, folder: Path) -> None:
    """It was read together with the message that the signal interrupted, and must not use the time of the stop."""
    here = Shop(cast("Any", rabbit), folder)
    try:
        here.send("follows", "nobody")
        ids = [here.send("ok") for _ in range(3)]
        worker = here.start(concurrency=1, wait=False)
        until(
            lambda: f"tests.support.shop.follows[{here.events[0].task_id}] received" in worker.text, what="the first to be received"
        )
        worker.process.send_signal(signal.SIGQUIT)
        worker.process.wait(60)
        assert [each for each in ids if f"[{each}] received" in worker.text] == []
        assert here.leftovers() == {"celery": 4}
    finally:
        here.stop()


#: What must happen before a process is held: its end has begun, and it has a child.
HELD = """
import logging, os, signal, subprocess, sys, time
from redelivery.middleware.worker.pool_patches import last_resort
last_resort.LAST = 0.2
child = subprocess.Popen(["sleep", "3600"])
print(child.pid, flush=True)
made = last_resort.LastResort(lambda: [child.pid])
made.begin()
"""
STUCK = """
made.ask(0.1)
made.ask(0.1)
time.sleep(3600)
"""
#: Nobody reads the log, and a thread that writes to it holds its lock.
FULL = """
logging.basicConfig()
made.ask(0.1)
while True:
    logging.error("x" * 10_000)
"""
STOPPED = """
made.ask(0.1)
made.cancel()
time.sleep(1.0)
child.kill()
"""


def test_a_process_that_is_held_by_something_else_ends_itself() -> None:
    """Its children end with it, and it logs where it was held."""
    done = subprocess.run([sys.executable, "-c", HELD + STUCK], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "stop.overdue" in done.stdout + done.stderr
    assert_gone(int(done.stdout.split()[0]))


def test_a_process_that_is_held_by_its_own_log_ends_itself() -> None:
    """The log's pipe is full, and the main thread holds the lock of the handler that writes there."""
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HELD + FULL], cwd=ROOT, **told) as process:  # type: ignore[call-overload]
        try:
            child = int(process.stdout.readline())
            assert process.wait(30) == 1
        finally:
            process.kill()
    assert_gone(child)


def test_a_process_that_has_stopped_may_take_its_time() -> None:
    """It holds no messages any more, so its remaining threads do no harm."""
    done = subprocess.run([sys.executable, "-c", HELD + STOPPED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def assert_gone(pid: int) -> None:
    """Check that the process is gone, or soon will be."""
    with pytest.raises(ProcessLookupError):
        until(lambda: os.kill(pid, 0), 10)


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
def test_what_a_worker_holds_is_anothers_though_a_hook_holds_its_main_thread(shop: Callable[..., Shop], pool: str) -> None:
    """Its lease would be renewed for ever. So it ends itself with its running tasks, and another worker takes over."""
    here = shop(
        settings={"lease": 2.0, "queues": {"#": {"redelivery_delay": 0}}},
        conf={"last": 1.0},
        module="tests.support.stops.held_shop",
    )
    task_id = str(here.app.send_task("tests.support.shop.stalls").id)
    worker = here.start(pool=pool)
    until(lambda: here.runs(task_id), what="it to begin")
    other = here.start(pool=pool)
    worker.process.send_signal(signal.SIGQUIT)
    here.ended(task_id, "succeeded")
    assert worker.process.wait(10) == 1
    assert "stop.overdue" in worker.text
    assert other.process.poll() is None


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("signals", SIGNALS.values(), ids=SIGNALS)
def test_a_worker_whose_output_nobody_reads_stops(
    shop: Callable[..., Shop], signals: tuple[signal.Signals, ...], pool: str
) -> None:
    """Celery's signal handlers write to a full pipe before they do anything else."""
    here = shop()
    reads, writes = os.pipe()
    worker = here.start("--logfile", str(here.folder / "celery.log"), pool=pool, out=writes)
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, b"x" * 4096)
    os.set_blocking(writes, True)
    for number in signals:
        heard = worker.process.pid, number
        os.kill(*heard)
        until(lambda: worker.process.poll() is not None or not is_pending(*heard), what="the signal to be heard")  # noqa: B023
    try:
        worker.process.wait(30)
    except subprocess.TimeoutExpired:
        waits = [each.read_text() for each in Path(f"/proc/{worker.process.pid}/task").glob("*/wchan")]
        pytest.fail(f"it waits in {waits}; its log: {(here.folder / 'celery.log').read_text()[-3000:]}")
    os.close(reads)
    os.close(writes)
