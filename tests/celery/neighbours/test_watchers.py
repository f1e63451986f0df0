"""Sentry and OpenTelemetry: one event for a death and none for a redelivery; one span for each attempt, all in one trace."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.integrated import Place, place
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How far apart, in ms, two processes may read the clock; this is far below the delays.
SLACK = 100
pytestmark = pytest.mark.xdist_group("integration_watchers")


@pytest.fixture(scope="module", params=first_quick(["prefork", "threads"]))
def sentry(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A worker with Sentry: started before the app on the one pool, and after it on the other."""
    first = {"SENTRY_FIRST": "1"} if request.param == "prefork" else {}
    with place("sentry", variables=first) as here:
        here.start(pool=request.param)
        yield here


@pytest.fixture(scope="module")
def traced() -> Iterator[Place]:
    """A worker with OpenTelemetry, whose tasks publish others."""
    with place("opentelemetry") as here:
        here.start()
        yield here


def exceptions(here: Place, after: int = 0) -> list[str]:
    """The types of the exceptions in Sentry's events; empty for one that has none."""
    events = [each for each in here.lines("sentry")[after:] if each["kind"] == "event"]
    return [(each.get("exception") or {"values": [{"type": ""}]})["values"][-1]["type"] for each in events]


def transactions(here: Place, task_id: str) -> list[dict[str, Any]]:
    """Sentry's transactions of a task, in order."""
    return [each for each in here.lines("sentry") if each["kind"] == "transaction" and each["tags"]["celery_task_id"] == task_id]


@pytest.mark.parametrize(
    ("task", "args", "attempts", "expected"),
    [
        ("ok", (), 1, []),
        ("fails", (1,), 2, []),
        ("fails", (), 3, ["RuntimeError"]),
        ("retries", (), 3, ["MaxRetriesExceededError"]),
        ("raises", ("dead_letter",), 1, ["DeadLetter"]),
        ("raises", ("reject",), 1, []),
    ],
)
def test_sentry_has_one_event_for_a_death_and_none_for_a_redelivery(
    sentry: Place, task: str, args: tuple[Any, ...], attempts: int, expected: list[str]
) -> None:
    """There is one transaction for each attempt."""
    before = len(sentry.lines("sentry"))
    task_id = sentry.publish(task, *args)
    sentry.over(task_id)
    until(lambda: len(transactions(sentry, task_id)) == attempts, what=f"{attempts} transactions")
    assert exceptions(sentry, before) == expected


def test_sentry_has_the_exception_of_a_lost_child() -> None:
    """The last loss gives one event with its exception; each loss also gives the error line of Python's multiprocessing."""
    with place("sentry") as here:
        here.start()
        task_id = here.publish("kills")
        here.over(task_id)
        until(lambda: "WorkerLostError" in exceptions(here), what="the loss to be told")
        assert Counter(exceptions(here)) == {"WorkerLostError": 1, "": 3}
        assert {each["logger"] for each in here.lines("sentry") if not each.get("exception")} == {"multiprocessing"}


@pytest.mark.full
def test_sentry_has_the_exception_of_a_task_whose_whole_worker_died() -> None:
    """Another worker finds the message and dead-letters it: one event with the exception, and one line that says where it is."""
    with place("sentry", settings={"queues": {"#": {"max_delivery_attempts": 1}}}) as here:
        here.start()
        task_id = here.publish("kills", kwargs={"group": True})
        for _ in range(2):  # the first death is not counted, because no start was recorded
            here.workers[-1].process.wait(60)
            here.start()
        here.over(task_id)
        until(lambda: exceptions(here) == ["WorkerLostError"], what="the loss to be told")
        [line] = [each for each in here.workers[-1].text.splitlines() if "message.dead_lettered" in each]
        assert task_id in line
        assert "WorkerLostError" in line


def test_sentrys_trace_goes_on_through_redeliveries(sentry: Place) -> None:
    """The publication and each of its attempts are in one trace."""
    parent = sentry.send("passes_on", "fails", 1)
    task_id = str(sentry.app.AsyncResult(parent).get(timeout=60))
    sentry.over(task_id)
    until(lambda: len(transactions(sentry, task_id)) == 2, what="both transactions")
    every = transactions(sentry, parent) + transactions(sentry, task_id)
    assert len({each["contexts"]["trace"]["trace_id"] for each in every}) == 1


def test_sentrys_receive_latency_counts_from_when_the_attempt_was_due(sentry: Place) -> None:
    """Not from the first publication: the time that an attempt waited does not include the delays before it."""
    task_id = str(sentry.app.AsyncResult(sentry.send("applies", "fails", 2)).get(timeout=60))
    sentry.over(task_id)
    until(lambda: len(transactions(sentry, task_id)) == 3, what="three transactions")
    scheduled = [each for each in sentry.events_of(task_id) if each.outcome == "redelivery_scheduled"]
    for transaction, event in zip(transactions(sentry, task_id)[1:], scheduled, strict=True):
        [span] = [each for each in transaction["spans"] if "messaging.message.receive.latency" in each["data"]]
        began = datetime.fromisoformat(span["start_timestamp"]).timestamp()
        counted_from = began - span["data"]["messaging.message.receive.latency"] / 1000
        assert event.delay_ms is not None
        assert event.delay_ms > 200
        assert counted_from * 1000 >= event.at_ms + event.delay_ms - SLACK


def spans(here: Place, task_id: str) -> list[dict[str, Any]]:
    """OpenTelemetry's spans of a task, in order."""
    return [each for each in here.lines("spans") if each["attributes"]["messaging.message.id"] == task_id]


@pytest.mark.parametrize("task", ["fails", "retries"])
def test_each_attempt_is_a_span_of_the_trace_that_published_it(traced: Place, task: str) -> None:
    """One publication, and one span below it for each attempt: two retries without an error, and the death with its exception."""
    task_id = str(traced.app.AsyncResult(traced.send("passes_on", task)).get(timeout=60))
    traced.over(task_id)
    published, *runs = until(lambda: found if len(found := spans(traced, task_id)) == 4 else None, what="its spans")
    assert [each["attributes"]["celery.state"] for each in runs] == ["RETRY", "RETRY", "FAILURE"]
    assert [each["status"]["status_code"] for each in runs] == ["UNSET", "UNSET", "ERROR"]
    assert [[event["name"] for event in each["events"]] for each in runs] == [[], [], ["exception"]]
    assert {each["parent_id"] for each in runs} == {published["context"]["span_id"]}
    assert {each["context"]["trace_id"] for each in runs} == {published["context"]["trace_id"]}


def test_a_redriven_letter_is_a_span_of_its_old_trace(traced: Place) -> None:
    """Its header contains the trace in which it was published."""
    task_id = str(traced.app.AsyncResult(traced.send("passes_on", "raises", "dead_letter")).get(timeout=60))
    traced.ended(task_id, "dead_lettered")
    traced.does("-m", "redelivery", "-A", traced.module, "dlq", "redrive", "DLQ.celery", "--id", task_id, "--yes")
    published, first, again = until(lambda: found if len(found := spans(traced, task_id)) == 3 else None, what="its spans")
    assert first["parent_id"] == again["parent_id"] == published["context"]["span_id"]
    assert [each["attributes"]["celery.state"] for each in (first, again)] == ["FAILURE"] * 2
