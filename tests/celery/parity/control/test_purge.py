"""Celery's own `purge` discards waiting messages, as with a plain broker, and the books record that."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.control.control import ControlShop, control_shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis


@pytest.fixture
def here() -> Iterator[ControlShop]:
    """A broker that no worker reads."""
    with control_shop() as made:
        yield made


def plain(here: ControlShop) -> str:
    """Publish as an application without `Redelivery` does."""
    other = ControlShop(here.server, here.folder, plain=True)
    return other.send("ok")


def waiting(here: ControlShop) -> list[str]:
    """One task of each kind: three priorities, one that waits for its time, and one of a plain producer."""
    ids = [here.send("ok", priority=priority) for priority in (0, 3, 9)]
    return [*ids, here.send("ok", countdown=3600), plain(here)]


@pytest.mark.parametrize("how", ["control", "command"])
def test_what_waits_in_the_queue_is_discarded_and_recorded(here: ControlShop, how: str) -> None:
    """With `app.control.purge()` and `celery purge`, for every priority, whoever published the message."""
    *ours, theirs = waiting(here)
    if how == "control":
        assert here.app.control.purge() == 5
    else:
        command = [sys.executable, "-m", "celery", "-A", here.module, "purge", "-f"]
        done = subprocess.run(command, env=here.environment, cwd=here.folder, capture_output=True, text=True, check=True)
        assert "Purged 5 messages" in done.stdout
    assert here.leftovers() == {}
    assert [here.outcomes_of(task_id) for task_id in ours] == [["published", "purged"]] * 4
    assert here.outcomes_of(theirs) == ["received", "purged"]
    assert {str(here.ended(task_id, "purged").reason) for task_id in [*ours, theirs]} == {"operator"}
    assert here.app.control.purge() == 0


def test_what_is_no_task_is_discarded_too(here: ControlShop) -> None:
    """Bytes and messages of other programs are removed, and are no life in the books."""
    client: Redis = here.server.client
    client.lpush("celery", b"no message", json.dumps({"body": "", "headers": {}, "properties": {}}))
    task_id = here.send("ok")
    assert here.app.control.purge() == 3
    assert here.leftovers() == {}
    assert [(event.task_id, str(event.outcome)) for event in here.events] == [(task_id, "published"), (task_id, "purged")]
