"""django-celery-results and django-celery-beat, in a Django project with a database of its own."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from tests.support.integrated import Place, place
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("integration_django")

#: Put into the schedule: one task every second, and one that is sent once and fails the first time.
SCHEDULE = """
import tests.support.integrated.django_app
from django_celery_beat.models import IntervalSchedule, PeriodicTask
second = IntervalSchedule.objects.create(every=1, period="seconds")
PeriodicTask.objects.create(interval=second, name="tick", task="tests.support.shop.ok", args='["tick"]', expire_seconds=600)
PeriodicTask.objects.create(interval=second, name="once", task="tests.support.shop.fails", args="[1]", one_off=True)
"""


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    """A worker, whose results go to the project's database."""
    with place("django_app", variables={"DJANGO_SETTINGS_MODULE": "tests.support.integrated.django_settings"}) as made:
        made.does("-m", "django", "migrate")
        made.start()
        yield made


def stored(here: Place, task_id: str) -> tuple[str, str, str, str] | None:
    """What the database holds of a task: its state, result, traceback and name."""
    with sqlite3.connect(here.folder / "database", timeout=20) as database:
        found = database.execute(
            "SELECT status, result, COALESCE(traceback, ''), task_name FROM django_celery_results_taskresult WHERE task_id = ?",
            [task_id],
        ).fetchall()
    assert len(found) < 2, "one row for a task, however often it is delivered"
    return found[0] if found else None


@pytest.mark.parametrize(
    ("task", "error"),
    [("fails", "RuntimeError"), ("retries", "MaxRetriesExceededError"), ("kills", "WorkerLostError")],
)
def test_a_result_is_retry_until_it_is_failure(here: Place, task: str, error: str) -> None:
    """One row: first RETRY with the exception of the attempt, then FAILURE with the exception that the task died of."""
    task_id = here.publish(task)
    seen: list[str] = []

    def ended() -> bool:
        row = stored(here, task_id)
        if row is not None and row[0] not in seen:
            seen.append(row[0])
        return row is not None and row[0] == "FAILURE"

    until(ended, what="its failure to be stored")
    assert "RETRY" in seen
    row = stored(here, task_id)
    assert row is not None
    assert error in row[1]
    assert row[3] == f"tests.support.shop.{task}"
    here.ended(task_id, "dead_lettered")


def test_a_redelivery_that_succeeds_leaves_a_success(here: Place) -> None:
    """The row has no traceback of the earlier attempt."""
    task_id = here.publish("fails", 1)
    here.ended(task_id, "succeeded")
    assert stored(here, task_id) == ("SUCCESS", '"at last"', "", "tests.support.shop.fails")


def sent(here: Place, task: str) -> list[str]:
    """The ids of all published messages of a task."""
    return [each.task_id for each in here.events if each.task == task and each.outcome == "published"]


def test_what_the_database_schedules_is_published_and_redelivered(here: Place) -> None:
    """Each tick is recorded and runs once; a one-time schedule publishes once, and a redelivery is no second publication."""
    before = set(sent(here, "tests.support.shop.fails"))
    here.does("-c", SCHEDULE)
    beat = here.run("-m", "celery", "-A", here.module, "beat")
    ticks = until(lambda: found if len(found := [run["id"] for run in here.runs() if "redelivered" in run]) >= 3 else None)
    (once,) = until(lambda: set(sent(here, "tests.support.shop.fails")) - before, what="what is sent once to be published")
    assert beat.poll() is None
    beat.terminate()
    beat.wait(60)
    for task_id in ticks:
        here.ended(task_id, "succeeded")
        assert here.outcomes_of(task_id) == ["published", "succeeded"]
    here.ended(once, "succeeded")
    assert here.outcomes_of(once) == ["published", "redelivery_scheduled", "succeeded"]
    assert set(sent(here, "tests.support.shop.fails")) - before == {once}
