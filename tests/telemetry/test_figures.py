"""The metrics equal the outcome log, count every process once, and have bounded series. One worker reports the queue depths."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from queue import Queue
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions

from redelivery.middleware.telemetry import forked
from redelivery.middleware.telemetry.figures import DEPTHS, Tally
from redelivery.middleware.telemetry.series import OTHER, UNKNOWN, Series
from tests.support.lanes import FULL
from tests.support.running import until
from tests.telemetry.traced import SETTINGS, Traced, traced

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_number_of_series_is_bounded(more: int) -> None:
    """At N-1, N and N+1 label sets. Any further set counts as `(other)`, however often it comes."""
    series = Series({"shop.pack"}, most=5)
    for number in range(5 + more):
        series.of(f"q{number}", "shop.pack", "succeeded")
    assert series.of("q0", "shop.pack", "succeeded") == ("q0", "shop.pack", "succeeded")
    last = f"q{4 + more}"
    for _ in range(2):
        found = series.of(last, "shop.pack", "succeeded")
        assert found == ((OTHER, OTHER, "succeeded") if more > 0 else (last, "shop.pack", "succeeded"))


def test_names_of_strangers_make_no_series() -> None:
    """However many task names messages have."""
    series = Series({"shop.pack"}, most=5)
    assert {series.of("q\x1b[2J", f"task-{number}") for number in range(50)} == {("q\\x1b[2J", UNKNOWN)}
    assert series.of("q", "shop.pack") == ("q", "shop.pack")


def test_a_child_does_not_tell_what_its_parent_has_counted() -> None:
    """The child begins at 0."""
    tally = Tally("queue", "reason")
    tally.count(("orders", ""))
    tally.count(("orders", ""))
    observe = tally.observed({"messaging.system": "redis"})
    [seen] = observe(CallbackOptions())
    assert (seen.value, seen.attributes) == (2, {"messaging.system": "redis", "queue": "orders"})
    tally.reset()
    assert list(observe(CallbackOptions())) == []


def _ended(shop: Traced) -> Counter[tuple[Any, ...]]:
    return Counter(
        (each.queue, each.task, str(each.outcome), str(each.reason) or None) for each in shop.events if each.outcome != "published"
    )


@pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=FULL)])
def test_figures_are_what_the_outcome_log_says(request: pytest.FixtureRequest, folder: Path, broker: str) -> None:
    """Publications, deliveries, ends by reason, run times and waits: each process counts once."""
    server = request.getfixturevalue("server" if broker == "redis" else "rabbit")
    with traced(
        server, folder, settings={**SETTINGS, "queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 2}}}
    ) as shop:
        shop.start()
        shop.ended(shop.publish("tests.support.shop.kills"), "dead_lettered")
        ended = {shop.publish("tests.support.shop.ok"): "succeeded", shop.publish("tests.support.shop.fails"): "dead_lettered"}
        ended |= {shop.publish("asks_again", 1): "succeeded"}
        for task_id, outcome in ended.items():
            shop.ended(task_id, outcome)
        names = ("messaging.destination.name", "celery.task_name", "redelivery.outcome", "redelivery.reason")
        seen = shop.collector.series
        recorded = _ended(shop)
        # `self.retry` with other arguments is recorded by its publication in the child, and not as an end by the worker.
        anew = [key for key in recorded if key[1].endswith("asks_again") and key[2] == "redelivery_scheduled"]
        expected = recorded - Counter(anew)
        until(
            lambda: seen("redelivery.outcomes", *names) == expected, 30, f"{seen('redelivery.outcomes', *names)} to be {expected}"
        )
        attempts = 1 + 2 + 2 + 2
        assert sum(seen("messaging.client.consumed.messages").values()) == attempts
        # Four producers, and the task that asked for another attempt, perhaps in the child that replaced the killed one.
        until(lambda: seen("messaging.client.sent.messages", "messaging.destination.name")["celery",] == 5, 30, "publications")
        timed = [each for each in shop.events if each.run_ms is not None]
        by_error = seen("messaging.process.duration", "error.type")
        assert sum(by_error.values()) == len(timed)
        assert by_error["RuntimeError",] == 2
        waited = [each for each in shop.events if each.waited_ms is not None]
        assert sum(seen("redelivery.wait.duration").values()) == len(waited) > 0


@pytest.mark.full
def test_children_that_replace_others_tell_their_own_figures_once(server: Any, folder: Path) -> None:
    """Each child runs one task, publishes another one, and ends. It reports its own publication, and nothing of its parent."""
    (folder / "mended").touch()
    with traced(server, folder, conf={"worker_max_tasks_per_child": 1}) as shop:
        shop.start()
        seen = shop.collector.series
        for _ in range(4):  # one after the other: later children are forked from a parent that has already measured
            task_id = shop.publish("recovers")
            shop.ended(task_id, "succeeded")
        until(lambda: len([each for each in shop.events if each.outcome == "succeeded"]) == 8, 30, "what they publish")
        until(lambda: seen("messaging.client.sent.messages", "messaging.destination.name")["celery",] == 8, 30, "the publications")
        until(lambda: sum(seen("messaging.process.duration").values()) == 8, 30, "the run times")
        shop.workers[0].stop()
        series = {(name, process) for name, process, _ in list(shop.collector.figures)}
        runs = {process for name, process in series if name == "messaging.process.duration"}
        assert len(runs) == 1  # the main process
        assert sum(seen("messaging.process.duration").values()) == 8
        children = {process for name, process in series if name == "messaging.client.sent.messages"} - runs
        assert len(children) == 4 + 4  # the producers and the children that have published; each has its own id
        assert seen("messaging.client.sent.messages", "messaging.destination.name")["celery",] == 8


def test_a_forked_process_begins_anew_whatever_its_parent_was_doing() -> None:
    """Threads of the parent collect and export at that moment. The child must not inherit their locks or data."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["parent", "2", "child", "0", "1"], done.stderr


def test_an_sdk_that_is_built_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the internals of an SDK are unknown, nothing is replaced, and nothing fails."""
    for stores in ({}, {"reader": object()}, {"reader": SimpleNamespace(_sdk_config=1)}):
        consumer = SimpleNamespace(_lock="its own", _reader_storages=stores)
        monkeypatch.setattr(metrics, "get_meter_provider", lambda found=consumer: SimpleNamespace(_measurement_consumer=found))
        forked.reset()
        assert vars(consumer) == {"_lock": "its own", "_reader_storages": stores}


def test_a_collector_that_does_not_answer_does_not_keep_a_child_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has a limit; an error does not stop the other exports."""
    asked, answers = Queue[str](), Event()

    def fails(_: int) -> None:
        asked.put("spans")
        raise ConnectionError

    def hangs(_: int) -> None:
        asked.put("figures")
        answers.wait()

    monkeypatch.setattr(forked, "FLUSH", 0.1)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: SimpleNamespace(force_flush=fails))
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: SimpleNamespace(force_flush=hangs))
    forked.flush()
    assert [asked.get(timeout=10), asked.get(timeout=10)] == ["spans", "figures"]
    answers.set()


#: Measures twice, and forks while the SDK's locks are held; the child prints its figures, measures once, and prints them again.
FORKED = """
import os, signal
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from celery import Celery
from redelivery.middleware.telemetry.figures import Figures
reader = InMemoryMetricReader()
provider = MeterProvider([reader])
metrics.set_meter_provider(provider)
figures = Figures(Celery("shop", set_as_current=False), "redis")
histogram = metrics.get_meter("test").create_histogram("lasted")
def counted():
    data = reader.get_metrics_data()
    found = [] if data is None else [
        point.count for resource in data.resource_metrics for scope in resource.scope_metrics
        for metric in scope.metrics if metric.name == "lasted" for point in metric.data.data_points
    ]
    return sum(found)
histogram.record(1)
histogram.record(1)
print("parent", counted(), flush=True)
consumer = provider._measurement_consumer
consumer._lock.acquire()
child = os.fork()
if not child:
    signal.alarm(20)
    print("child", counted(), flush=True)
    histogram.record(1)
    print(counted(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=FULL)])
def test_depths_are_told_by_one_worker(request: pytest.FixtureRequest, folder: Path, broker: str) -> None:
    """With two workers, waiting, delayed and dead messages are reported once."""
    server = request.getfixturevalue("server" if broker == "redis" else "rabbit")
    settings = {**SETTINGS, "queues": {"#": {"max_delivery_attempts": 1}}}
    with traced(server, folder, settings=settings) as shop:
        shop.start()
        shop.start()
        shop.ended(shop.publish("tests.support.shop.fails"), "dead_lettered")
        shop.publish("tests.support.shop.ok", countdown=3600)
        place = "messaging.destination.name"
        seen = shop.collector.series
        until(lambda: seen("redelivery.dead_letters", place)["DLQ.celery",] == 1, 60, "the dead letter to be told")
        until(lambda: sum(seen("redelivery.delayed.messages").values()) == 1, 60, "the delayed message to be told")
        series = {(name, pid) for name, pid, _ in list(shop.collector.figures) if name in DEPTHS}
        assert len({pid for _, pid in series}) == 1
        until(
            lambda: ("redelivery.queue.messages", next(iter(series))[1]) in {(name, pid) for name, pid, _ in shop.collector.figures}
        )
