"""Failures around a task's body: one before it is a failed attempt; after one behind it, a dead letter says that it ran."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.envelope import Envelope
from tests.support.lanes import first_quick
from tests.support.running import Shop
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("around")

SETTINGS = {"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 3}}}


@pytest.fixture(scope="module", params=first_quick(["prefork", "threads"]))
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A worker whose result backend refuses on request; it has one process, which counts the refusals."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        backend = f"tests.support.apps.refusing:Refusing+{server.url.removeprefix('redis+')}"
        here = Shop(server, Path(name), settings=SETTINGS, module="tests.support.apps.around", backend=backend)
        here.start(pool=request.param, concurrency=1)
        yield here
        here.stop()
        server.stop(9)


def asked(shop: Shop, **said: Any) -> str:
    """A task whose arguments say what must fail."""
    return shop.send("runs", kwargs=said)


def run_count(shop: Shop, task_id: str) -> int:
    """How often its body ran."""
    return sum(run.get("event") == "run" for run in shop.runs(task_id))


@pytest.mark.parametrize(
    "said",
    [{"unprepared": 2}, {"refuse": {"STARTED": 2}}, {"refuse": {"STARTED": 2, "RETRY": 2}}],
    ids=["hook", "backend", "twice"],
)
def test_what_has_not_run_is_delivered_again(shop: Shop, said: dict[str, Any]) -> None:
    """By the policy: two attempts fail before the task's body, and the third one runs it."""
    task_id = asked(shop, **said)
    assert shop.ended(task_id, "succeeded").attempt == 3
    assert shop.outcomes_of(task_id) == ["published", "redelivery_scheduled", "redelivery_scheduled", "succeeded"]
    assert run_count(shop, task_id) == 1


@pytest.mark.parametrize(
    ("said", "kind"), [({"unprepared": 9}, "ConnectionError"), ({"refuse": {"STARTED": 9}}, "OperationalError")]
)
def test_what_can_never_be_begun_is_exhausted(shop: Shop, said: dict[str, Any], kind: str) -> None:
    """After its last attempt the exception is on its dead letter; the body never ran."""
    task_id = asked(shop, **said)
    end = shop.ended(task_id, "dead_lettered")
    assert (end.reason, end.attempt) == ("exhausted", 3)
    assert kind in end.exception
    assert run_count(shop, task_id) == 0


@pytest.mark.parametrize("refuse", [{"SUCCESS": 1}, {"SUCCESS": 9, "FAILURE": 9}], ids=["once", "for good"])
def test_what_has_run_and_cannot_be_stored_is_a_letter_that_says_so(shop: Shop, refuse: dict[str, int]) -> None:
    """The work was done once and is not repeated automatically; the caller gets an error if it can be stored."""
    task_id = asked(shop, refuse=refuse)
    end = shop.ended(task_id, "dead_lettered")
    assert (end.reason, end.attempt) == ("result_not_stored", 1)
    assert run_count(shop, task_id) == 1
    [letter] = [each for each in shop.letters() if each["headers"]["id"] == task_id]
    header = Envelope.of(letter["headers"])
    assert header.deaths[0]["reason"] == "result_not_stored"
    assert "database is locked" in str(letter["headers"]["redelivery"]["failure"])
    if "FAILURE" not in refuse:
        assert shop.server.client.get(f"celery-task-meta-{task_id}") is not None
