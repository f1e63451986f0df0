"""A rolling upgrade from the code before the redesign, under load and kills: both versions share queues, and nothing is lost."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support.lanes import seed
from tests.support.running import ROOT, Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.rabbit import Rabbit
    from tests.support.servers import Server

#: The last commit before the redesign, and the parts of it that a worker imports.
BEFORE, PACKAGES = "d1c2e7f99691022457f63167d2b98d248f5b94cf", ("redelivery", "middleware", "workers", "settings")
TASKS, KILLS, ATTEMPTS = 400, 10, 4
SETTINGS = {"queues": {"#": {"redelivery_delay": 0.2, "redelivery_delay_multiplier": 1, "max_delivery_attempts": ATTEMPTS}}}
CONF = {"broker_transport_options": {"confirm_publish": True}}
ENDS = {"succeeded", "dead_lettered"}

pytestmark = [pytest.mark.full, pytest.mark.slow]


@dataclass
class Before(Shop):
    """A shop whose workers run the code of an older commit."""

    code: Path = field(default_factory=Path)

    @property
    def environment(self) -> dict[str, str]:
        """The shop's environment; the older code comes first on the path, the tests' own modules after it."""
        return {**super().environment, "PYTHONPATH": f"{self.code}:{ROOT}"}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the older commit, in a folder of their own."""
    if not (ROOT / ".git").exists():
        pytest.skip("the older code is in the repository's history, and this is an archive of one commit")
    folder = tmp_path_factory.mktemp("before")
    archive = subprocess.run(["git", "archive", BEFORE, *PACKAGES], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


@pytest.fixture
def old(broker: Server | Rabbit, folder: Path, before: Path) -> Iterator[Before]:
    """A shop of the older version."""
    shop = Before(cast("Any", broker), folder, settings=SETTINGS, conf=CONF, code=before)
    yield shop
    shop.stop()


@pytest.fixture(params=["valkey", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Any:
    """Each kind of broker."""
    return request.getfixturevalue({"valkey": "server", "rabbitmq": "rabbit"}[request.param])


def publish(shop: Shop, chance: random.Random) -> str:
    """One task: most succeed, some fail once, some for good."""
    draw = chance.random()
    return shop.send("ok") if draw < 0.6 else shop.send("fails", 1) if draw < 0.8 else shop.send("fails")


def test_old_and_new_workers_lose_nothing_while_both_are_killed(old: Before) -> None:
    """Each task ends; an old worker is replaced by a new one at each kill, until none is left."""
    chance = random.Random(f"{seed()}-upgrade")  # noqa: S311 - a scenario, no secret
    new = Shop(**{name: getattr(old, name) for name in ("server", "folder", "settings", "conf")}, workers=old.workers)
    ids = [publish(old, chance) for _ in range(TASKS // 2)]
    old.start()
    old.start()
    assert code_of(old) != code_of(new)
    for number in range(KILLS):
        old.workers[number].kill()
        (old if number < KILLS // 2 and number % 2 else new).start()
        ids += [publish(new if number % 2 else old, chance) for _ in range(TASKS // 2 // KILLS)]
    ended = until(lambda: ends_of(new, ids) if ends_of(new, ids).keys() >= set(ids) else None, 240, "all tasks to end")
    until(lambda: new.leftovers() == {}, 60, "nothing to be held")
    letters = {letter["headers"]["id"] for letter in new.letters()}
    assert letters == {task_id for task_id, words in ended.items() if words["dead_lettered"]}
    if hasattr(new.server, "client"):  # Redis moves in one step; on RabbitMQ a crash between two steps may end a task twice
        assert {task_id: words for task_id, words in ended.items() if words.total() != 1} == {}


def code_of(shop: Shop) -> str:
    """Where a worker of this shop imports the middleware from."""
    asked = [sys.executable, "-c", "import redelivery.middleware as found; print(found.__file__)"]
    return subprocess.run(asked, env=shop.environment, cwd=shop.folder, text=True, capture_output=True, check=True).stdout


def ends_of(shop: Shop, ids: list[str]) -> dict[str, Counter[str]]:
    """How often each of these tasks ended, and how."""
    ends: dict[str, Counter[str]] = {}
    for event in shop.events:
        if event.outcome in ENDS and event.task_id in set(ids):
            ends.setdefault(event.task_id, Counter())[str(event.outcome)] += 1
    return ends
