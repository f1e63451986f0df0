"""celery-once and celery-singleton: when their lock is held, and when it is released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.integrated import Place, place
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.xdist_group("integration_locks"), pytest.mark.parametrize("kind", ["once", "single"])]

SETTINGS = {"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}}


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    """A worker of both kinds of tasks."""
    with place("locks", settings=SETTINGS) as made:
        made.start()
        yield made


def published(here: Place, kind: str, *args: Any) -> str | None:
    """Publish it as its library does: its id, or None where a lock forbids it."""
    found: str | None = here.app.AsyncResult(here.send("publish", kind, *args)).get(timeout=60)
    return found


def opens(here: Place, task_id: str) -> None:
    """Open the gate for the runs after the first."""
    (here.folder / f"gate-{task_id}").touch()


def locks(here: Place) -> list[Any]:
    """The locks' keys."""
    return [*here.server.client.keys("qo_*"), *here.server.client.keys("SINGLETON*")]


@pytest.mark.parametrize(("verb", "times"), [("fail", 1), ("fail", 9), ("retry", 1), ("kill", 1)])
def test_the_lock_is_held_until_the_last_attempt_ends(here: Place, kind: str, verb: str, times: int) -> None:
    """It is held between two attempts and while the second one runs. A success releases it, and so does a death by an exception."""
    task_id = published(here, kind, verb, times)
    assert task_id is not None
    until(lambda: len(here.runs(task_id)) == 2, what="its second attempt")
    assert published(here, kind, verb, times) is None
    opens(here, task_id)
    here.over(task_id)
    again = until(lambda: published(here, kind, verb, times), what="the lock to be given up")
    opens(here, again)
    here.over(again)
    until(lambda: not locks(here), what="the lock to be given up once more")


def test_a_death_of_lost_children_leaves_the_lock_to_its_time(here: Place, kind: str) -> None:
    """As with plain Celery, no hook of the task is called if its process is lost, so the lock stays until it expires."""
    task_id = published(here, kind, "kill", 9)
    assert task_id is not None
    opens(here, task_id)
    assert here.ended(task_id, "dead_lettered").reason == "worker_lost"
    assert published(here, kind, "kill", 9) is None
    (lock,) = locks(here)
    assert 0 < here.server.client.ttl(lock) <= 3600
    here.server.client.delete(lock)
    again = published(here, kind, "kill", 9)
    assert again is not None
    opens(here, again)
    here.over(again)
    here.server.client.delete(lock)


def test_a_redriven_letter_takes_no_lock(here: Place, kind: str) -> None:
    """The library takes its lock only when it publishes: an equal task can be published, and run beside the redriven one."""
    task_id = published(here, kind, "fail", 3)
    assert task_id is not None
    opens(here, task_id)
    here.ended(task_id, "dead_lettered")
    until(lambda: not locks(here), what="the lock to be given up")
    (here.folder / f"gate-{task_id}").unlink()
    here.does("-m", "redelivery", "-A", here.module, "dlq", "redrive", "DLQ.celery", "--id", task_id, "--yes")
    until(lambda: len(here.runs(task_id)) == 3, what="it to run again")
    assert locks(here) == []
    other = published(here, kind, "fail", 3)
    assert other is not None
    for each in (task_id, other):
        opens(here, each)
    here.over(other)
    until(lambda: here.outcomes_of(task_id)[-1] in {"succeeded", "dead_lettered"}, what="the letter to end")


@pytest.mark.full
def test_a_retry_of_a_singleton_is_lost_in_plain_celery(kind: str) -> None:
    """There, celery-singleton takes its task's retry for a duplicate, because the lock is held. Ours runs: see above."""
    with place("locks", plain=True) as theirs:
        theirs.start()
        task_id = published(theirs, kind, "retry", 1)
        assert task_id is not None
        result = theirs.app.AsyncResult(task_id)
        until(lambda: result.state == "RETRY", what="its first run to be over")  # Celery may store this after the second run's end
        opens(theirs, task_id)
        if kind == "once":
            until(lambda: result.state == "SUCCESS", what="its second run to be over")
            assert len(theirs.runs(task_id)) == 2
        else:
            assert theirs.server.client.llen("celery") + theirs.server.client.hlen("unacked") == 0
            assert len(locks(theirs)) == 1
