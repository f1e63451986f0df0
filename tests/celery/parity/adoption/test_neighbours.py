"""Plain Celery and another version of redelivery on our broker: they share queues, and none harms another's messages."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from redelivery.middleware.messages.envelope import HEADER, Attempt, Envelope
from redelivery.middleware.messages.steps import opened, redelivered, sealed
from tests.support.running import Shop, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("neighbours")

SETTINGS = {"queues": {"#": {"redelivery_delay": 0.1, "max_delivery_attempts": 3}}}
#: What a future version may write: its number, a field of its own, and one more entry in a field that we know.
NEWER = {"version": 7, "lane": {"name": "fast", "since": [1, 2]}, "attempt": 1, "delivery": 1, "generation": 0, "first_seen": 5}


@pytest.fixture(scope="module")
def ours() -> Iterator[Shop]:
    """Our worker, which consumes the common queue and one of its own, and our producer."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        server = Server(Path(name), binaries()["valkey"]).start()
        here = Shop(server, Path(name), settings=SETTINGS, conf={"task_acks_late": True})
        here.start("-Q", "celery,ours")
        yield here
        here.stop()
        server.stop(9)


@pytest.fixture(scope="module")
def plain(ours: Shop) -> Iterator[Shop]:
    """A plain Celery worker beside it, on the common queue and one of its own, and a plain producer."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        here = Shop(ours.server, Path(name), plain=True, conf={"task_acks_late": True})
        here.start("-Q", "celery,theirs", "-n", "plain@shop")
        yield here
        here.stop()


def taken(shop: Shop, task: str, *args: Any) -> dict[str, Any]:
    """A message as this shop's producer publishes it, before any worker has received it."""
    shop.send(task, *args, queue="nobody")
    return opened(shop.server.client.rpop("nobody"))


def put(shop: Shop, queue: str, message: dict[str, Any], **header: Any) -> str:
    """Into a queue, with this header of ours; its task id."""
    if header:
        message = {**message, "headers": {**message["headers"], HEADER: header}}
    shop.server.client.lpush(queue, sealed(message))
    return str(message["headers"]["id"])


def swept(shop: Shop) -> None:
    """One sweep of a plain worker that takes everything it finds for abandoned."""
    app = Celery("sweeper", broker=shop.server.url, set_as_current=False)
    app.conf.broker_transport_options = {"visibility_timeout": 0}
    with app.connection_for_read() as connection:
        connection.default_channel.qos.restore_visible()


def test_two_kinds_of_workers_and_of_producers_share_a_queue(ours: Shop, plain: Shop) -> None:
    """Each task runs once, whoever published it and whoever took it; each kind of worker runs tasks of each kind of producer."""
    by_us: set[str] = set()
    by_them: set[str] = set()
    here: set[str] = set()
    there: set[str] = set()
    for _ in range(40):
        by_us.update(ours.send("ok") for _ in range(10))
        by_them.update(plain.send("ok") for _ in range(10))
        until(lambda: len(ours.runs()) + len(plain.runs()) >= len(by_us | by_them))
        here, there = {run["id"] for run in ours.runs()}, {run["id"] for run in plain.runs()}
        if here & by_them and there & by_us:
            break
    ran = [run["id"] for shop in (ours, plain) for run in shop.runs()]
    assert sorted(ran) == sorted(by_us | by_them)
    assert here & by_them
    assert there & by_us
    for task_id in here:
        ours.ended(task_id, "succeeded")


def test_a_redelivery_of_ours_is_a_retry_to_a_plain_worker(ours: Shop, plain: Shop) -> None:
    """The plain worker runs it, sees that it is redelivered, and counts its attempts as Celery does; our header does no harm."""
    message = taken(ours, "ok")
    attempt = Attempt(at_ms=1, worker="w", exception="ValueError: no", delay_ms=100)
    again = redelivered(message, "theirs", seen_ms=1, attempt=attempt, due_ms=1_700_000_000_000)
    task_id = put(plain, "theirs", again)
    until(lambda: plain.runs(task_id))
    run = plain.runs(task_id)[0]
    assert (run["attempt"], run["redelivered"]) == (2, True)


def test_what_a_plain_worker_retries_comes_to_ours(ours: Shop, plain: Shop) -> None:
    """Celery's own retry, an ETA message with `retries`, waits in our delay store and goes on counting."""
    message = taken(plain, "fails", 2)
    message["headers"].update(retries=1, eta="2020-01-01T00:00:00+00:00")
    task_id = put(ours, "ours", message)
    ours.ended(task_id, "succeeded")
    assert [run["attempt"] for run in ours.runs(task_id)] == [2, 3]


def test_what_a_dead_plain_worker_held_is_run_by_ours(ours: Shop) -> None:
    """Kombu's sweep, after its visibility timeout, puts it back into the queue."""
    client = ours.server.client
    theirs = Celery("dead", broker=ours.server.url, set_as_current=False)
    task_id = put(ours, "abandoned", taken(ours, "ok"))
    with theirs.connection_for_read() as connection:
        channel = connection.default_channel
        channel.queue_declare("abandoned")
        held = channel.basic_get("abandoned")
        assert held is not None
        [tag] = [each for each, value in client.hgetall("unacked").items() if task_id.encode() in value]
        raw, _exchange, _routing_key = json.loads(client.hget("unacked", tag))
        client.hset("unacked", tag, json.dumps([raw, "", "ours"]))  # as if it had been taken from a queue that we consume
        channel.qos._delivered.clear()  # it dies: nothing is given back on the way out
        connection.collect()
    swept(ours)
    ours.ended(task_id, "succeeded")


def test_a_plain_workers_sweep_leaves_alone_what_ours_holds(ours: Shop) -> None:
    """It is delivered once, however long it runs, and however short the plain worker's visibility timeout is."""
    task_id = ours.send("naps", 1.5, queue="ours")
    until(lambda: ours.runs(task_id))
    for _ in range(5):
        swept(ours)
    ours.ended(task_id, "succeeded")
    assert [run["event"] for run in ours.runs(task_id)] == ["start", "end"]
    assert ours.outcomes_of(task_id) == ["published", "succeeded"]


def test_a_failure_on_a_plain_worker_is_celerys_own(ours: Shop, plain: Shop) -> None:
    """The plain worker has no policy of ours and records nothing: the task ends there, and its life stays open in our books."""
    task_id = ours.send("fails", queue="theirs")
    until(lambda: plain.runs(task_id))
    until(lambda: task_id in plain.workers[0].text and "raised unexpected" in plain.workers[0].text)
    assert ours.outcomes_of(task_id) == ["published"]
    assert len(plain.runs(task_id)) == 1


@pytest.mark.usefixtures("ours")
def test_remote_control_reaches_both(plain: Shop) -> None:
    """One ping gets one answer from each worker."""
    answered = plain.app.control.ping(limit=2, timeout=60)
    assert sorted(name for reply in answered for name in reply) == ["plain@shop", "w0@shop"]


def test_what_a_newer_version_wrote_is_kept_through_a_death(ours: Shop) -> None:
    """A worker of this version redelivers and dead-letters a newer version's message: its fields and its number stay."""
    task_id = put(ours, "ours", taken(ours, "fails"), **NEWER)
    ours.ended(task_id, "dead_lettered")
    [letter] = [each for each in ours.letters("DLQ.ours") if each["headers"]["id"] == task_id]
    header = letter["headers"][HEADER]
    assert (header["version"], header["lane"], header["first_seen"]) == (7, NEWER["lane"], 5)
    assert [run["attempt"] for run in ours.runs(task_id)] == [1, 2], "one of its three attempts was made by the newer version"
    assert header["attempt"] == 3


def test_what_an_older_version_wrote_is_read(ours: Shop) -> None:
    """It has no number and lacks newer fields: its attempts count on."""
    task_id = put(ours, "ours", taken(ours, "fails"), attempt=2, first_seen=5)
    event = ours.ended(task_id, "dead_lettered")
    assert (event.attempt, event.reason, len(ours.runs(task_id))) == (3, "exhausted", 1)


@pytest.mark.parametrize("version", [None, 0, "2", -1, 1.5, True])
def test_a_version_that_is_none_counts_as_ours(version: object) -> None:
    """A header with an invalid version is read, and written again as ours."""
    header = Envelope.of({HEADER: {"version": version, "attempt": 4}}).to_header()
    assert (header["version"], header["attempt"]) == (1, 4)
