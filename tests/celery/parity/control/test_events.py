"""Celery's events, Flower and beat: monitors see our worker as they see a plain one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control.control import SETTINGS, ControlShop, control_shop
from tests.support.operators.watching import Watcher
from tests.support.running import until
from tests.support.trials.trial import answer, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.trials.trial import Side, Trial

HERE = pytest.mark.xdist_group("celery-events")

SCHEDULE = {"tick": {"task": "tests.support.control.control_app.ok", "schedule": 0.5, "args": ["tick"]}}


@pytest.fixture(scope="module")
def here() -> Iterator[ControlShop]:
    """A worker that sends events (`-E`), a producer that reports what it publishes, and a result backend."""
    conf = {"task_send_sent_event": True, "task_track_started": True, "beat_schedule": SCHEDULE}
    with control_shop(backend=True, settings=SETTINGS, conf=conf) as made:
        made.start("-E")
        yield made


@pytest.fixture(scope="module")
def watcher(here: ControlShop) -> Iterator[Watcher]:
    """A monitor of the worker."""
    made = Watcher(here)
    until(lambda: [event for event in made.events if event["type"] == "worker-heartbeat"], what="a heartbeat")
    yield made
    made.close()


@pytest.fixture(scope="module")
def run(here: ControlShop) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts Celery's other programs beside the worker, and ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **variables: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "celery", "-A", here.module, *words]
        log = (here.folder / f"{words[0]}.log").open("wb")
        environment = {**here.environment, **variables}
        with log:
            process = subprocess.Popen(
                command, env=environment, cwd=here.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


BEGUN = ["task-received", "task-started"]


@HERE
def test_a_success_is_told_in_celerys_events(here: ControlShop, watcher: Watcher) -> None:
    """Sent by the producer, then received, started and succeeded, with the fields that monitors show."""
    task_id = here.send("ok", 7)
    until(lambda: "task-succeeded" in watcher.types(task_id), what="its success to be told")
    until(lambda: "task-sent" in watcher.types(task_id), what="its sending to be told")
    assert [each for each in watcher.types(task_id) if each != "task-sent"] == [*BEGUN, "task-succeeded"]
    by_type = {event["type"]: event for event in watcher.events if event.get("uuid") == task_id}
    assert by_type["task-received"]["name"] == "tests.support.control.control_app.ok"
    assert by_type["task-received"]["retries"] == 0
    assert by_type["task-received"]["hostname"] == "w0@shop"
    assert by_type["task-succeeded"]["result"] == "7"
    assert by_type["task-succeeded"]["runtime"] >= 0


@HERE
def test_failures_are_told_as_retries_and_the_last_one_as_a_failure(here: ControlShop, watcher: Watcher) -> None:
    """Each attempt is received and started, each redelivery is a `task-retried`, and `task-failed` comes once, at the end."""
    task_id = here.send("fails")
    until(lambda: "task-failed" in watcher.types(task_id), what="its failure to be told")
    types = [each for each in watcher.types(task_id) if each != "task-sent"]
    assert types == [*BEGUN, "task-retried", *BEGUN, "task-retried", *BEGUN, "task-failed"]
    by_type = {event["type"]: event for event in watcher.events if event.get("uuid") == task_id}
    assert by_type["task-received"]["retries"] == 2
    assert by_type["task-retried"]["exception"] == by_type["task-failed"]["exception"] == "RuntimeError('no')"
    assert "raise RuntimeError(message)" in by_type["task-failed"]["traceback"]


@HERE
def test_a_rejection_is_told(here: ControlShop, watcher: Watcher) -> None:
    """With the event that Celery's own requests send."""
    task_id = here.send("rejects")
    until(lambda: "task-rejected" in watcher.types(task_id), what="its rejection to be told")
    (event,) = [event for event in watcher.events if event.get("uuid") == task_id and event["type"] == "task-rejected"]
    assert event["requeue"] is False


@HERE
@pytest.mark.parametrize("place", ["running", "delayed"])
def test_a_revoke_is_told_wherever_the_message_is(here: ControlShop, watcher: Watcher, place: str) -> None:
    """The event comes once, and says whether the task was terminated."""
    if place == "running":
        (task_id,) = here.filled(1, place)
    else:
        task_id = here.send("ok", countdown=3600)
        here.ended(task_id, "deferred")
    here.app.control.revoke(task_id, terminate=place == "running", signal="SIGKILL")
    until(lambda: "task-revoked" in watcher.types(task_id), what="its revoke to be told")
    (event,) = [event for event in watcher.events if event.get("uuid") == task_id and event["type"] == "task-revoked"]
    assert (event["terminated"], event["expired"]) == (place == "running", False)


@HERE
def test_flower_sees_the_worker_and_its_tasks(here: ControlShop, run: Callable[..., subprocess.Popen[bytes]]) -> None:
    """A real Flower: the worker with its queues and its statistics, and tasks with the states that they had."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = run("flower", f"--port={port}", "--address=127.0.0.1", FLOWER_UNAUTHENTICATED_API="true")

    def get(path: str) -> Any:
        assert process.poll() is None, (here.folder / "flower.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=30) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    worker = until(lambda: (get("workers?refresh=1") or {}).get("w0@shop"), what="Flower to know the worker")
    assert worker["stats"]["pool"]["max-concurrency"] == 2
    assert [queue["name"] for queue in worker["active_queues"]] == ["celery"]
    fine, bad = here.send("ok"), here.send("fails")
    seen = until(lambda: _both(get, fine, bad), what="Flower to have seen both tasks end")
    assert seen[fine]["state"] == "SUCCESS"
    assert seen[bad]["exception"] == "RuntimeError('no')"
    assert seen[bad]["retries"] == 2


def _both(get: Callable[[str], Any], fine: str, bad: str) -> dict[str, Any] | None:
    tasks = {task_id: get(f"task/info/{task_id}") or {} for task_id in (fine, bad)}
    return tasks if (tasks[fine].get("state"), tasks[bad].get("state")) == ("SUCCESS", "FAILURE") else None


@HERE
def test_beat_sends_what_is_due_and_it_is_recorded(here: ControlShop, run: Callable[..., subprocess.Popen[bytes]]) -> None:
    """A real beat publishes a task every half second; each is recorded and accounted for like any other."""
    beat = run("beat", "-s", str(here.folder / "schedule"))
    ticks = until(lambda: found if len(found := [run["id"] for run in here.runs() if run.get("value") == "tick"]) >= 3 else None)
    assert beat.poll() is None
    beat.terminate()
    beat.wait(60)
    here.all_ended(ticks)
    here.ran_once(ticks)


def told_of(verb: str, *, queue: str = "celery", again: str = "", **options: Any) -> tuple[list[Any], dict[str, Any]]:
    """A story of `tests.support.trials.celery_app.hooked`: one step, perhaps another one, and the options of its publication."""
    return [step(verb), *([step(again)] if again else [])], {"task": "hooked", "queue": queue, **options}


#: What is published, and the last event that tells of it.
TOLD: list[tuple[tuple[list[Any], dict[str, Any]], str]] = [
    (told_of("ok"), "task-succeeded"),
    (told_of("retry", again="ok"), "task-succeeded"),
    (told_of("fail", queue="once"), "task-failed"),
    (told_of("reject"), "task-rejected"),
    (told_of("ok", expires=-1), "task-revoked"),
]
#: What differs between any two runs.
OWN = {"uuid", "root_id", "hostname", "pid", "clock", "timestamp", "local_received", "runtime", "utcoffset", "traceback", "expires"}


#: What Celery itself tells otherwise: its own retry is another message, with an ETA and a parent, and without processes it tells of
#: the `Retry` around the exception.
RETRIED = {"task-received": {"eta", "parent_id"}, "task-retried": {"exception"}}


def facts_of(watcher: Watcher, task_id: str, last: str) -> list[str]:
    """All events of a task, without what differs between runs; Celery's own retry may be received before its event."""
    until(lambda: last in watcher.types(task_id), what=f"{last} to be told of {task_id}")
    found = []
    for event in list(watcher.events):
        left_out = OWN | RETRIED.get(event["type"], set()) if event.get("retries") != 0 else OWN
        if event.get("uuid") == task_id:
            found.append(f"{sorted(event)} { ({key: event[key] for key in sorted(event) if key not in left_out}) }")
    return sorted(found)


@pytest.fixture
def watchers(trial: Trial) -> Iterator[list[Watcher]]:
    """A monitor for each worker; both send events while it listens."""
    made = [Watcher(side) for side in trial.sides]
    for side, watcher in zip(trial.sides, made, strict=True):
        until(partial(_is_heard, side, watcher), what="the watcher to hear")
        assert answer(side, "enable_events", {}) == {"ok": "task events enabled"}
    yield made
    for side, watcher in zip(trial.sides, made, strict=True):
        answer(side, "disable_events", {})
        watcher.close()


def _is_heard(side: Side, watcher: Watcher) -> bool:
    answer(side, "heartbeat", {})
    return bool(watcher.events)


def test_events_on_each_pool_are_celerys(trial: Trial, watchers: list[Watcher]) -> None:
    """The same events with the same fields and values as a plain worker's; a redelivery is told as a retry."""
    stories = [(trial.tell(*steps, **options), last) for (steps, options), last in TOLD]
    again = trial.ours.play(step("fail"), step("ok"), task="hooked")
    for story, last in stories:
        plain, ours = (facts_of(watcher, task_id, last) for watcher, task_id in zip(watchers, story.ids, strict=True))
        assert [fact for fact in ours if fact not in plain] == [fact for fact in plain if fact not in ours]
        assert len(ours) == len(plain)
    facts_of(watchers[1], again, "task-succeeded")
    (retried,) = [event for event in watchers[1].events if event.get("uuid") == again and event["type"] == "task-retried"]
    assert retried["exception"] == "RuntimeError('no')"
    assert sorted(watchers[1].types(again)) == sorted([*BEGUN, "task-retried", *BEGUN, "task-succeeded"])
