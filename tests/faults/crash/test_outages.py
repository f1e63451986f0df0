"""Outages, one at a time, on a real worker: lost replies, a full broker, a stalled worker, silence, large bodies.

Meanwhile a client inspects the workers, and a solo worker is blocked by its only task for a minute. After each test the whole
outcome log is judged: nothing is lost, each life has one end, each task that ran twice is named.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import tempfile
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from redelivery import Redelivery
from redelivery.middleware.brokers.redis.scripts import Script
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.operators.balance import assert_balanced
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.xdist_group("outages"), pytest.mark.usefixtures("inspector")]

LEASE = 2
MINUTE = 60
INSPECTED = ("active", "reserved", "scheduled", "revoked", "stats", "active_queues", "registered")
SETTINGS = {"lease": LEASE, "queues": {"#": {"redelivery_delay": 0.2, "max_delivery_attempts": 3}}}


class ProxiedShop(Shop):
    """A broker behind a proxy, with one worker that the tests share; producers and checks use the broker directly."""

    proxy: Proxy

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Publish directly, without the proxy."""
        module = "tests.faults.chaos.chaos_app" if task == "lags" else "tests.support.shop"
        options.setdefault("queue", None if "exchange" in options else "celery")
        return str(self.direct.send_task(f"{module}.{task}", args, **options).id)

    @property
    def direct(self) -> Any:
        """The producer's app."""
        if self._app is None:
            self._app = self.producer()
        return self._app

    def producer(self) -> Any:
        """A new app that does not use the proxy."""
        app = Celery("producer", broker=self.server.url, set_as_current=False)
        app.conf.update(redelivery=self.settings)
        Redelivery(app)
        return app


class Inspector:
    """Sends the workers every remote-control question again and again; `answers` counts the answers."""

    def __init__(self, proxied: ProxiedShop) -> None:
        self.answers: Counter[str] = Counter()
        self._app = proxied.producer()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inspector", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, after the current question."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for name in INSPECTED:
                try:
                    self.answers[name] += bool(getattr(self._app.control.inspect(timeout=1), name)())
                except (OperationalError, RedisError):
                    self.answers["refused"] += 1  # by a full broker, for instance


@pytest.fixture(scope="module")
def inspector(proxied: ProxiedShop) -> Iterator[Inspector]:
    """Begins with the first test, and ends with the last."""
    inspector = Inspector(proxied)
    yield inspector
    inspector.stop()


@pytest.fixture(scope="module")
def blocked(proxied: ProxiedShop) -> str:
    """A worker whose event loop is blocked for a minute, from the first test on, by a task."""
    proxied.start("-Q", "minute", pool="solo")
    task_id = proxied.send("naps", MINUTE, queue="minute")
    until(lambda: proxied.runs(task_id), what="the minute to begin")
    return task_id


@pytest.fixture(autouse=True)
def judged(proxied: ProxiedShop, blocked: str) -> Iterator[None]:
    """Judge the log after each test."""
    yield
    assert_balanced(proxied, running=frozenset({blocked}))


@pytest.fixture(scope="module")
def proxied() -> Iterator[ProxiedShop]:
    """One broker, one proxy, one worker on prefork."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        proxied = ProxiedShop(server, Path(name), settings=SETTINGS, module="tests.faults.chaos.chaos_app")
        proxied.proxy = Proxy(server.socket).start()
        proxied.broker = proxied.proxy.url
        proxied.start("-Q", "celery,left,right")
        yield proxied
        proxied.stop()
        proxied.proxy.stop()
        server.stop(9)


@pytest.mark.parametrize(
    ("script", "task", "args", "outcomes"),
    [
        ("acknowledge", "ok", [], ["succeeded"]),
        ("defer", "fails", [1], ["redelivery_scheduled", "succeeded"]),
        ("dead_letter", "raises", ["dead_letter"], ["dead_lettered"]),
        ("receive", "ok", [], ["succeeded"]),
    ],
)
def test_a_reply_that_is_lost_in_flight_is_no_step_twice(
    proxied: ProxiedShop, script: str, task: str, args: list[Any], outcomes: list[str]
) -> None:
    """The broker has done the step, but its reply is lost with the connection: the worker asks again, and it happens once."""
    before, letters = proxied.proxy.swallowed, len(proxied.letters())
    proxied.proxy.swallow_reply(Script(script).sha.encode())
    task_id = proxied.send(task, *args)
    proxied.ended(task_id, outcomes[-1])
    assert proxied.proxy.swallowed == before + 1
    assert proxied.outcomes_of(task_id) == ["published", *outcomes]
    assert len(proxied.runs(task_id)) == len(outcomes)
    assert len(proxied.letters()) == letters + (outcomes[-1] == "dead_lettered")


def test_a_publication_to_two_queues_is_two_messages(proxied: ProxiedShop) -> None:
    """An exchange with two queues gives both messages the same tag: the task runs once from each, and both lives end."""
    task_id = proxied.send("ok", exchange="twins", routing_key="twins")
    until(lambda: proxied.outcomes_of(task_id).count("succeeded") == 2, what="both to end")
    assert sorted(event.queue for event in proxied.events_of(task_id) if event.outcome == "succeeded") == ["left", "right"]
    assert len(proxied.runs(task_id)) == 2


def test_remote_control_answers_again_after_an_outage(proxied: ProxiedShop) -> None:
    """During the outage there is no answer; afterwards there is, and tasks that ran meanwhile have run once."""
    task_id = proxied.send("naps", LEASE * 2)
    until(lambda: proxied.runs(task_id), what="the nap to begin")
    proxied.proxy.black_hole()
    try:
        assert proxied.direct.control.ping(timeout=1) == []
        assert proxied.direct.control.inspect(timeout=1).active() is None
    finally:
        proxied.proxy.let_through()
    proxied.proxy.cut()
    until(lambda: proxied.direct.control.ping(timeout=2), what="an answer")
    until(lambda: proxied.direct.control.inspect(timeout=2).active_queues(), what="an answer")
    proxied.ended(task_id, "succeeded")
    assert [run["event"] for run in proxied.runs(task_id)] == ["start", "end"]
    assert proxied.outcomes_of(task_id) == ["published", "succeeded"]


def test_a_full_broker_is_worked_off(proxied: ProxiedShop) -> None:
    """At `maxmemory` publishing is refused, but waiting tasks run and are acknowledged, and then all works again."""
    ids = [proxied.send("naps", 0.2) for _ in range(12)]
    proxied.server.client.config_set("maxmemory", 1)
    try:
        with pytest.raises((OperationalError, RedisError)):
            proxied.send("ok", retry=False)
        for task_id in ids:
            proxied.ended(task_id, "succeeded")
    finally:
        proxied.server.client.config_set("maxmemory", 0)
    proxied.ended(proxied.send("ok"), "succeeded")
    for task_id in ids:
        assert proxied.outcomes_of(task_id) == ["published", "succeeded"]
        assert [run["event"] for run in proxied.runs(task_id)] == ["start", "end"]


def test_large_and_deep_bodies_pass_or_die_and_cost_the_worker_nothing(proxied: ProxiedShop) -> None:
    """32 MB run; a body that is nested too deep for any decoder is dead-lettered unchanged; later messages run."""
    large = proxied.send("ok", "y" * (32 << 20))
    deep = str(uuid.uuid4())
    message: dict[str, Any] = {
        "body": base64.b64encode(b"[" * 200_000).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": deep, "task": "tests.support.shop.ok"},
        "properties": {
            "delivery_tag": deep,
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "priority": 0,
        },
    }
    proxied.server.client.lpush("celery", json.dumps(message))
    garbage = b"[" * 150_000
    proxied.server.client.lpush("celery", garbage)
    behind = proxied.send("ok")
    for task_id in (large, behind):
        proxied.ended(task_id, "succeeded")
    assert proxied.ended(deep, "dead_lettered").reason == "undecodable"
    for kept in (message["body"].encode(), base64.b64encode(garbage)):
        until(lambda kept=kept: any(kept in raw for raw in proxied.server.client.lrange("DLQ.celery", 0, -1)), what="the bytes")  # type: ignore[misc]


def test_a_stalled_worker_neither_retries_nor_dead_letters_what_is_no_longer_its_own(proxied: ProxiedShop) -> None:
    """SIGSTOP past the lease, then SIGCONT: both transitions are refused and logged, and each message has one history."""
    stalled = proxied.start("-Q", "aside", pool="threads")
    retried, dead = proxied.send("lags", 1, "retry", queue="aside"), proxied.send("lags", 1, "die", queue="aside")
    until(lambda: proxied.runs(retried) and proxied.runs(dead), what="both to begin")
    os.killpg(stalled.process.pid, signal.SIGSTOP)
    proxied.direct.control.add_consumer("aside", destination=["w0@shop"])
    proxied.ended(retried, "succeeded")
    proxied.ended(dead, "dead_lettered")
    os.killpg(stalled.process.pid, signal.SIGCONT)
    until(lambda: stalled.text.count("transition.refused") >= 2, what="both refusals")
    assert proxied.outcomes_of(retried) == ["published", "redelivery_scheduled", "redelivery_scheduled", "succeeded"]
    assert proxied.outcomes_of(dead) == ["published", "redelivery_scheduled", "dead_lettered"]
    assert [event.reason for event in proxied.events_of(dead)] == ["", "worker_lost", "non_retryable"]
    assert sum(letter["headers"]["id"] == dead for letter in proxied.letters("DLQ.aside")) == 1
    stalled.kill()
    proxied.direct.control.cancel_consumer("aside", destination=["w0@shop"])


@pytest.mark.full
def test_a_solo_worker_that_is_blocked_for_a_minute_keeps_its_lease(proxied: ProxiedShop, blocked: str) -> None:
    """Its task blocks the event loop for thirty leases; the other workers watch, and do not take it for dead."""
    proxied.ended(blocked, "succeeded", 3 * MINUTE)
    assert [run["event"] for run in proxied.runs(blocked)] == ["start", "end"]
    assert proxied.outcomes_of(blocked) == ["published", "succeeded"]


@pytest.mark.full
def test_remote_control_is_answered_when_all_is_over(proxied: ProxiedShop, inspector: Inspector) -> None:
    """After all outages, each question of remote control is answered again."""
    before = inspector.answers.copy()
    until(lambda: all(inspector.answers[name] > before[name] for name in INSPECTED), 120, "an answer to each question")
    assert proxied.direct.control.ping(timeout=5)
