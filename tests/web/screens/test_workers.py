"""Workers: their running tasks and prefetched messages, and which of them are dead."""

from __future__ import annotations

import functools
import re
import threading
from html import unescape
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.operations.fleet import holders, running
from redelivery.workers.operations.fleet.running import Running, Said
from redelivery.workers.operations.metrics.metrics import Living
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.desk import Desk
    from tests.support.page.web_page import Visitor, WebPage
    from tests.support.running import Shop


def values_of(operator: Visitor, label: str) -> list[str]:
    """One column of the screen, by worker."""
    cells = re.findall(rf'<td[^>]* data-label="{label}">(.*?)</td>', operator.get("/workers").text, re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", each)).split()) for each in cells]


@pytest.mark.slow
@pytest.mark.xdist_group("web_workers")
def test_what_runs_is_told_from_what_was_fetched_ahead_and_a_dead_worker_from_a_living_one(
    shop: Callable[..., Shop], open_page: Callable[..., WebPage], folder: Path
) -> None:
    """The worker reports what it runs. After it was killed, its lease still exists and is not renewed."""
    here = shop(settings={"lease": 3})
    worker = here.start(concurrency=1)
    runs, *ahead = [here.send("waits", str(folder / "gate")) for _ in range(3)]
    until(lambda: here.runs(runs), 60, "the first task to run")
    operator = open_page(settings='{"lease": 3}').operator()
    until(lambda: values_of(operator, "holds") == ["3"], 60, "the worker to hold all of them")
    assert values_of(operator, "lease") == ["held"]
    [said] = values_of(operator, "runs")
    assert re.fullmatch(rf"{runs[:8]} tests.support.shop.waits celery for \S+s", said), said
    [said] = values_of(operator, "fetched ahead")
    assert (sorted(re.findall(r"[0-9a-f]{8}", said)), "or runs" in said) == (sorted(each[:8] for each in ahead), False), said
    worker.kill()

    def is_dead(visitor: Visitor) -> bool:
        return values_of(visitor, "lease") == ["ended"]

    for visitor in (operator, open_page(settings='{"lease": 3}').operator()):  # one has seen the worker alive, and one has not
        assert [each == "held" for each in values_of(visitor, "lease")] == [False]
        assert values_of(visitor, "runs") == ["it does not say"]
        assert values_of(visitor, "fetched ahead")[0].count("or runs") == 3
        until(functools.partial(is_dead, visitor), 30, "the lease to end")


def test_a_part_is_cut_only_where_there_is_more(desk: Desk) -> None:
    """Three of three messages are not called a part."""
    for _ in range(3):
        desk.publish()
        desk.hold()
    found = {most: holders.holders(desk.install, most=most, named=0) for most in (2, 3, 4)}
    assert {most: (each.looked_at, each.is_cut) for most, each in found.items()} == {2: (2, True), 3: (3, False), 4: (3, False)}


def test_a_worker_that_was_started_again_is_not_the_dead_one_of_its_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own lease, messages and reply."""
    for token in ("old", "new"):
        desk.publish()
        desk.hold(token, "w1@shop")
    answered = Said(1, (Running("task-1", "desk.pack", "orders", 2.0),))
    monkeypatch.setattr(holders, "running_of", lambda _, names: {"new": answered} if {*names} == {"w1@shop"} else {})
    now = 100.0
    living = Living(10.0, lambda: now)
    holders.holders(desk.install, most=10, named=1, living=living)
    now = 111.0
    found = holders.holders(desk.install, most=10, named=1, living=living).workers
    assert [(each.worker, each.held, each.is_renewed, each.is_dead) for each in found] == [
        ("w1@shop", 1, False, True),
        ("w1@shop", 1, True, False),
    ]


def test_a_question_that_takes_too_long_is_not_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow broker the rest of the screen comes in time."""
    ended = threading.Event()
    monkeypatch.setattr(running, "LATEST", 0.01)
    monkeypatch.setattr(desk.app.control, "broadcast", lambda *_, **__: ended.wait(30) and [])
    assert running.running_of(desk.app, ["w1"]) == {}
    ended.set()


def test_an_answer_of_anything_else_is_none(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client of the broker can send an answer."""
    good = {"owner": "a", "runs": 2, "running": [{"id": "t", "task": "x", "ms": 1500}, {"ms": float("nan")}, {"id": 1}, 7]}
    answers = [{"w1": good}, {"w2": {"error": "unknown"}}, {"w3": None}, 5, {"w4": {"owner": 1, "runs": 0, "running": []}}]
    monkeypatch.setattr(desk.app.control, "broadcast", lambda *_, **__: answers)
    assert running.running_of(desk.app, ["w1"]) == {"a": Said(2, (Running("t", "x", "", 1.5),))}
