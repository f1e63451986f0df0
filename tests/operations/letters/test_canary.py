"""A redrive with a canary and real workers: if the canary succeeds the others follow; if it dies again they stay."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.brokers import Place, letter, opened_place
from tests.support.desk import LETTERS, QUEUE, body_of, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.running import Shop

#: How long a canary that must end may take, on a busy machine.
LONG = "10m"


class Yard:
    """One broker, one worker on the queue `orders`, and the desk that sends its dead letters back."""

    def __init__(self, place: Place) -> None:
        self.place, self.desk = place, place.desk()
        self.shop: Shop = place.shop(settings={"queues": {"#": {"redelivery_delay": 0.2, "max_delivery_attempts": 2}}})
        self.shop.start("-Q", QUEUE, pool="threads")

    def bury(self, name: str, count: int, task: str = "ok", *args: Any) -> list[str]:
        """So many dead letters of one of the shop's tasks; their ids."""
        ids = [f"{name}-{number}" for number in range(count)]
        self.place.put(*(letter(task_message(each, f"tests.support.shop.{task}", body=body_of(*args))) for each in ids))
        return ids

    def redrive(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """The exit code of `dlq redrive --all --json`, its output, and its error line."""
        done = self.desk.run("dlq", "redrive", LETTERS, "--all", "--yes", *words, "--json")
        return done.exit_code, json.loads(done.stdout), done.stderr

    def ran(self, name: str) -> set[str]:
        """The ids of letters of this name that a worker has run."""
        return {each["id"] for each in self.shop.runs() if each["id"].startswith(name)}

    def lie(self, name: str) -> list[str]:
        """The letters of this name that are in the dead-letter queue."""
        return [each for each in self.place.ids(LETTERS) if each.startswith(name)]

    def clear(self) -> None:
        """Leave no letter."""
        self.desk.run("dlq", "purge", LETTERS, "--all", "--yes")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"canary-{name}")) for name in ("valkey", "rabbit-classic")],
)
def shared(request: pytest.FixtureRequest) -> Iterator[Yard]:
    """A broker of each kind, and a worker."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        for place in opened_place(request.param, Path(name), lambda: request.getfixturevalue("rabbit_node")):
            yield Yard(place)


@pytest.fixture
def yard(shared: Yard) -> Iterator[Yard]:
    """The same, with no letter left behind."""
    yield shared
    shared.clear()


def test_the_others_follow_a_canary_that_runs_well(yard: Yard) -> None:
    """Two dead letters first, then three, of which one dies again: the canary's outcomes are reported, and all ran."""
    ids = [*yard.bury("well", 4), *yard.bury("bad", 1, "raises", "reject")]
    code, done, _ = yard.redrive("--canary", "2", "--canary-wait", LONG)
    assert (code, done["moved"], done["stopped"]) == (0, 5, "")
    assert [(each["task_id"], each["outcome"], each["generation"]) for each in done["canary"]] == [
        (each, "succeeded", 1) for each in ids[:2]
    ]
    until(lambda: yard.ran("well") | yard.ran("bad") == set(ids), what="all to have run")
    first = [each.task_id for each in yard.shop.events if each.outcome in {"redriven", "succeeded"} and each.task_id in ids]
    assert max(first.index(each, first.index(each) + 1) for each in ids[:2]) < min(first.index(each) for each in ids[2:])
    until(lambda: yard.lie("bad") == ["bad-0"], what="the bad one to be back")


def test_the_others_stay_where_the_canary_dies_again(yard: Yard) -> None:
    """After its own attempts and delays, one error line has its id and reason; the others are unchanged, and none has run."""
    (dead,), ids = yard.bury("dies", 1, "fails"), yard.bury("stays", 5)
    code, done, line = yard.redrive("--canary", "1", "--canary-wait", LONG)
    assert (code, done["moved"]) == (2, 1)
    assert re.search(rf"stopped when 1 dead letter had gone back: the canary died again: {dead} \(exhausted: RuntimeError\);", line)
    assert [(each["task_id"], each["reason"]) for each in done["died_again"]] == [(dead, "exhausted")]
    assert yard.lie("stays") == ids
    assert yard.ran("stays") == set()
    until(lambda: yard.lie("dies") == [dead], what="the canary to lie there again")


def test_a_long_redrive_stops_when_some_have_died_again(yard: Yard) -> None:
    """It is slow enough to watch: it stops after three deaths, and most dead letters have not moved."""
    ids = yard.bury("again", 400, "raises", "reject")
    code, done, line = yard.redrive("--abort-after", "3", "--rate", "10/s")
    assert code == 2
    assert 3 <= len(done["died_again"]) <= done["moved"] < len(ids)
    assert f"{len(done['died_again'])} dead letters of this redrive died again: again-" in line
    assert {each["reason"] for each in done["died_again"]} == {"rejected"}
    until(lambda: len(yard.lie("again")) == len(ids), what="all that were sent to lie there again")
    assert yard.ran("again") == set(ids[: done["moved"]])
