"""An app as Airflow's Celery provider makes it (`tests.support.integrated.executor`), with the settings of `docs/integrations.md`.

Airflow itself, its scheduler and its database do not run here.
"""

from __future__ import annotations

import functools
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
    """A worker that loads redelivery only by its configuration."""
    with place("executor", settings=SETTINGS) as made:
        made.start("-Q", "default")
        yield made


@pytest.fixture(scope="module")
def scheduler(here: Place) -> Celery:
    """The scheduler's app, one for each team, without redelivery."""
    app = Celery("scheduler", broker=here.server.url, backend=here.server.url, set_as_current=False)
    app.conf.update(task_default_queue="default", task_default_exchange="default")
    return app


def sent(scheduler: Celery, what: str) -> str:
    """Publish a workload as the executor does, with an id that the executor has chosen."""
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
    """Airflow decides about another attempt: a failure is reported at once, and leaves no dead letter."""
    task_id = sent(scheduler, what)
    until(lambda: scheduler.AsyncResult(task_id).state == state, what=state)
    here.ended(task_id, outcome)
    assert len(here.runs(task_id)) == 1
    assert here.letters("DLQ.default") == []


def test_a_workload_that_runs_elsewhere_is_ignored(here: Place, scheduler: Celery) -> None:
    """It stores no state, because the run that goes on elsewhere will."""
    task_id = sent(scheduler, "run elsewhere")
    here.ended(task_id, "ignored")
    assert scheduler.AsyncResult(task_id).state == "STARTED"
    assert len(here.runs(task_id)) == 1


def test_a_killed_worker_is_told_to_the_scheduler_in_seconds(here: Place, scheduler: Celery) -> None:
    """The running workload fails with `WorkerLostError`; another worker reports that, and runs the workloads that had not begun."""
    lost = here.start("-Q", "doomed", concurrency=1)
    ids = []
    for what in ("take long", "succeed"):
        ids.append(str(uuid.uuid4()))
        scheduler.send_task("execute_workload", [json.dumps({"does": what})], queue="doomed", task_id=ids[-1])
    until(lambda: here.runs(ids[0]), what="the first one to run")
    lost.kill()
    until(lambda: scheduler.AsyncResult(ids[0]).state == "FAILURE", what="the loss to be told")
    assert "WorkerLostError" in repr(scheduler.AsyncResult(ids[0]).result)
    add = functools.partial(here.app.control.add_consumer, "doomed", reply=True)
    until(add, what="the worker to answer")
    here.ended(ids[1], "succeeded")
    assert [len(here.runs(each)) for each in ids] == [1, 1]


def test_the_document_gives_these_settings() -> None:
    """Word for word, the document has the settings that are tested here."""
    text = (ROOT / "docs" / "integrations.md").read_text()
    (block,) = re.findall(r"^```json\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    assert json.loads(block) == SETTINGS
