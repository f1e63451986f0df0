"""The whole story, with real workers: a bad deployment, its causes, a canary that fails, a repair, a redrive, and the books.

The page, and the worker that carries out the redrive, are killed in between. The story runs in a real browser, in a browser
without scripts, and with plain HTTP forms.

`STORY_LETTERS=40000 ./dev test --full -s tests/web/test_story.py -k scripts-40000` runs it with as many dead letters as a real
incident has.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.messages.events import Outcome
from redelivery.workers.operations.runs.audit import entries
from redelivery.workers.operations.runs.operation import State, found, listed
from tests.support.desk import LETTERS
from tests.support.page.browser import browser
from tests.support.page.web_hands import Forms, Hand, Window
from tests.support.page.web_page import WebPage
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.desk import Desk
    from tests.support.servers import Server

__all__ = ["browser"]

#: Each cause with its share, and the exception of its tasks. The last cause cannot be repaired.
CAUSES = {"refused": (0.6, "ValueError"), "late": (0.27, "TimeoutError"), "gone": (0.13, "LookupError")}
#: The number of dead letters in the full lane.
MANY = int(os.environ.get("STORY_LETTERS", "2000"))
#: Seconds that one step may take.
TIMEOUT = 900.0


@dataclass
class Process:
    """A worker in its own process group, and its log."""

    running: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Kill the worker and its children with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running.pid, signal.SIGKILL)
        self.running.wait(30)


@dataclass
class Fleet:
    """Workers of the tests' shop."""

    env: dict[str, str]
    folder: Path
    workers: list[Process] = field(default_factory=list)

    def start(self) -> None:
        """Start one more worker."""
        name = f"w{len(self.workers)}"
        words = ("-A", "tests.support.page.web_shop", "worker", "-c", "2", "-n", f"{name}@x", "--loglevel", "INFO")
        path = self.folder / f"{name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", *words], env=self.env, stdout=log, stderr=log, start_new_session=True
            )
        self.workers.append(Process(process, path))

    def leader(self, operation: str) -> Process | None:
        """The living worker that carries out this operation, if any."""
        living = [each for each in self.workers if each.running.poll() is None]
        lines = ((each, line) for each in living for line in each.log.read_text(errors="replace").splitlines())
        return next((each for each, line in lines if "operation.taken" in line and operation in line), None)


@pytest.fixture
def env(server: Server, tmp_path: Path) -> dict[str, str]:
    """The shop's broker, and the file that breaks its tasks."""
    settings = {"lease": 3, "queues": {"#": {"max_delivery_attempts": 1}}}
    given = {"WEB_SHOP_BROKER": server.url, "WEB_SHOP_BROKEN": str(tmp_path), "WEB_SHOP_SETTINGS": json.dumps(settings)}
    return {**os.environ, **given}


@pytest.fixture
def fleet(env: dict[str, str], tmp_path: Path) -> Iterator[Fleet]:
    """Workers, which are killed at the end."""
    fleet = Fleet(env, tmp_path)
    yield fleet
    for each in fleet.workers:
        if each.running.poll() is None:
            each.kill()


@dataclass
class Story:
    """One run: how many dead letters, at which rate, and how the page is used."""

    desk: Desk
    fleet: Fleet
    folder: Path
    hand: Hand
    letters: int
    rate: str
    began: float = field(default_factory=time.monotonic)

    @property
    def counts(self) -> dict[str, int]:
        """The number of dead letters of each cause."""
        some = {cause: int(self.letters * part) for cause, (part, _) in list(CAUSES.items())[:-1]}
        return {**some, "gone": self.letters - sum(some.values())}

    def say(self, what: str) -> None:
        """Print the time since the start; `-s` shows it."""
        print(f"\n{time.monotonic() - self.began:7.1f} s  {what}", end="")  # noqa: T201 - figures of a run

    def break_it(self) -> None:
        """Deploy the fault, and wait until all tasks have died of it."""
        for cause in CAUSES:
            (self.folder / cause).touch()
        number = 0
        with self.desk.app.producer_pool.acquire(block=True) as producer:
            for cause, count in self.counts.items():
                for _ in range(count):
                    self.desk.app.send_task("shop.pay", (number, cause), producer=producer)
                    number += 1
        self.say("published")
        self.fleet.start()
        self.fleet.start()
        until(lambda: self.desk.client.llen(LETTERS) == self.letters, TIMEOUT, "all to die")
        self.say(f"{self.letters} letters have died")

    def look(self) -> None:
        """Look at the number of dead letters, their causes, and one dead letter."""
        assert f"dead letters {self.letters:,}" in self.hand.open("/")
        self.hand.follow("/causes", "Causes")
        said = until(
            lambda: _if_in(f"3 causes of {self.letters:,} dead letters", self.hand.open("/causes")), TIMEOUT, "all to be counted"
        )
        for cause, (_, kind) in CAUSES.items():
            assert f"{self.counts[cause]:,}" in said
            assert kind in said
        self.say("the causes are counted")
        self.hand.follow("/letters", f"{self.counts['refused']:,}")
        said = self.hand.follow("/letter?")
        assert all(each in said for each in ("ValueError", ": refused", "Traceback", "exhausted")), said
        self.hand.follow("/letters", "all dead letters of this cause")

    def begin(self, chosen: int, why: str, **fields: str) -> str:
        """Make a dry run of the filter on the screen, and begin the operation; returns its id."""
        said = self.hand.send("/operations/preview", kind="redrive", **fields)
        if "being counted" in said:
            said = until(lambda: _if_in("would go", self.hand.again()), TIMEOUT, "the dry run")
        assert f"{chosen:,} dead letters of {self.letters:,} would go. Nothing was changed." in said, said
        said = self.hand.send("/operations/begin", why=why)
        assert f"Redrive of {LETTERS}" in said
        assert f"by ada: {why}" in said
        return listed(self.desk.install)[0].id

    def ends(self, operation: str, state: State) -> str:
        """Wait until the operation has ended; returns the text of its screen."""
        until(lambda: found(self.desk.install, operation).has_ended, TIMEOUT, "the operation to end")
        said = self.hand.open(f"/operation?id={operation}")
        assert f"Redrive of {LETTERS} {state}" in said, said
        self.say(f"the redrive is {state}")
        return said

    def moves(self, operation: str, least: int) -> None:
        """Wait until this many dead letters have gone back."""
        until(lambda: found(self.desk.install, operation).moved >= least, TIMEOUT, f"{least} letters to have gone back")


def _if_in(text: str, said: str) -> str:
    return said if text in said else ""


def check_story(story: Story, opened: str) -> None:
    """Check the ends: all tasks except the unrepairable ones succeed, none twice, and the audit has each step."""
    desk, counts = story.desk, story.counts
    mended = counts["refused"] + counts["late"]
    until(lambda: len(set((story.folder / "paid").read_text().split())) == mended, TIMEOUT, "all that can be mended to succeed")
    until(lambda: desk.client.llen(LETTERS) == counts["gone"], TIMEOUT, "the others to die again")
    until(lambda: not desk.client.hlen(desk.keys.unacked), TIMEOUT, "nothing to be held")
    story.say(f"{mended} have succeeded, {counts['gone']} are dead again")
    events = desk.events
    succeeded = Counter(event.task_id for event in events if event.outcome == Outcome.SUCCEEDED)
    assert (len(succeeded), set(succeeded.values())) == (mended, {1})
    redriven = Counter(event.task_id for event in events if event.outcome == Outcome.REDRIVEN)
    # The dead letters of the failed canary went back twice: once for each of the two redrives.
    assert (len(redriven), redriven.total()) == (story.letters, story.letters + 10)
    paid = Counter((story.folder / "paid").read_text().split())
    assert len(paid) == mended
    # If a worker is killed between a task's effect and its acknowledgement, the task runs again: at most one for each child.
    assert paid.total() - mended <= 2, [each for each in paid.items() if each[1] > 1]
    acts = [(each.actor, each.acted, each.why) for each in entries(desk.transport, 20) if each.act == "redrive"]
    assert acts == [
        ("ada", "done", ""),
        ("ada", "begun", "it is mended"),
        ("ada", "stopped", ""),
        ("ada", "begun", "is it mended?"),
    ]
    for said in ("is it mended?", "it is mended", "stopped", "done", "ada"):
        assert said in opened, said
    assert {event.actor for event in events if event.outcome == Outcome.REDRIVEN} == {"ada"}


def books(story: Story) -> Path:
    """Export, and run the reconciliation; returns the folder of the books."""
    places = {name: str(story.folder / name) for name in ("outcomes", "inventory", "books")}
    app = ("-A", "tests.support.page.web_shop")
    runs = (
        (*app, "inventory", "export", "--to", places["inventory"]),
        (*app, "outcomes", "export", "--to", places["outcomes"]),
        (
            "reconcile",
            "--outcomes",
            places["outcomes"],
            "--inventory",
            places["inventory"],
            "--output",
            places["books"],
            "--grace",
            "0",
        ),
    )
    for words in runs:
        done = subprocess.run(
            [sys.executable, "-m", "redelivery", *words], env=story.fleet.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    story.say("the books are written")
    return story.folder / "books"


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "letters", "rate"),
    [
        ("scripts", 150, "30/s"),
        ("no-scripts", 150, "30/s"),
        ("forms", 150, "30/s"),
        ("scripts", MANY, "200/s"),
    ],
)
def test_a_bad_deployment_is_mended_from_the_page(  # noqa: PLR0917 - fixtures, and what is drawn
    desk: Desk, fleet: Fleet, tmp_path: Path, kind: str, letters: int, rate: str, request: pytest.FixtureRequest
) -> None:
    """Before the repair the canary stops the redrive. After it all go back and succeed once, although processes are killed."""
    hand: Hand = Forms() if kind == "forms" else Window(request.getfixturevalue("browser"), has_scripts=kind == "scripts")
    story, words = Story(desk, fleet, tmp_path, hand, letters, rate), ("--allow", "redrive", "--as", "ada")
    story.break_it()
    with WebPage("tests.support.page.web_shop", tmp_path, *words, env=fleet.env) as page:
        hand.enter(page)
        story.look()
        canary = story.begin(story.counts["refused"], "is it mended?", canary="10", rate=rate)
        assert "died again" in story.ends(canary, State.STOPPED)
        until(lambda: desk.client.llen(LETTERS) == letters, TIMEOUT, "the canary to lie there again")
        for cause in ("refused", "late"):
            (tmp_path / cause).unlink()
        hand.open(f"/letters?queue={LETTERS}")
        redrive = story.begin(letters, "it is mended", canary="10", rate=rate)
        story.moves(redrive, letters // 8)
        page.process.kill()
        story.say("the page is killed")
        until(lambda: fleet.leader(redrive) is not None, TIMEOUT, "a worker to carry it out")
        leader = fleet.leader(redrive)
        assert leader is not None
        leader.kill()
        story.say("the leading worker is killed")
        assert not found(desk.install, redrive).has_ended
    fleet.start()
    with WebPage("tests.support.page.web_shop", tmp_path, *words, "--books", str(tmp_path / "books"), env=fleet.env) as page:
        hand.enter(page)
        story.ends(redrive, State.DONE)
        check_story(story, hand.open("/operations"))
        if letters >= 1000:
            books(story)
            assert "The books balance" in hand.open("/books")
    if isinstance(hand, Window):
        assert [line for each in hand.shown for line in each.logged if "ERR_" not in line] == []
