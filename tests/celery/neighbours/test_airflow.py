"""An app as Airflow's Celery provider makes it (`tests.support.integrated.executor`), with what `docs/integrations.md` says to set.

Airflow itself is not run here: neither its scheduler, nor what it runs, nor its database.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from tests.support.integrated import Place, place
from tests.support.running import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("integration_airflow")

POLICY = {"max_delivery_attempts": 1, "dead_letter_queue": None, "persist_delivery_count": "always"}
SETTINGS = {"tasks": {"execute_workload": POLICY}}


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    """A worker that is told of us by its configuration alone."""
    with place("executor", settings=SETTINGS) as made:
        made.start("-Q", "default")
        yield made


@pytest.fixture(scope="module")
def scheduler(here: Place) -> Celery:
    """The scheduler's app: one of its own for each team, which nobody has told of us."""
    app = Celery("scheduler", broker=here.server.url, backend=here.server.url, set_as_current=False)
    app.conf.update(task_default_queue="default", task_default_exchange="default")
    return app


def sent(scheduler: Celery, what: str) -> str:
    """Publish a workload as the executor does: with an id that it has chosen before."""
    task_id = str(uuid.uuid4())
    scheduler.send_task("execute_workload", [json.dumps({"does": what})], queue="default", task_id=task_id)
    return task_id


@pytest.mark.parametrize(
    ("what", "state", "outcome"),
    [("succeed", "SUCCESS", "succeeded"), ("fail", "FAILURE", "discarded"), ("kill", "FAILURE", "discarded")],
)
def test_a_workload_runs_once_and_its_end_is_told_to_the_scheduler(
    here: Place, scheduler: Celery, what: str, state: str, outcome: str
) -> None:
    """Whether there is another attempt is Airflow's to say: a failure is told at once, and leaves no letter."""
    task_id = sent(scheduler, what)
    until(lambda: scheduler.AsyncResult(task_id).state == state, what=state)
    here.ended(task_id, outcome)
    assert len(here.runs(task_id)) == 1
    assert here.letters("DLQ.default") == []


def test_a_workload_that_runs_elsewhere_is_ignored(here: Place, scheduler: Celery) -> None:
    """Its state stays the one of the run that goes on elsewhere: nothing is stored."""
    task_id = sent(scheduler, "run elsewhere")
    here.ended(task_id, "ignored")
    assert scheduler.AsyncResult(task_id).state == "STARTED"
    assert len(here.runs(task_id)) == 1


def test_a_killed_worker_is_told_to_the_scheduler_in_seconds(here: Place, scheduler: Celery) -> None:
    """What ran has failed, with `WorkerLostError`; another worker says so, and runs what had not begun."""
    lost = here.start("-Q", "doomed", concurrency=1)
    ids = []
    for what in ("take long", "succeed"):
        ids.append(str(uuid.uuid4()))
        scheduler.send_task("execute_workload", [json.dumps({"does": what})], queue="doomed", task_id=ids[-1])
    until(lambda: here.runs(ids[0]), what="the first one to run")
    lost.kill()
    until(lambda: scheduler.AsyncResult(ids[0]).state == "FAILURE", what="the loss to be told")
    assert "WorkerLostError" in repr(scheduler.AsyncResult(ids[0]).result)
    here.app.control.add_consumer("doomed", reply=True)
    here.ended(ids[1], "succeeded")
    assert [len(here.runs(each)) for each in ids] == [1, 1]


def test_the_document_gives_these_settings() -> None:
    """Word for word."""
    text = (ROOT / "docs" / "integrations.md").read_text()
    (block,) = re.findall(r"^```json\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    assert json.loads(block) == SETTINGS
