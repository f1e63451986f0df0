"""Crashes on RabbitMQ: tasks that had begun are counted, other deliveries are not, and a broken connection is not a crash."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, cast

import pytest
from kombu import Connection
from structlog.testing import capture_logs
from webhooks.rabbit_node import USER

from redelivery.errors import BrokerUnavailable
from redelivery.middleware.brokers.rabbitmq.consuming.start_markers import Starts, start_of
from redelivery.middleware.brokers.rabbitmq.names import START
from redelivery.middleware.messages.envelope import HEADER, Envelope
from redelivery.middleware.worker.admission import MAX_UNCOUNTED
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.lanes import first_quick
from tests.support.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit

POLICY_ATTEMPTS = 2
POLICY = {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": POLICY_ATTEMPTS}
CONFIRMED = {"broker_transport_options": {"confirm_publish": True}}


@pytest.fixture
def proxy(rabbit: Rabbit) -> Iterator[Proxy]:
    """The proxy between the workers and their broker."""
    made = Proxy(rabbit.node.port).start()
    yield made
    made.stop()


@pytest.fixture(params=first_quick(["classic", "quorum"]))
def here(request: pytest.FixtureRequest, rabbit: Rabbit, proxy: Proxy, folder: Path) -> Iterator[Shop]:
    """A shop behind the proxy, on each type of queue."""
    kind = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}
    through = rabbit.url.replace(f":{rabbit.node.port}/", f":{proxy.port}/")
    conf = {**CONFIRMED, **(kind if request.param == "quorum" else {})}
    shop = Shop(cast("Any", rabbit), folder, settings={"queues": {"#": POLICY}}, conf=conf, broker=through)
    yield shop
    shop.stop()


def recorded(rabbit: Rabbit) -> list[str]:
    """The starts that are recorded on the broker."""
    return [name for name in rabbit.depths() if name.startswith(START)]


def ran(shop: Shop, task_id: str, times: int) -> None:
    """Wait until the task has begun so many times."""
    until(lambda: len(shop.runs(task_id)) >= times, 120, f"run {times} of the task")


@pytest.mark.slow
def test_what_was_held_beside_crashes_is_never_counted_and_what_had_begun_is(here: Shop, rabbit: Rabbit) -> None:
    """Three workers die with one task running and six waiting: the running task dies of it, and the six succeed uncounted."""
    poison = here.send("naps", 3600)
    innocents = [here.send("ok") for _ in range(6)]
    for times in (1, 2, 3):
        worker = here.start(concurrency=1)
        ran(here, poison, times)
        assert len(recorded(rabbit)) == (times > 1)
        worker.kill()
    here.start(concurrency=1)
    here.ended(poison, "dead_lettered")
    (letter,) = until(here.letters, what="the letter")
    assert (letter["headers"]["id"], Envelope.of(letter["headers"]).attempt) == (poison, 2)
    for each in innocents:
        assert here.ended(each, "succeeded").attempt == 1
    until(lambda: not recorded(rabbit), what="no start to be left")


@pytest.mark.full
def test_a_connection_that_breaks_makes_no_suspects(here: Shop, rabbit: Rabbit, proxy: Proxy) -> None:
    """The connection is cut three times during a task. The task begins again each time, and no attempt is counted against it."""
    worker = here.start(concurrency=4)
    task_id = here.send("naps", 3600)
    for times in (1, 2, 3):
        ran(here, task_id, times)
        proxy.cut()
    ran(here, task_id, 4)
    assert not recorded(rabbit)
    redeliveries = [(event.reason, event.attempt) for event in here.events_of(task_id) if event.outcome == "redelivery_scheduled"]
    assert redeliveries == [("worker_lost", 1)] * 3
    worker.kill()  # the end of the worker itself is a crash
    here.start(concurrency=1)
    ran(here, task_id, 5)
    assert len(recorded(rabbit)) == 1


@pytest.mark.full
def test_a_worker_that_is_told_to_stop_at_once_is_no_crash(here: Shop, rabbit: Rabbit) -> None:
    """SIGQUIT ends a suspect task while it runs: its recorded start is removed, and nothing is counted."""
    task_id = here.send("naps", 3600)
    first = here.start(concurrency=1)
    ran(here, task_id, 1)
    first.kill()
    second = here.start(concurrency=1)
    ran(here, task_id, 2)
    second.stop(signal.SIGQUIT, 60)
    until(lambda: not recorded(rabbit), what="no start to be left")
    here.start(concurrency=1)
    ran(here, task_id, 3)
    assert [event.attempt for event in here.events_of(task_id) if event.outcome == "redelivery_scheduled"] == [1, 1]


@pytest.mark.slow
@pytest.mark.full
def test_a_task_whose_starts_may_not_be_recorded_does_not_kill_workers_for_ever(here: Shop, rabbit: Rabbit) -> None:
    """The worker warns. A task with more uncounted deliveries than an innocent one can have is counted, and dies."""
    rabbit.ctl("set_permissions", USER, "^(?!redelivery.start)", ".*", ".*")
    before = Envelope(delivery=MAX_UNCOUNTED - 2, suspect=True)
    task_id = here.send("naps", 3600, headers={HEADER: before.to_header()})
    workers = []
    for times in range(1, 2 + POLICY_ATTEMPTS + 1):
        workers.append(here.start(concurrency=1, pool="solo"))
        ran(here, task_id, times)
        workers[-1].kill()
    here.start(concurrency=1, pool="solo")
    assert here.ended(task_id, "dead_lettered").reason == "worker_lost"
    assert "start.unsure" in workers[-1].text
    assert not recorded(rabbit)


# the starts themselves


@pytest.fixture
def starts(rabbit: Rabbit) -> Iterator[Starts]:
    """Starts on the test's virtual host."""
    made = Starts(lambda: opened(rabbit.url))
    yield made
    made.close()


def opened(url: str) -> Any:
    """A connection that is open."""
    connection = Connection(url)
    connection.connect()
    return connection


def test_a_start_is_there_until_it_is_taken_away(rabbit: Rabbit, starts: Starts) -> None:
    """Every client sees it; a removed start is gone at the latest when the next one is recorded."""
    other = Starts(lambda: opened(rabbit.url))
    for number in range(50):
        starts.note(f"{START}{number}")
        assert other.has(f"{START}{number}")
        assert not other.has(f"{START}{number - 1}")
        starts.forget(f"{START}{number}")
    other.close()


def test_a_start_is_recorded_over_a_new_connection_where_the_old_one_is_gone(rabbit: Rabbit, proxy: Proxy) -> None:
    """It works after any cut; if the broker does not answer, the task goes on, and the log says what that means."""
    through = rabbit.url.replace(f":{rabbit.node.port}/", f":{proxy.port}/")

    def connect() -> Any:
        if not is_there:
            raise BrokerUnavailable(through)
        return opened(through)

    is_there, starts = True, Starts(connect)
    starts.note(f"{START}a")
    proxy.cut()
    starts.note(f"{START}b")
    assert starts.has(f"{START}b")
    proxy.cut()
    is_there = False
    with capture_logs() as logs:
        starts.note(f"{START}c")
        assert not starts.has(f"{START}b")
    assert [line["event"] for line in logs] == ["start.unsure"] * 2
    starts.close()


def test_each_delivery_of_a_message_has_a_start_of_its_own() -> None:
    """Otherwise a start recorded by a dead worker would count against the next delivery, too."""
    headers: dict[str, Any] = {"id": "t"}
    lives: list[dict[str, Any]] = [{}, {"delivery": 1}, {"delivery": 2}, {"delivery": 1, "generation": 1}]
    names = {start_of({**headers, "redelivery": Envelope(**life).to_header()} if life else headers) for life in lives}
    assert len(names) == len(lives)
    assert start_of(headers) == start_of({"id": "t", "argsrepr": "()"})
