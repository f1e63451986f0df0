"""Other brokers that kombu knows: the same policies; what such a broker cannot promise is declared, logged at start, or refused.

`tests/conformance/` has the lives and the handlers; this module has what is true of these brokers only.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from kombu.transport import filesystem

from redelivery.middleware.brokers.kombu.generic import capabilities_of
from redelivery.middleware.messages.envelope import HEADER, Envelope
from redelivery.middleware.ports import Capability
from tests.support.files import Files
from tests.support.lanes import first_quick
from tests.support.running import ROOT, Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POLICY = {"redelivery_delay": 0.2, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 3}


@pytest.fixture
def files(folder: Path) -> Files:
    """A broker of the test's own."""
    return Files(folder)


@pytest.fixture
def filed(files: Files) -> Iterator[Callable[..., Shop]]:
    """Makes shops on it."""
    made: list[Shop] = []

    def make(**options: Any) -> Shop:
        server: Any = files
        options["conf"] = files.conf | options.get("conf", {})
        made.append(Shop(server, files.folder, **{"settings": {"queues": {"#": POLICY}}, **options}))
        return made[-1]

    yield make
    for each in made:
        each.stop()


# in a worker


@pytest.mark.parametrize("pool", first_quick(["solo", "threads", "gevent"]))
def test_a_policy_holds_on_every_pool(filed: Callable[..., Shop], pool: str) -> None:
    """Attempts, their delays, a dead letter and an ETA are as on any broker; the conformance suite covers prefork."""
    shop = filed()
    shop.start(pool=pool)
    began = time.time()
    delayed = shop.send("ok", countdown=1)
    held = shop.send("ok", headers={"redelivery-delivery-delay-ms": 1000})
    expiring = shop.send("ok", countdown=600, expires=1)
    twice, always = shop.send("fails", 2), shop.send("fails")
    assert shop.ended(twice, "succeeded").attempt == 3
    assert shop.ended(always, "dead_lettered").reason == "exhausted"
    assert shop.ended(expiring, "dead_lettered").reason == "expired"
    for each in (delayed, held):
        shop.ended(each, "succeeded")
        assert [run["at"] >= began + 1 for run in shop.runs(each)] == [True]
    times = [run["at"] for run in shop.runs(always)]
    assert [later - earlier >= 0.14 for earlier, later in pairwise(times)] == [
        True,
        True,
    ]  # 0.2 s, a quarter less
    assert {letter["headers"]["id"] for letter in shop.letters()} == {always, expiring}
    assert shop.leftovers() == {}


def test_a_worker_in_the_same_process_has_the_memory_transport() -> None:
    """As in a test without a broker: nothing is different, and a header that JSON cannot hold survives as text."""
    command = [sys.executable, "-m", "tests.support.apps.memory_shop"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    again = ["redelivery_scheduled 1", "redelivery_scheduled 2"]
    assert found["twice"]["outcomes"] == ["received 1", *again, "succeeded 3"]
    assert found["always"]["outcomes"] == ["received 1", *again, "dead_lettered 3"]
    assert (found["always"]["letter"], found["odd"]["letter"], found["twice"]["letter"]) == ("exhausted", "non_retryable", False)
    for name in ("delayed", "held"):
        assert found[name]["outcomes"] == ["received 1", "succeeded 1"]
        assert [at >= 1 for at in found[name]["runs"]] == [True]


def test_what_waits_in_a_worker_that_stops_goes_back_as_it_came(filed: Callable[..., Shop], files: Files) -> None:
    """A message that waits in the worker goes back with its ETA, unmarked and uncounted."""
    shop = filed()
    worker = shop.start(pool="threads")
    task_id = shop.send("ok", countdown=600)
    shop.ended(task_id, "received")
    assert files.messages("celery") == []
    assert worker.stop() == 0
    (message,) = files.messages("celery")
    assert message["headers"]["id"] == task_id
    assert message["headers"]["eta"] is not None
    assert HEADER not in message["headers"]
    assert not message["properties"]["delivery_info"].get("redelivered")


def test_a_cold_shutdown_puts_back_what_it_ended_marked(filed: Callable[..., Shop], files: Files) -> None:
    """Each goes back once and unchanged; the next worker sees a redelivery, and counts it as the first delivery."""
    shop = filed()
    worker = shop.start(concurrency=1)
    task_id = shop.send("stalls")
    until(lambda: shop.runs(task_id), what="the task to have begun")
    worker.stop(signal.SIGQUIT)
    assert [each["headers"]["id"] for each in files.messages("celery")] == [task_id]
    shop.start(concurrency=1)
    assert shop.ended(task_id, "succeeded").attempt == 1
    assert len(shop.runs(task_id)) == 2


def test_a_broker_that_takes_nothing_is_waited_for(filed: Callable[..., Shop], files: Files) -> None:
    """While the broker refuses publications, the failed task stays held; then its copy is published and delivered."""
    out = files.folder / "out"
    out.symlink_to(files.queues)
    options = {**files.conf["broker_transport_options"], "data_folder_out": str(out)}
    shop = filed(conf={"broker_transport_options": options})
    task_id = shop.send("fails", 1)
    out.unlink()
    worker = shop.start(pool="threads")
    until(lambda: "event=transition.postponed" in worker.text, what="the transition to wait")
    assert files.messages("celery") == []
    out.symlink_to(files.queues)
    assert shop.ended(task_id, "succeeded").attempt == 2
    assert len(shop.runs(task_id)) == 2


def test_an_observing_worker_records_what_celery_did(filed: Callable[..., Shop], files: Files) -> None:
    """It changes nothing: the task fails once, and is gone."""
    shop = filed(settings={"mode": "observe"})
    shop.start(pool="threads")
    task_id = shop.send("fails")
    assert shop.ended(task_id, "discarded").reason == "exhausted"
    assert len(shop.runs(task_id)) == 1
    assert files.letters() == []


# a worker that is killed


@pytest.mark.parametrize(("task", "args", "left"), [("fails", (1,), "celery"), ("raises", ("dead_letter",), "DLQ.celery")])
def test_a_kill_between_publishing_and_acknowledging_leaves_the_copy_alone(
    filed: Callable[..., Shop], files: Files, task: str, args: tuple[Any, ...], left: str
) -> None:
    """On the filesystem a delivery removes the message, so its copy is the only one: nothing is lost, and nothing runs twice.

    The worker takes one message at a time: it would lose the copy if it had taken that, too, when it is killed.
    """
    shop = filed(module="tests.support.rabbitmq.boundary_shop", conf={"worker_prefetch_multiplier": 1})
    (files.folder / "order").write_text("acknowledge")
    worker = shop.start(pool="threads", concurrency=1)
    task_id = str(shop.app.send_task(f"tests.support.shop.{task}", args).id)
    assert worker.process.wait(60) == -signal.SIGKILL
    assert [(each["headers"]["id"], Envelope.of(each["headers"]).attempt) for each in files.messages(left)] == [(task_id, 1)]
    shop.start(pool="threads")
    if left == "celery":
        assert shop.ended(task_id, "succeeded").attempt == 2
    shop.ended(str(shop.app.send_task("tests.support.shop.ok").id), "succeeded")
    assert [run["attempt"] for run in shop.runs(task_id)] == ([1, 2] if left == "celery" else [1])
    assert shop.leftovers() == {}


def test_what_a_worker_holds_when_it_is_killed_is_lost_and_the_start_says_so(filed: Callable[..., Shop], files: Files) -> None:
    """If the worker dies before it publishes a copy, the message is lost, because kombu keeps none; the start-up line says so."""
    assert Capability.KEPT_UNTIL_ACKNOWLEDGED not in capabilities_of(filesystem.Channel)
    shop = filed(module="tests.support.rabbitmq.boundary_shop")
    (files.folder / "order").write_text("publish")
    worker = shop.start(pool="threads")
    shop.app.send_task("tests.support.shop.fails")
    assert worker.process.wait(60) == -signal.SIGKILL
    assert shop.leftovers() == {}
    assert files.letters() == []
    (line,) = [line for line in worker.text.splitlines() if "event=broker.limits" in line]
    assert "what a worker holds when it is killed is lost" in line
    assert "transport=filesystem" in line
