"""The kill storm: a worker's whole process group is SIGKILLed again and again; the books must account for every task."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lanes import seed
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.running import Shop

TASKS, KILLS = 2000, 20
ENDED = {"succeeded", "dead_lettered"}


def redelivery(here: Shop, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line, as an operator does."""
    command = [sys.executable, "-m", "redelivery", *words]
    return subprocess.run(command, env=here.environment, cwd=here.folder, text=True, capture_output=True, timeout=300, check=False)


def books(here: Shop, folder: Path) -> dict[str, Any]:
    """Export, reconcile, and return the summary and the possible repeats."""
    for words in (
        ["inventory", "export", "--to", str(folder / "inventory")],
        ["outcomes", "export", "--to", str(folder / "outcomes")],
    ):
        done = redelivery(here, "-A", "tests.support.shop", *words)
        assert done.returncode == 0, done.stderr
    paths = ["--outcomes", str(folder / "outcomes"), "--inventory", str(folder / "inventory"), "--output", str(folder / "books")]
    done = redelivery(here, "reconcile", *paths, "--grace", "0", "--json")
    assert done.returncode in {0, 1}, done.stderr
    summary: dict[str, Any] = json.loads((folder / "books" / "summary.json").read_text())
    return summary


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_worker_killed_twenty_times_loses_nothing(shop: Callable[..., Shop], folder: Path) -> None:
    """2,000 tasks; 60 s after the last kill each has one outcome, and each that ran twice is listed as a possible repeat."""
    chance = random.Random(seed())  # noqa: S311 - a scenario, no secret
    here = shop(settings={"queues": {"#": {"redelivery_delay": 0.2, "max_delivery_attempts": 5}}})
    ids: list[str] = []
    here.start()
    for _ in range(KILLS):
        ids += [publish(here, chance) for _ in range(TASKS // KILLS)]
        time.sleep(chance.random() * 0.6)  # the random moment
        here.workers[-1].kill()
        here.start()
    last_kill = time.monotonic()

    def all_have_ended() -> bool:
        ended = {event.task_id for event in here.events if event.outcome in ENDED}
        return ended.issuperset(ids)

    # A minute on an idle machine; here other tests run too.
    until(all_have_ended, 150 - (time.monotonic() - last_kill), f"all tasks of seed {seed()} to end")
    outcomes = Counter((event.task_id, event.generation) for event in here.events if event.outcome in ENDED)
    assert set(outcomes.values()) == {1}
    assert here.leftovers() == {}
    here.workers[-1].stop()

    runs = Counter((run["id"], run.get("attempt", 1)) for run in here.runs() if run.get("event") != "end")
    twice = {task_id for (task_id, _), count in runs.items() if count > 1}
    suspects = {event.task_id for event in here.events if event.reason == "worker_lost"}
    assert twice <= suspects
    summary = books(here, folder)
    assert summary["balanced"], summary
    assert summary["verdicts"]["balanced"] == summary["lives"] == TASKS
    assert summary["possible_repeats"] == len(suspects)


def publish(here: Shop, chance: random.Random) -> str:
    """One task: most succeed, some take a moment, some fail once, some for good."""
    draw = chance.random()
    if draw < 0.6:
        return here.send("ok")
    if draw < 0.8:
        return here.send("naps", 0.01)
    return here.send("fails", 1) if draw < 0.95 else here.send("fails")
