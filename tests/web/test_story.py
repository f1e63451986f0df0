"""The whole story with real workers, by forms alone: a bad deployment, its causes, a canary that fails, a repair, a redrive.

The page and the worker that carries the redrive out are killed in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.messages.events import Outcome
from redelivery.workers.operations.audit import entries
from redelivery.workers.operations.operation import State, found, listed
from tests.support.desk import LETTERS
from tests.support.running import until
from tests.support.web_page import WebPage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.desk import Desk
    from tests.support.servers import Server
    from tests.support.web_page import Visitor

CAUSES = {"refused": 90, "late": 40, "gone": 20}
KINDS = ("ValueError", "TimeoutError", "LookupError")


class Fleet:
    """Workers of the tests' shop, each in a group of its own."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self._env, self._folder = env, folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """One more."""
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tests.support.web_shop",
            "worker",
            "-c",
            "2",
            "-n",
            f"w{len(self.running)}@x",
        ]
        with (self._folder / "workers.log").open("ab") as log:
            self.running.append(subprocess.Popen(command, env=self._env, stdout=log, stderr=log, start_new_session=True))

    def kill(self) -> None:
        """The newest, with its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running[-1].pid, signal.SIGKILL)
        self.running[-1].wait(30)


@pytest.fixture
def env(server: Server, tmp_path: Path) -> dict[str, str]:
    """Where the shop's broker is, and what is broken."""
    settings = {"lease": 3, "queues": {"#": {"max_delivery_attempts": 1}}}
    given = {"WEB_SHOP_BROKER": server.url, "WEB_SHOP_BROKEN": str(tmp_path), "WEB_SHOP_SETTINGS": json.dumps(settings)}
    return {**os.environ, **given}


@pytest.fixture
def fleet(env: dict[str, str], tmp_path: Path) -> Iterator[Fleet]:
    """Workers, which are killed in the end."""
    fleet = Fleet(env, tmp_path)
    yield fleet
    for process in fleet.running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def begun(operator: Visitor, desk: Desk, query: str, why: str) -> str:
    """Have a dry run, and begin what it shows: the operation's id."""
    [form] = operator.get(f"/operations/preview?kind=redrive&queue={LETTERS}&{query}").forms("/operations/begin")
    assert operator.post("/operations/begin", {**form, "why": why}).status == 303
    return listed(desk.install)[0].id


@pytest.mark.full
@pytest.mark.slow
def test_a_bad_deployment_is_mended_from_the_page(desk: Desk, env: dict[str, str], fleet: Fleet, tmp_path: Path) -> None:
    """The canary of what is not mended stops; after the repair all go back and succeed, each once, though processes are killed."""
    for cause, count in CAUSES.items():
        (tmp_path / cause).touch()
        for number in range(count):
            desk.app.send_task("shop.pay", (number, cause))
    fleet.start()
    assert until(lambda: desk.client.llen(LETTERS) == sum(CAUSES.values()), seconds=120, what="all to die")
    with WebPage("tests.support.web_shop", tmp_path, "--allow", "redrive", "--as", "ada", env=env) as page:
        operator = page.operator()
        causes = operator.get("/causes").read
        assert "3 causes of 150 dead letters" in causes
        assert all(f"{count} {kind} : payment" in causes for kind, count in zip(KINDS, CAUSES.values(), strict=True)), causes
        canary = begun(operator, desk, "exception=ValueError&canary=5&rate=200/s", "is it mended?")
        assert until(lambda: found(desk.install, canary).has_ended, seconds=120, what="the canary to fail")
        assert found(desk.install, canary).state is State.STOPPED
        assert "Redrive of DLQ.orders stopped" in operator.get(f"/operation?id={canary}").read
        assert desk.client.llen(LETTERS) == sum(CAUSES.values())
        (tmp_path / "refused").unlink()
        (tmp_path / "late").unlink()
        redrive = begun(operator, desk, "canary=5&rate=30/s", "it is mended")
        assert until(lambda: found(desk.install, redrive).moved > 20, seconds=120, what="the redrive to be under way")
        page.process.kill()
        fleet.kill()
    fleet.start()
    assert until(lambda: found(desk.install, redrive).has_ended, seconds=180, what="the redrive to end")
    assert found(desk.install, redrive).state is State.DONE
    succeeded = Counter[str]()
    assert until(lambda: _succeeded(desk, succeeded) == 130, seconds=120, what="all that can be mended to succeed")
    assert set(succeeded.values()) == {1}
    assert until(lambda: desk.client.llen(LETTERS) == CAUSES["gone"], what="the others to die again")
    told = [(each.actor, each.acted, each.why) for each in entries(desk.transport, 20) if each.acted == "begun"]
    assert told == [("ada", "begun", "it is mended"), ("ada", "begun", "is it mended?")]


def _succeeded(desk: Desk, counts: Counter[str]) -> int:
    counts.clear()
    counts.update(event.task_id for event in desk.events if event.outcome == Outcome.SUCCEEDED)
    return len(counts)
