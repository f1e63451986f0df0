"""Expiry: a message whose time is over dies with reason `expired`, before, while and after it waits in the delay store."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import TaskRevokedError

from redelivery import RedeliveryPolicy
from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.messages.ttl import PUBLISHED, TIME_TO_LIVE, expiry_ms
from redelivery.middleware.ports import Answer
from redelivery.workers.brokers.redis.delay_store import RedisDelayStore
from redelivery.workers.operations.delayed.changes import reschedule
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.redrive.redrive import redrive
from redelivery.workers.testing.clock import aged
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("expiry")

NOW = 1_700_000_000_000
HOUR = 3600


def ends(headers: dict[str, Any], envelope: Envelope | None = None, expires_ms: int | None = None, **fields: Any) -> int | None:
    """How long after NOW, when it is first seen, a message with these headers and this policy expires."""
    properties = {"expiration": headers.pop("expiration")} if "expiration" in headers else {}
    known = Envelope() if envelope is None else envelope
    found = expiry_ms(headers, properties, known, RedeliveryPolicy(**fields), seen_ms=NOW, expires_ms=expires_ms)
    return None if found is None else found - NOW


@pytest.mark.parametrize(
    ("headers", "expires_ms", "fields", "expected"),
    [
        ({}, None, {}, None),
        ({TIME_TO_LIVE: 5000}, None, {}, 5000),
        ({TIME_TO_LIVE: 0}, None, {}, 0),
        ({}, NOW + 7000, {}, 7000),
        ({}, None, {"max_time_to_live": 3}, 3000),
        ({TIME_TO_LIVE: 5000}, NOW + 7000, {"max_time_to_live": 9}, 5000),
        ({TIME_TO_LIVE: 9000}, NOW + 7000, {"max_time_to_live": 60}, 7000),
        ({TIME_TO_LIVE: 9000}, NOW + 7000, {"max_time_to_live": 3}, 3000),
        ({TIME_TO_LIVE: 5000}, NOW + 7000, {"respect_time_to_live": False}, None),
        ({TIME_TO_LIVE: 5000}, NOW + 7000, {"respect_time_to_live": False, "max_time_to_live": 60}, 60_000),
    ],
)
def test_the_least_time_to_live_applies(headers: Any, expires_ms: int | None, fields: dict[str, Any], expected: int | None) -> None:
    """The producer's two and the queue's; only the queue's if the message's own is not respected (Solace S6)."""
    assert ends(headers, expires_ms=expires_ms, **fields) == expected


@pytest.mark.parametrize("value", ["5000", None, True, -1, 10**16, [5000]])
def test_a_time_to_live_that_cannot_be_read_counts_as_none(value: Any) -> None:
    """Any client may write the header, so it may hold anything."""
    assert ends({TIME_TO_LIVE: value}) is None


def test_it_counts_from_the_publication_where_that_was_noted() -> None:
    """The broker's time of publication, not the time at which a worker saw it."""
    assert ends({PUBLISHED: NOW - 4000, TIME_TO_LIVE: 5000}) == 1000
    assert ends({PUBLISHED: NOW - 4000}, max_time_to_live=3) == -1000


@pytest.mark.parametrize("wrong_by", [-3_600_000, 0, 3_600_000])
def test_the_clock_of_our_own_producer_does_not_matter(wrong_by: int) -> None:
    """Beside `expires`, the message says how long that is; this counts from the broker's time of publication."""
    assert ends({PUBLISHED: NOW, "expiration": "60000"}, expires_ms=NOW + 60_000 + wrong_by) == 60_000


def test_it_counts_from_first_sight_where_nothing_was_noted() -> None:
    """A redelivered message was first seen at its first delivery, not now."""
    assert ends({TIME_TO_LIVE: 5000}, Envelope(attempt=1, first_seen_ms=NOW - 2000)) == 3000


def test_a_letter_does_not_expire_and_a_redriven_message_begins_anew() -> None:
    """Expiry ends with death (RabbitMQ R6); a new life has the full time again."""
    deaths = ({"queue": "q", "reason": "expired", "last": NOW - 1000},)
    assert ends({}, Envelope(deaths=deaths, first_seen_ms=NOW - 5000), max_time_to_live=1) is None
    assert ends({}, Envelope(deaths=deaths, generation=1), max_time_to_live=1) == 1000
    assert ends({}, Envelope(deaths=deaths, generation=1, attempt=1, first_seen_ms=NOW - 300), max_time_to_live=1) == 700


SETTINGS = {
    "queues": {
        "#": {"redelivery_delay": 0.2, "max_delivery_attempts": 3},
        "brief.#": {"max_time_to_live": 3, "redelivery_delay": 600},
        "brief.failing": {"max_time_to_live": 5},
        "brief.elsewhere": {"expiry_queue": "gone", "dead_letter_queue": None},
        "brief.nowhere": {"dead_letter_queue": None},
        "deaf": {"respect_time_to_live": False},
        "lasting": {"max_time_to_live": 1e14},
        "unread": {"max_time_to_live": 3},
    },
}
CONSUMED = "celery,brief,brief.failing,brief.elsewhere,brief.nowhere,deaf,lasting,paused"


class Expiring(Shop):
    """A shop with one worker; `early` names messages that expired before it started, `late` those published afterwards."""

    early: dict[str, str]
    late: dict[str, str]
    plain_early: str


@pytest.fixture(scope="module")
def here() -> Iterator[Expiring]:
    """Messages are published, their time passes, then the worker starts."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        queues = {queue: {"exchange": queue, "routing_key": queue} for queue in ("celery", "unread")}
        conf = {"task_queues": queues}
        made = Expiring(server, Path(name), settings=SETTINGS, conf=conf, backend=True, module="tests.support.apps.deaths")
        made.early = {
            "expires": made.send("ok", expires=0.1),
            "header": made.send("ok", headers={TIME_TO_LIVE: 100}),
            "lesser": made.send("ok", headers={TIME_TO_LIVE: 3_600_000}, expires=0.1),
            "queue": made.send("ok", queue="brief"),
            "elsewhere": made.send("ok", queue="brief.elsewhere"),
            "nowhere": made.send("ok", queue="brief.nowhere"),
            "not eligible": made.send("ok", queue="brief", headers={"redelivery-dead-letter-eligible": False}),
            "with an eta": made.send("ok", expires=0.1, countdown=3600),
            "not respected": made.send("ok", queue="deaf", expires=0.1, headers={TIME_TO_LIVE: 100}),
            "unread": made.send("ok", queue="unread"),
        }
        plain = Shop(server, Path(name), plain=True, module="tests.support.apps.deaths")
        made.plain_early = plain.send("ok", queue="brief")
        seconds, _ = server.client.time()
        until(lambda: server.client.time()[0] > seconds + 3, what="all of them to be over, by the server's clock")
        made.start("-Q", CONSUMED)
        made.late = {
            "expires": made.send("ok", countdown=3600, expires=5),
            "header": made.send("ok", countdown=3600, headers={TIME_TO_LIVE: 5000}),
            "fails": made.send("fails", queue="brief.failing"),
            "lasts": made.send("ok", queue="lasting"),
        }
        yield made
        made.stop()
        server.stop(9)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("expires", "DLQ.celery"),
        ("header", "DLQ.celery"),
        ("lesser", "DLQ.celery"),
        ("with an eta", "DLQ.celery"),
        ("queue", "DLQ.brief"),
        ("elsewhere", "gone"),
    ],
)
def test_what_expired_before_a_worker_looked_dies_unrun(here: Expiring, name: str, target: str) -> None:
    """It goes to the expiry queue if there is one, else to the dead-letter queue; its caller gets Celery's error."""
    task_id = here.early[name]
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, here.runs(task_id)) == ("expired", [])
    assert here.outcomes_of(task_id) == ["published", "dead_lettered"]
    (letter,) = [each for each in here.letters(target) if each["headers"]["id"] == task_id]
    (death,) = Envelope.of(letter["headers"]).deaths
    assert (death["reason"], death["count"]) == ("expired", 1)
    with pytest.raises(TaskRevokedError):
        here.app.AsyncResult(task_id).get(timeout=120)


def test_a_time_to_live_may_be_for_ever(here: Expiring) -> None:
    """`timedelta.max` is 1e14 seconds, and would end after the last year that Celery can write."""
    here.ended(here.late["lasts"], "succeeded")


def test_expiry_is_taken_off_the_letter_and_kept_in_its_death(here: Expiring) -> None:
    """So it cannot expire again (R6), and the original value is known."""
    here.ended(here.early["lesser"], "dead_lettered")
    (letter,) = [each for each in here.letters() if each["headers"]["id"] == here.early["lesser"]]
    assert not {"expires", TIME_TO_LIVE, PUBLISHED} & letter["headers"].keys()
    assert "expiration" not in letter["properties"]
    (death,) = Envelope.of(letter["headers"]).deaths
    assert (death["expiration"], death["time_to_live"]) == ("100", 3_600_000)
    assert {"expires", "published"} <= death.keys()


@pytest.mark.parametrize(("name", "reason"), [("nowhere", "expired"), ("not eligible", "not_eligible")])
def test_what_is_not_kept_is_discarded_and_recorded(here: Expiring, name: str, reason: str) -> None:
    """There is no queue for it, or its producer does not want it kept."""
    end = here.ended(here.early[name], "discarded")
    assert (end.reason, here.runs(here.early[name])) == (reason, [])


def test_a_time_to_live_that_is_not_respected_ends_nothing(here: Expiring) -> None:
    """With `respect_time_to_live` off, both Celery's `expires` and the header are ignored."""
    here.ended(here.early["not respected"], "succeeded")


def test_a_plain_producers_message_counts_from_its_first_sight(here: Expiring) -> None:
    """Its publication time was not noted, so the queue's time to live begins when the worker sees it: it runs."""
    here.ended(here.plain_early, "succeeded")


@pytest.mark.parametrize("name", ["expires", "header"])
def test_what_expires_in_the_delay_store_dies_then(here: Expiring, name: str) -> None:
    """It does not wait until it is due an hour later, and never runs."""
    task_id = here.late[name]
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, here.runs(task_id)) == ("expired", [])
    assert here.outcomes_of(task_id) == ["published", "deferred", "dead_lettered"]


def test_what_expires_after_the_delay_store_dies_unrun(here: Expiring) -> None:
    """It was due in time, but then nobody consumed its queue until it had expired."""
    task_id = here.send("ok", queue="paused", countdown=HOUR, expires=2 * HOUR)
    here.ended(task_id, "deferred")
    here.app.control.cancel_consumer("paused", reply=True, timeout=60, limit=1)
    install = here.app.redelivery
    [waiting] = [each for each in RedisDelayStore(install.transport).soonest(100) if each.contents.task_id == task_id]
    assert reschedule(install, waiting, due_ms=None) is Answer.DONE
    [raw] = until(lambda: here.server.client.lrange("paused", 0, -1), what="it to be promoted")
    here.server.client.lset("paused", 0, aged(raw, 2 * HOUR * 1000))
    add = functools.partial(here.app.control.add_consumer, "paused", reply=True, timeout=1)
    until(add, what="the worker to answer")
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, here.runs(task_id)) == ("expired", [])
    assert here.outcomes_of(task_id) == ["published", "deferred", "deferred", "dead_lettered"]  # the second one is made due now
    (letter,) = here.letters("DLQ.paused")
    (death,) = Envelope.of(letter["headers"]).deaths
    assert (death["queue"], death["reason"], death["count"]) == ("paused", "expired", 1)


def test_what_expires_while_it_waits_for_its_redelivery_dies_then(here: Expiring) -> None:
    """The next attempt would be in ten minutes; the time to live is a few seconds."""
    task_id = here.late["fails"]
    end = here.ended(task_id, "dead_lettered")
    assert (end.reason, len(here.runs(task_id))) == ("expired", 1)
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "dead_lettered"]
    (letter,) = [each for each in here.letters("DLQ.brief.failing") if each["headers"]["id"] == task_id]
    assert [each["exception"] for each in Envelope.of(letter["headers"]).attempts] == ["RuntimeError: no"]


def test_what_is_still_worth_running_after_the_delay_store_runs(here: Expiring) -> None:
    """The delay ends before the time to live does."""
    task_id = here.send("ok", countdown=1.5, expires=3600, headers={TIME_TO_LIVE: 3_600_000})
    here.ended(task_id, "succeeded")
    assert here.outcomes_of(task_id) == ["published", "deferred", "succeeded"]


def test_a_redriven_message_does_not_expire_of_its_former_life(here: Expiring) -> None:
    """Its own time to live is removed, and the queue's begins again."""
    for name, queue in (("lesser", "DLQ.celery"), ("queue", "DLQ.brief")):
        task_id = here.early[name]
        here.ended(task_id, "dead_lettered")
        done = redrive(here.app.redelivery.transport, queue, Filter(task_ids=frozenset({task_id})))
        assert done.moved == 1
        here.ended(task_id, "succeeded")


def test_a_queue_that_nobody_reads_is_not_waited_for(here: Expiring) -> None:
    """Any worker that knows the queue ends expired messages at its head (RabbitMQ R8, R10), in the order of publication."""
    ids = [here.early["unread"], *(here.send("ok", queue="unread") for _ in range(2))]
    for task_id in ids:
        end = here.ended(task_id, "dead_lettered")
        assert (end.reason, end.queue) == ("expired", "unread")
    assert [letter["headers"]["id"] for letter in here.letters("DLQ.unread")] == ids[::-1]
    until(lambda: here.app.AsyncResult(ids[0]).state == "REVOKED", what="its caller to be told")
