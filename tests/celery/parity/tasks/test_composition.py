"""Composition: `Redelivery(app)` with Django's task class, bases, shared and discovered tasks; explicit options win."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.events import Outcome
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("composition")
TASKS = "tests.support.adopted.tasks"
TWICE = ["published", "redelivery_scheduled", "succeeded"]


class Adopted(Shop):
    """A shop whose worker runs the adopted app; its tasks are named in full."""

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Publish a task; its id."""
        return str(self.app.send_task(task, args, options.pop("kwargs", None), **options).id)

    def result(self, task_id: str) -> Any:
        """What the caller gets."""
        return self.app.AsyncResult(task_id).get(timeout=60, propagate=False)

    def may_run_again(self, task_id: str) -> bool:
        """Whether the broker would redeliver this task's message if its worker died now."""
        client = self.server.client
        accepted = {tag for tag, how in client.hgetall("redelivery:starts").items() if how == b"accepted"}
        return any(task_id.encode() in raw and tag not in accepted for tag, raw in client.hgetall("unacked").items())


@pytest.fixture(scope="module")
def adopted() -> Iterator[Adopted]:
    """One worker for the whole module."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        shop = Adopted(server, Path(name), backend=True, module="tests.support.adopted.app")
        try:
            shop.start("-Q", "celery,plain", concurrency=3)
            yield shop
        finally:
            shop.stop()
            server.stop(9)


@pytest.mark.parametrize("task", ["before", "after", f"{TASKS}.shared", f"{TASKS}.hooked"])
def test_every_task_is_redelivered_wherever_it_was_defined(adopted: Adopted, task: str) -> None:
    """Before or after, shared or autodiscovered, on a base with hooks: no task was edited."""
    task_id = adopted.send(task)
    adopted.ended(task_id, Outcome.SUCCEEDED)
    assert adopted.outcomes_of(task_id) == TWICE


def test_the_apps_own_task_class_stays_in_place(adopted: Adopted) -> None:
    """Its tasks are still instances of Django's `DjangoTask`."""
    task_id = adopted.send("before")
    assert "DjangoTask" in adopted.result(task_id)


def test_nothing_is_configured_or_finalised_early(adopted: Adopted) -> None:
    """The app's configuration comes after `Redelivery(app)`, and counts."""
    assert adopted.result(adopted.send("early")) == [False, False]


def test_the_settings_are_found_under_the_namespace(adopted: Adopted) -> None:
    """`CELERY_REDELIVERY` says three attempts."""
    task_id = adopted.send(f"{TASKS}.shared", 99)
    assert adopted.ended(task_id, Outcome.DEAD_LETTERED).attempt == 3


def test_hooks_are_called_as_celery_calls_them(adopted: Adopted) -> None:
    """To the hooks a redelivery is a retry with the task's own exception; the end is a success or a failure."""
    good, bad = adopted.send(f"{TASKS}.hooked", 2), adopted.send(f"{TASKS}.hooked", 99)
    adopted.ended(good, Outcome.SUCCEEDED)
    adopted.ended(bad, Outcome.DEAD_LETTERED)
    hooks = [(run["hook"], run.get("exc")) for run in adopted.runs(good) if "hook" in run]
    assert hooks == [("before_start", None), ("on_retry", "RuntimeError"), ("before_start", None), ("on_success", None)]
    assert [run["hook"] for run in adopted.runs(bad) if "hook" in run] == [
        *["before_start", "on_retry"] * 2,
        "before_start",
        "on_failure",
    ]


@pytest.mark.parametrize("recurse", [False, True])
def test_a_base_that_answers_for_an_exception_still_does(adopted: Adopted, *, recurse: bool) -> None:
    """Its `__call__` sees the task's own exception, not our decision. A task that calls itself is one attempt."""
    task_id = adopted.send(f"{TASKS}.forgiven", kwargs={"recurse": recurse})
    assert adopted.result(task_id) == "forgiven"
    adopted.ended(task_id, Outcome.SUCCEEDED)
    assert adopted.outcomes_of(task_id) == ["published", "succeeded"]


def test_a_base_that_fails_by_itself_is_redelivered(adopted: Adopted) -> None:
    """An exception that `__call__` raises before the task is a failed attempt of the task."""
    task_id = adopted.send(f"{TASKS}.unforgiven", kwargs={"broken": True})
    adopted.ended(task_id, Outcome.SUCCEEDED)
    assert adopted.outcomes_of(task_id) == TWICE
    assert [run.get("where") for run in adopted.runs(task_id)] == ["call", None]


def test_an_explicit_acks_late_false_is_kept(adopted: Adopted) -> None:
    """Once it has begun, its message is not delivered again; the message of another task would be."""
    release = adopted.folder / "release-explicit"
    late, early = adopted.send(f"{TASKS}.waiter", str(release)), adopted.send(f"{TASKS}.early_one", str(release))
    until(lambda: adopted.runs(late) and adopted.runs(early))
    until(lambda: not adopted.may_run_again(early), what="the early acknowledgement")
    assert adopted.may_run_again(late)
    release.touch()
    adopted.ended(early, Outcome.SUCCEEDED)
    adopted.ended(late, Outcome.SUCCEEDED)


def test_the_lower_of_two_limits_stops_a_retry_and_its_delay_is_its_own(adopted: Adopted) -> None:
    """`max_retries=1` stops at two attempts, the policy's limit at three; `retry_backoff` and `countdown` are kept."""
    own, policy = adopted.send(f"{TASKS}.own_limit"), adopted.send(f"{TASKS}.own_countdown")
    assert adopted.ended(own, Outcome.DEAD_LETTERED).attempt == 2
    assert adopted.ended(policy, Outcome.DEAD_LETTERED).attempt == 3
    delays = {task_id: [event.delay_ms for event in adopted.events_of(task_id) if event.delay_ms] for task_id in (own, policy)}
    assert delays[policy] == [400, 400]
    assert len(delays[own]) == 1


def test_throws_is_kept(adopted: Adopted) -> None:
    """An exception in the task's `throws` is final."""
    task_id = adopted.send(f"{TASKS}.throwing")
    ended = adopted.ended(task_id, Outcome.DEAD_LETTERED)
    assert (ended.attempt, ended.reason) == (1, "non_retryable")


@pytest.mark.parametrize(
    ("task", "queue"),
    [(f"{TASKS}.off_by_table", "celery"), (f"{TASKS}.off_by_decorator", "celery"), (f"{TASKS}.shared", "plain")],
    ids=["task", "decorator", "queue"],
)
def test_what_is_not_enabled_is_plain_celery(adopted: Adopted, task: str, queue: str) -> None:
    """It fails once, leaves no dead letter, and the books have its end."""
    letters = len(adopted.letters()) + len(adopted.letters("DLQ.plain"))
    task_id = adopted.send(task, queue=queue)
    assert isinstance(adopted.result(task_id), RuntimeError)
    assert adopted.ended(task_id, Outcome.DISCARDED).reason == "exhausted"
    assert len(adopted.runs(task_id)) == 1
    assert adopted.outcomes_of(task_id) == ["published", "discarded"]
    assert len(adopted.letters()) + len(adopted.letters("DLQ.plain")) == letters


def test_a_queue_that_is_not_enabled_is_acknowledged_as_celery_does(adopted: Adopted) -> None:
    """By default that is early: while the task runs, the broker no longer has its message."""
    release = adopted.folder / "release-plain"
    task_id = adopted.send(f"{TASKS}.waiter", str(release), queue="plain")
    until(lambda: adopted.runs(task_id))
    until(lambda: not adopted.may_run_again(task_id), what="the early acknowledgement")
    assert adopted.outcomes_of(task_id) == ["published"]
    release.touch()
    adopted.ended(task_id, Outcome.SUCCEEDED)
