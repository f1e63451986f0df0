"""Forked workers behave like `python -m celery`: their own environment, folder, session and end."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.forked import ForkedProcess, forked_worker
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.running import Shop

#: The app of a process that prints its properties, and then waits.
APP = """
import json, os, sys
from celery import Celery
app = Celery("said", broker="memory://")
said = {"argv": sys.argv[1:], "mine": os.environ.get("SHOP_MINE"), "cwd": os.getcwd(), "session": os.getsid(0)}
said["open"] = os.listdir("/proc/self/fd")
open("said", "w").write(json.dumps(said)) and os.rename("said", "is-there")
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., ForkedProcess]:
    """Starts `celery` with these arguments, in a folder whose module `saying` is an app."""
    (tmp_path / "saying.py").write_text(APP)

    def begin(*words: str, **variables: str) -> ForkedProcess:
        env = {**os.environ, "PYTHONPATH": str(tmp_path), **variables}
        return forked_worker(("-A", "saying", *words), env=env, cwd=tmp_path, log=tmp_path / "log")

    return begin


def test_it_has_what_it_was_given_and_nothing_of_another(run: Callable[..., ForkedProcess], tmp_path: Path) -> None:
    """It has its own arguments, variables, folder and log, and no pipe of the process that forked it."""
    first = run("report", SHOP_MINE="first")
    assert first.wait(30) == 0
    said = (tmp_path / "is-there").read_text()
    assert '"argv": ["-A", "saying", "report"], "mine": "first"' in said
    assert f'"cwd": "{tmp_path}", "session": {first.pid}, "open": ["0", "1", "2", "3"]' in said  # the last one is the listing's
    assert "software -> celery" in (tmp_path / "log").read_text()
    assert run("report").wait(30) == 0
    assert '"mine": null' in (tmp_path / "is-there").read_text()


def test_its_end_is_told_as_a_childs_is(run: Callable[..., ForkedProcess], tmp_path: Path) -> None:
    """An exit code, or minus a signal. Its id stays reserved until the end is read, so that no other process is killed."""
    assert run("no-such-command").wait(30) == 2
    worker = run("worker", "-P", "solo", "--without-gossip", "--without-mingle")
    until((tmp_path / "is-there").exists)
    assert worker.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.01)
    os.killpg(worker.pid, signal.SIGKILL)
    until(worker.has_ended.is_set)
    os.killpg(worker.pid, signal.SIGKILL)  # the id is still reserved
    assert (worker.wait(), worker.poll(), worker.returncode) == (-signal.SIGKILL,) * 3
    worker.kill()


def test_it_says_where_its_threads_and_its_childrens_are_and_goes_on(shop: Callable[..., Shop]) -> None:
    """In the event loop, in the task, and while it waits for a task. A failing test shows the log."""
    here = shop()
    worker = here.start(concurrency=2)
    gate = here.folder / "gate"
    task_id = here.send("waits", str(gate))
    until(lambda: here.runs(task_id))

    def shown() -> bool:
        worker.dump_stacks()
        return all(where in worker.text for where in (" in waits\n", " in asynloop\n", " in get_payload\n"))

    until(shown, what="all of them, also the second child, to be shown")
    gate.touch()
    here.ended(task_id, "succeeded")
