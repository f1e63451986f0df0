"""celery-redbeat and celery-progress: a schedule and a page about progress, both in Redis."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from celery_progress.backend import Progress

from tests.support.integrated import Place, place
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("integration_beat")


def test_redbeat_publishes_what_is_due_once_and_it_is_redelivered() -> None:
    """Two of them share a schedule: one sends, the other waits for the lock. Each tick is recorded, fails once and succeeds."""
    with place("redbeat") as here:
        here.start()
        beats = [here.run("-m", "celery", "-A", here.module, "beat", "--pidfile=") for _ in range(2)]
        until(lambda: sum(each.outcome == "succeeded" for each in here.events) >= 3, what="three ticks to succeed")
        assert [beat.poll() for beat in beats] == [None, None]
        for beat in beats:
            beat.kill()
        published = [each for each in here.events if each.outcome == "published"]
        here.over(*(each.task_id for each in published))
        for each in published:
            assert here.outcomes_of(each.task_id) == ["published", "redelivery_scheduled", "succeeded"]
        times = [each.at_ms for each in published]
        assert min(after - before for before, after in pairwise(times)) > 500, "a tick was sent twice"


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    """A worker whose tasks report their progress."""
    with place("progress", settings={"queues": {"#": {"redelivery_delay": 2, "max_delivery_attempts": 2}}}) as made:
        made.start()
        yield made


def shown(here: Place, task_id: str) -> dict[str, Any]:
    """What celery-progress shows of a task."""
    info: dict[str, Any] = Progress(here.app.AsyncResult(task_id)).get_info()
    return info


def comes_to(here: Place, task_id: str, state: str) -> dict[str, Any]:
    """What is shown of a task once it is in this state."""
    found: dict[str, Any] = until(lambda: info if (info := shown(here, task_id))["state"] == state else None, what=state)
    return found


def test_progress_goes_on_in_the_next_attempt(here: Place) -> None:
    """First half done; a redelivery is shown as the library shows any retry: complete, no success; then half done, and done."""
    gate = here.folder / "gate"
    task_id = here.send("counts", str(gate), 1)
    assert comes_to(here, task_id, "PROGRESS")["progress"]["percent"] == 50
    gate.touch()
    waiting = comes_to(here, task_id, "RETRY")
    gate.unlink()
    assert (waiting["complete"], waiting["success"], waiting["result"]["message"]) == (True, False, "no...")
    assert waiting["result"]["next_retry_seconds"] in range(2, 4)
    assert comes_to(here, task_id, "PROGRESS")["complete"] is False
    gate.touch()
    assert comes_to(here, task_id, "SUCCESS")["result"] == "done"


def test_a_retry_says_in_how_many_seconds_it_comes(here: Place) -> None:
    """As Celery writes it: the number that was asked for."""
    task_id = here.send("asks", 30)
    assert comes_to(here, task_id, "RETRY")["result"]["next_retry_seconds"] == 30
    assert re.search(r"Retry in 30s\b", here.app.AsyncResult(task_id).traceback)
