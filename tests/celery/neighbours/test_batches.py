"""The real celery-batches, with the older Celery that it needs; `test_own_strategy.py` tests our handling of such tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import celery
import pytest

from tests.support.integrated import Place, place
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.xdist_group("integration_batches"),
    pytest.mark.skipif(celery.VERSION >= (5, 7), reason="celery-batches asks for Celery 5.6 at most: ./dev older runs it"),
]


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    """A worker that runs batches."""
    with place("batches") as made:
        made.start()
        yield made


@pytest.mark.parametrize("task", ["works", "breaks"])
def test_a_batch_is_unobserved_however_it_ends(here: Place, task: str) -> None:
    """Each message runs and ends once; a failed batch is neither redelivered nor dead-lettered, and not recorded as a success."""
    ids = [here.send(task, number) for number in range(4)]
    for task_id in ids:
        here.ended(task_id, "unobserved")
        assert here.outcomes_of(task_id) == ["published", "unobserved"]
        assert len(here.runs(task_id)) == 1
    assert here.letters() == []
    until(lambda: here.leftovers() == {}, what="nothing to be held")
    if task == "works":
        assert {here.app.AsyncResult(task_id).state for task_id in ids} == {"SUCCESS"}


def test_a_worker_names_such_tasks(here: Place) -> None:
    """The worker names them in its log when it starts."""
    line = next(line for line in here.workers[0].text.splitlines() if "event=tasks.unobserved" in line)
    assert "tests.support.integrated.batches.breaks (celery_batches.Batches)" in line
