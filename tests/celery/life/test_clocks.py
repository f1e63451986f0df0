"""Two workers whose clocks are wrong by an hour, one each way: no delay is early, no expiry wrong, no due time shifted.

All times that are compared are the broker's. A delay that is measured by a wrong clock would be an hour too long or too short.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.messages.envelope import Envelope
from tests.support.apps.skewed_producer import SECONDS
from tests.support.lanes import first_quick
from tests.support.running import ROOT, Shop
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.messages.events import Event

HOUR = 3600
#: How far apart two readings of one clock may be, in milliseconds, on a slow machine.
TICK_MS = 500
CLOCKS = {"ahead": HOUR, "behind": -HOUR}
SETTINGS = {
    "queues": {
        "#": {"redelivery_delay": 1.5, "redelivery_delay_multiplier": 1, "redelivery_collision_avoidance_factor": 0},
        "late.*": {"delivery_delay": 2},
        "brief.*": {"max_time_to_live": 900},
        "old.*": {"max_age": 900},
    },
}
pytestmark = [pytest.mark.xdist_group("clocks"), pytest.mark.parametrize("clock", first_quick(CLOCKS))]


@dataclass
class Skewed(Shop):
    """A shop whose next worker's clock is wrong by `skew` seconds."""

    skew: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """The shop's, with the wrong clock."""
        path = f"{ROOT / 'tests' / 'support' / 'skewed'}:{ROOT}"
        return {**super().environment, "CLOCK_SKEW": str(self.skew), "PYTHONPATH": path}


@pytest.fixture(scope="module")
def here() -> Iterator[Shop]:
    """A worker with each clock, on queues of its own."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        made = Skewed(server, Path(name), settings=SETTINGS, module="tests.support.apps.clocked")
        for clock, made.skew in CLOCKS.items():
            made.start("-Q", ",".join([clock, *(f"{kind}.{clock}" for kind in ("late", "brief", "old"))]), pool="threads")
        yield made
        made.stop()
        server.stop(9)


def done(here: Shop, task_id: str) -> tuple[Event, Event]:
    """The time of its publication, and of its success."""
    here.ended(task_id, "succeeded")
    events = here.events_of(task_id)
    return events[0], events[-1]


def test_the_clocks_are_wrong(here: Shop, clock: str) -> None:
    """Otherwise the other tests here would prove nothing."""
    task_id = here.send("ok", queue=clock)
    _, end = done(here, task_id)
    (run,) = here.runs(task_id)
    for said in (run["at"], run["now"]):
        assert abs(said - end.at_ms / 1000 - CLOCKS[clock]) < HOUR / 2


@pytest.mark.parametrize("countdown", [0.9, 3])
def test_a_countdown_is_neither_early_nor_an_hour_late(here: Shop, clock: str, countdown: float) -> None:
    """Both in the delay store, and for a short countdown that the worker itself waits for."""
    before = here.server.now_ms()
    _, end = done(here, here.send("ok", queue=clock, countdown=countdown))
    assert end.at_ms >= before + countdown * 1000 - 10  # the producer has a clock of its own, which is right


@pytest.mark.parametrize("producer", list(CLOCKS))
def test_a_producers_wrong_clock_makes_no_countdown_early_or_late(here: Skewed, clock: str, producer: str) -> None:
    """This holds for each way to give Celery a countdown; a message that expires in ten minutes does not expire earlier."""
    here.skew = CLOCKS[producer]
    command = [sys.executable, "-m", "tests.support.apps.skewed_producer", here.server.url, clock, json.dumps(SETTINGS)]
    ran = subprocess.run(command, env=here.environment, cwd=ROOT, stdout=subprocess.PIPE, timeout=120, check=True)
    said = json.loads(ran.stdout)
    for way in ("countdown", "option", "group", "chain", "both"):
        published, end = done(here, said["ids"][way])
        assert end.at_ms >= published.at_ms + SECONDS * 1000 - said["took_ms"][way] - TICK_MS  # it counts from the call
    done(here, said["ids"]["expires"])


def test_a_redelivery_waits_as_long_as_it_was_said(here: Shop, clock: str) -> None:
    """Its due time is by the broker's clock, in the books and in the message's header."""
    task_id = here.send("fails", 2, queue=clock)
    done(here, task_id)
    _, first, second, end = here.events_of(task_id)
    for failed, following in ((first, second), (second, end)):
        assert failed.due_ms is not None
        assert 0 <= failed.due_ms - failed.at_ms - 1500 < 100
        assert following.at_ms >= failed.due_ms


@pytest.mark.parametrize("how", ["same", "countdown", "eta"])
def test_a_retry_waits_as_long_as_the_task_asked(here: Shop, clock: str, how: str) -> None:
    """Also if Celery publishes a new message for it, with its own ETA."""
    task_id = here.send("retries", how, 2, queue=clock)
    done(here, task_id)
    assert "redelivery_scheduled" in here.outcomes_of(task_id)
    asked, again = (run["at"] for run in here.runs(task_id))  # by one clock, even if it is wrong
    assert again >= asked + 1.9  # two seconds, but for what this worker cannot know of the server's clock


@pytest.mark.parametrize(("task", "args"), [("ok", ()), ("fails", (1,)), ("retries", ("countdown", 1.5))])
def test_what_expires_later_runs(here: Shop, clock: str, task: str, args: tuple[object, ...]) -> None:
    """After a first delivery, a redelivery and a new publication; by a clock that is ahead, it would have expired already."""
    done(here, here.send(task, *args, queue=clock, expires=900))


@pytest.mark.parametrize(("task", "args"), [("fails", (1,)), ("retries", ("countdown", 1.5))])
def test_what_lives_longer_or_is_younger_runs(here: Shop, clock: str, task: str, args: tuple[object, ...]) -> None:
    """A queue's time to live and a policy's greatest age are measured by the broker's clock."""
    for kind in ("brief", "old"):
        done(here, here.send(task, *args, queue=f"{kind}.{clock}"))


@pytest.mark.parametrize("countdown", [None, HOUR // 2])
def test_what_has_expired_does_not_run(here: Shop, clock: str, countdown: int | None) -> None:
    """It dies on arrival or in the delay store; by a clock that is behind, it would run, or wait for an hour."""
    task_id = here.send("fails", 5, queue=clock, expires=1, countdown=countdown)
    end = here.ended(task_id, "dead_lettered")
    assert end.reason == "expired"
    assert end.at_ms >= here.events_of(task_id)[0].at_ms + 900
    assert len(here.runs(task_id)) == (countdown is None)


def test_a_delivery_delay_counts_from_the_publication(here: Shop, clock: str) -> None:
    """It is measured by the broker's clock."""
    published, end = done(here, here.send("ok", queue=f"late.{clock}"))
    assert end.at_ms >= published.at_ms + 2000


def test_a_letter_tells_the_brokers_times(here: Shop, clock: str) -> None:
    """When it was first seen, when each attempt ended, and when it died."""
    task_id = here.send("fails", 2, queue=f"old.{clock}", expires=900)
    done(here, task_id)
    task_id = here.send("fails", 5, queue=clock, expires=2)
    end = here.ended(task_id, "dead_lettered")
    (letter,) = [each for each in here.letters(f"DLQ.{clock}") if each["headers"]["id"] == task_id]
    envelope, published = Envelope.of(letter["headers"]), here.events_of(task_id)[0].at_ms
    times = [envelope.first_seen_ms, *(each["at"] for each in envelope.attempts), envelope.deaths[0]["first"]]
    assert len(times) >= 3
    assert all(isinstance(each, int) and published - 100 <= each <= end.at_ms + 100 for each in times), (times, published, end)
    assert times == sorted(times)
