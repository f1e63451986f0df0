"""Delayed consumption: a message does not run before its time, whoever published it, and its due time does not shift."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redelivery import RedeliveryPolicy
from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.messages.ttl import DELIVERY_DELAY, PUBLISHED, TIME_TO_LIVE, due_ms
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.redrive.redrive import redrive
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redelivery.middleware.messages.events import Event

pytestmark = pytest.mark.xdist_group("delivery_delay")

NOW = 1_700_000_000_000
#: Seconds of the queue's delivery delay.
DELAY = 5


def due(headers: dict[str, Any], envelope: Envelope | None = None, eta_ms: int | None = None, **fields: Any) -> int | None:
    """How long after NOW, when it is first seen, a message must wait in the delay store."""
    known = Envelope() if envelope is None else envelope
    found = due_ms(headers, known, RedeliveryPolicy(**fields), seen_ms=NOW, eta_ms=eta_ms, eta_threshold_ms=1000)
    return None if found is None else found - NOW


@pytest.mark.parametrize(
    ("headers", "eta", "delay", "expected"),
    [
        ({}, None, 0, None),
        ({}, None, 2, 2000),
        ({PUBLISHED: NOW - 500}, None, 2, 1500),
        ({PUBLISHED: NOW - 2000}, None, 2, None),
        ({DELIVERY_DELAY: 100}, None, 0, 100),
        ({DELIVERY_DELAY: 5000}, None, 2, 5000),
        ({DELIVERY_DELAY: 500}, None, 2, 2000),
        ({}, 9000, 2, 9000),
        ({}, 1500, 2, 2000),
        ({}, 500, 0, None),
        ({}, 1000, 0, None),
        ({}, 1001, 0, 1001),
        ({DELIVERY_DELAY: 100}, 500, 0, 500),
        ({DELIVERY_DELAY: "5000"}, None, 0, None),
        ({DELIVERY_DELAY: True}, None, 0, None),
    ],
)
def test_the_latest_of_all_delays_applies(headers: dict[str, Any], eta: int | None, delay: float, expected: int | None) -> None:
    """The ETA (beyond the threshold; below it the worker waits), the header, and the queue's delay since the publication."""
    assert due(headers, eta_ms=None if eta is None else NOW + eta, delivery_delay=delay) == expected


@pytest.mark.parametrize(
    "known",
    [
        Envelope(attempt=1),
        Envelope(generation=1),
        Envelope(deaths=({"queue": "q", "reason": "rejected"},)),
        Envelope(served_eta="2026-01-01T00:00:00+00:00"),
    ],
    ids=["redelivered", "redriven", "dead", "promoted by hand"],
)
def test_a_life_waits_once(known: Envelope) -> None:
    """A message that has run, died, or left the delay store does not wait for the delivery delay again."""
    assert due({"eta": known.served_eta}, known, delivery_delay=2) is None


def test_a_suspect_that_did_not_wait_still_waits() -> None:
    """Its worker died before it had put the message into the delay store, so its delay is not over."""
    assert due({}, Envelope(delivery=1, suspect=True, first_seen_ms=NOW - 500), delivery_delay=2) == 1500


class Later(Shop):
    """A shop with one worker. `sent` names its messages, published at the same time; `missed` was due before the worker started."""

    sent: dict[str, str]
    plain_sent: str
    missed: str
    began_ms: float
    eta: datetime


@pytest.fixture(scope="module")
def here() -> Iterator[Later]:
    """A worker of a queue with a delivery delay, and of one without; all messages wait at the same time."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        queues = {
            "#": {"redelivery_delay": 0.2, "max_delivery_attempts": 2},
            "later": {"delivery_delay": DELAY},
            "queue.b": {"max_time_to_live": DELAY, "expiry_queue": "queue.a"},
        }
        known = {queue: {"exchange": queue, "routing_key": queue} for queue in ("celery", "queue.b")}
        made = Later(
            server, Path(name), settings={"queues": queues}, conf={"task_queues": known}, module="tests.support.apps.deaths"
        )
        made.missed = made.send("ok", queue="later")
        began = server.client.time()[0]
        until(lambda: server.client.time()[0] > began + DELAY, what="the delay to pass, by the server's clock")
        made.start("-Q", "celery,later,queue.a", pool="threads")
        made.began_ms = time.time() * 1000
        made.eta = datetime.now(UTC) + timedelta(seconds=DELAY + 4)
        plain = Shop(server, Path(name), plain=True, module="tests.support.apps.deaths")
        made.plain_sent = plain.send("ok", queue="later")
        made.sent = {
            "queue": made.send("ok", queue="later"),
            "header": made.send("ok", headers={DELIVERY_DELAY: DELAY * 1000 + 500}),
            "shorter header": made.send("ok", queue="later", headers={DELIVERY_DELAY: 500}),
            "longer header": made.send("ok", queue="later", headers={DELIVERY_DELAY: DELAY * 1000 + 1500}),
            "earlier eta": made.send("ok", queue="later", countdown=0.5),
            "later eta": made.send("ok", queue="later", eta=made.eta),
            "fails": made.send("fails", queue="later"),
            "expires": made.send("ok", headers={DELIVERY_DELAY: 3_600_000, TIME_TO_LIVE: DELAY * 1000}),
            "solace": made.send("ok", queue="queue.b"),
            "an hour": made.send("ok", headers={DELIVERY_DELAY: 3_600_000}),
        }
        yield made
        made.stop()
        server.stop(9)


def deferred(here: Shop, task_id: str) -> Event:
    """The event that says until when it waits; also checks that it ran once, and not before."""
    event = here.ended(task_id, "deferred")
    here.ended(task_id, "succeeded")
    (run,) = here.runs(task_id)
    assert event.due_ms is not None
    assert run["at"] * 1000 >= event.due_ms
    return event


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("queue", DELAY * 1000),
        ("header", DELAY * 1000 + 500),
        ("shorter header", DELAY * 1000),
        ("longer header", DELAY * 1000 + 1500),
        ("earlier eta", DELAY * 1000),
    ],
)
def test_a_message_waits_from_its_publication_on(here: Later, name: str, after: int) -> None:
    """It waits for the latest of its delays. The publication time is the broker's, noted in the message."""
    task_id = here.sent[name]
    event = deferred(here, task_id)
    assert here.outcomes_of(task_id) == ["published", "deferred", "succeeded"]
    assert event.due_ms == pytest.approx(here.events_of(task_id)[0].at_ms + after, abs=20)


def test_a_later_eta_is_waited_for_instead(here: Later) -> None:
    """The later of the two times counts, and there is one wait for both."""
    task_id = here.sent["later eta"]
    assert deferred(here, task_id).due_ms == pytest.approx(here.eta.timestamp() * 1000, abs=1)
    assert here.outcomes_of(task_id) == ["published", "deferred", "succeeded"]


def test_a_plain_producers_message_waits_from_its_first_sight_on(here: Later) -> None:
    """Its publication time was not noted; if a worker lives, it sees the message at once."""
    event = deferred(here, here.plain_sent)
    assert event.due_ms is not None
    assert event.due_ms >= here.began_ms + DELAY * 1000 - 1
    assert here.outcomes_of(here.plain_sent) == ["received", "deferred", "succeeded"]


def test_what_is_due_already_does_not_wait(here: Later) -> None:
    """It was published, and its delay passed, before the worker started."""
    here.ended(here.missed, "succeeded")
    assert here.outcomes_of(here.missed) == ["published", "succeeded"]


def test_a_redelivery_and_a_redriven_message_do_not_wait_again(here: Later) -> None:
    """The delay is between publication and the first attempt."""
    task_id = here.sent["fails"]
    here.ended(task_id, "dead_lettered")
    assert here.outcomes_of(task_id) == ["published", "deferred", "redelivery_scheduled", "dead_lettered"]
    assert redrive(here.app.redelivery.transport, "DLQ.later", Filter(task_ids=frozenset({task_id}))).moved == 1
    until(lambda: here.outcomes_of(task_id).count("dead_lettered") == 2, what="its second life to end")
    assert here.outcomes_of(task_id)[4:] == ["redriven", "redelivery_scheduled", "dead_lettered"]


def test_solaces_recipe_works_as_it_is_written(here: Later) -> None:
    """Queue B has no consumer, a time to live, and queue A as its dead-letter queue: the consumer of A runs the message (S10)."""
    task_id = here.sent["solace"]
    here.ended(task_id, "succeeded")
    events = here.events_of(task_id)
    assert [(event.outcome, event.reason) for event in events] == [
        ("published", ""),
        ("dead_lettered", "expired"),
        ("redriven", ""),
        ("succeeded", ""),
    ]
    (run,) = here.runs(task_id)
    assert run["at"] * 1000 >= events[0].at_ms + DELAY * 1000
    assert (here.letters("queue.b"), here.letters("queue.a")) == ([], [])


def test_what_waits_says_so_to_a_plain_worker(here: Later) -> None:
    """The waiting message carries its due time as an ETA, in Celery's format."""
    task_id = here.sent["an hour"]
    event = here.ended(task_id, "deferred")
    raws = here.server.client.hvals("redelivery:delayed:messages:celery")
    (message,) = [each for each in map(json.loads, raws) if each["headers"]["id"] == task_id]
    assert event.due_ms is not None
    assert datetime.fromisoformat(message["headers"]["eta"]).timestamp() * 1000 == pytest.approx(event.due_ms, abs=1)


def test_a_message_that_expires_before_it_is_due_dies_then(here: Later) -> None:
    """It would be due in an hour, but expires before."""
    task_id = here.sent["expires"]
    assert here.ended(task_id, "dead_lettered").reason == "expired"
    assert here.outcomes_of(task_id) == ["published", "deferred", "dead_lettered"]
    assert here.runs(task_id) == []


def test_a_due_time_survives_a_restart_of_worker_dispatcher_and_broker(shop: Callable[..., Shop]) -> None:
    """All three are killed while it waits; its due time is unchanged, and it runs then."""
    delay = 8
    here = shop(settings={"queues": {"#": {"delivery_delay": delay}}}, module="tests.support.apps.deaths")
    here.server.keep_everything()
    worker = here.start(pool="solo")
    task_id = here.send("ok")
    event = here.ended(task_id, "deferred")
    published = here.events_of(task_id)[0].at_ms
    worker.kill()
    here.server.kill()
    here.server.start()
    ((_, score),) = here.server.client.zrange("redelivery:delayed:due:celery", 0, -1, withscores=True)
    assert score == event.due_ms == pytest.approx(published + delay * 1000, abs=20)
    here.start(pool="solo")
    here.ended(task_id, "succeeded")
    (run,) = here.runs(task_id)
    assert run["at"] * 1000 >= score
    assert here.outcomes_of(task_id) == ["published", "deferred", "succeeded"]
