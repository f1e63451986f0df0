"""The life of a task in a worker, on every broker: attempts, delays, every reason of death, and the recorded events.

The tests of one broker share one worker. All tasks are sent before the first test, so that no test waits for the delays of
another one.
"""

from __future__ import annotations

import base64
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Producer

from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.ports import Capability
from tests.conformance.sent import Sent, letter_of
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.brokers import Place
    from tests.support.running import Shop

SETTINGS = {
    "queues": {"#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 3}},
    "tasks": {"tests.support.shop.naps": {"max_delivery_attempts": 1}, "tests.support.shop.shares": {"enabled": False}},
}


#: The tasks to send: name, arguments, and options of the publication.
SENT: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "5 s": ("ok", (), {"countdown": 5}),
    "2 s": ("ok", (), {"countdown": 2}),
    "1.4 s": ("ok", (), {"countdown": 1.4}),
    "expires": ("ok", (), {"countdown": 600, "expires": 1.5}),
    "twice": ("fails", (2,), {}),
    "always": ("fails", (), {"headers": {"trace": "abc", "deep": {"list": [1, None, "x", 2.5, True]}}, "priority": 4}),
    "poison": ("kills", (), {}),
    "too long": ("naps", (600,), {"time_limit": 1}),
    **{what: ("raises", (what,), {}) for what in ("dead_letter", "reject", "requeue", "ignore", "value", "after", "exit")},
    "retries": ("retries", (), {}),
    "autoretries": ("autoretries", (), {}),
    "decorated": ("decorated", (), {}),
    "not eligible": ("raises", ("dead_letter",), {"headers": {"redelivery-dead-letter-eligible": False}}),
    "early": ("early", (), {}),
    "early fails": ("early", (), {"kwargs": {"fail": True}}),
    "not enabled": ("shares", (), {}),
    "shown": ("heads", (), {"headers": {"tenant": "t1"}, "expires": 3600}),
}


@pytest.fixture(scope="module")
def sent(shared_place: Place) -> Iterator[Sent]:
    """A shop with one worker, for all tests of this broker."""
    shop = shared_place.shop(settings=SETTINGS)
    shop.start(concurrency=3)
    sent = Sent(shared_place, shop)
    for name, (task, args, options) in SENT.items():
        sent.send(name, task, *args, **options)
    yield sent
    shop.stop()


def publish(shop: Shop, body: Any, **options: Any) -> None:
    """Publish a message as a client without redelivery would."""
    with shop.server.connection() as connection:
        Producer(connection.default_channel, routing_key="celery", serializer=options.pop("serializer", None)).publish(
            body, **options
        )


def test_a_task_that_fails_twice_succeeds_at_its_third_attempt(sent: Sent) -> None:
    """Each step is recorded with its number. `retries` goes up, and the request says `redelivered`."""
    sent.ended("twice", "succeeded")
    found = [(event.outcome, event.attempt, event.delivery) for event in sent.shop.events_of(sent.ids["twice"])]
    assert found == [
        sent.place.opening,
        ("redelivery_scheduled", 1, 1),
        ("redelivery_scheduled", 2, 2),
        ("succeeded", 3, 3),
    ]
    assert [run["attempt"] for run in sent.runs("twice")] == [1, 2, 3]


def test_an_exhausted_task_is_a_letter_with_its_whole_history(sent: Sent) -> None:
    """Three attempts, one death, the failure and the origin. The message is as it was published."""
    event = sent.ended("always", "dead_lettered")
    assert (event.reason, event.attempt, event.exception) == ("exhausted", 3, "RuntimeError")
    letter = sent.letter("always")
    envelope = Envelope.of(letter["headers"])
    assert (envelope.attempt, envelope.delivery, envelope.generation) == (3, 3, 0)
    assert [each["exception"] for each in envelope.attempts] == ["RuntimeError: no"] * 3
    assert [each["delay"] is None for each in envelope.attempts] == [False, False, True]
    assert [(each["queue"], each["reason"], each["count"]) for each in envelope.deaths] == [("celery", "exhausted", 1)]
    assert envelope.failure is not None
    assert envelope.failure["type"] == "RuntimeError"
    assert envelope.origin["queue"] == "celery"
    assert letter["headers"]["trace"] == "abc"
    assert letter["headers"]["deep"] == {"list": [1, None, "x", 2.5, True]}
    assert letter["properties"]["priority"] == 4
    assert letter["properties"]["correlation_id"] == sent.ids["always"]
    assert json.loads(base64.b64decode(letter["body"]))[0] == []
    assert not [name for name in letter["headers"] if name.startswith("x-")]


@pytest.mark.parametrize(
    ("what", "outcome", "reason", "runs"),
    [
        ("dead_letter", "dead_lettered", "non_retryable", 1),
        ("reject", "dead_lettered", "rejected", 1),
        ("requeue", "dead_lettered", "rejected", 3),
        ("ignore", "ignored", "", 1),
        ("value", "dead_lettered", "exhausted", 3),
        ("after", "dead_lettered", "exhausted", 3),
        ("exit", "dead_lettered", "worker_lost", 3),
    ],
)
def test_what_a_task_raises_decides_its_end(sent: Sent, what: str, outcome: str, reason: str, runs: int) -> None:
    """The outcome, its reason and the number of runs follow from the exception."""
    event = sent.ended(what, outcome)
    assert event.reason == reason
    assert len(sent.runs(what)) == runs
    if outcome == "dead_lettered":
        assert Envelope.of(sent.letter(what)["headers"]).deaths[0]["reason"] == reason


def test_a_pool_child_that_dies_counts_against_its_task(sent: Sent) -> None:
    """It is delivered again, and dies of `worker_lost`."""
    assert sent.ended("poison", "dead_lettered").reason == "worker_lost"
    assert len(sent.runs("poison")) == 3


def test_a_hard_time_limit_is_a_death(sent: Sent) -> None:
    """The task dies once, although the pool reports the timeout and the lost child."""
    assert sent.ended("too long", "dead_lettered").reason == "time_limit"
    assert sent.outcomes("too long") == [sent.place.opening[0], "dead_lettered"]


@pytest.mark.parametrize(("name", "seconds"), [("1.4 s", 1.4), ("2 s", 2), ("5 s", 5)])
def test_a_delayed_task_is_never_early(sent: Sent, name: str, seconds: float) -> None:
    """It waits in the broker if the broker has delays. It runs once, and not before its time."""
    sent.ended(name, "succeeded")
    (run,) = sent.runs(name)
    assert run["at"] >= sent.at[name] + seconds
    assert sent.outcomes(name) == [sent.place.opening[0], *sent.place.waits, "succeeded"]


@pytest.mark.parametrize(("name", "runs"), [("retries", 3), ("autoretries", 3), ("decorated", 2)])
def test_a_task_that_retries_itself_stops_at_its_limit(sent: Sent, name: str, runs: int) -> None:
    """`self.retry`, `autoretry_for` and the decorator stop at the same limit on every broker."""
    event = sent.ended(name, "dead_lettered")
    assert (event.reason, event.attempt, len(sent.runs(name))) == ("exhausted", runs, runs)


def test_a_message_that_expires_dies_of_it(sent: Sent) -> None:
    """It expires while it waits for its ETA. It never runs, and its dead letter cannot expire again."""
    assert sent.ended("expires", "dead_lettered").reason == "expired"
    assert sent.runs("expires") == []
    letter = sent.letter("expires")
    assert letter["headers"].get("expires") is None
    assert "expiration" not in letter["properties"]
    assert Envelope.of(letter["headers"]).deaths[0]["expires"] is not None


def test_a_producer_may_forbid_that_its_message_is_kept(sent: Sent) -> None:
    """As with Solace's DMQ eligibility: the message is discarded when it dies, and that is recorded."""
    sent.ended("not eligible", "discarded")
    assert sent.ids["not eligible"] not in [each["headers"].get("id") for each in sent.shop.letters()]


def test_a_task_acknowledged_before_it_runs_has_its_end_recorded(sent: Sent) -> None:
    """With `acks_late=False`, successes and deaths are recorded, and a death makes a dead letter."""
    sent.ended("early", "succeeded")
    sent.ended("early fails", "dead_lettered")
    sent.letter("early fails")


def test_a_task_that_is_not_enabled_is_celerys_alone(sent: Sent) -> None:
    """It fails once, is not delivered again, and makes no dead letter. Its end is recorded."""
    assert sent.ended("not enabled", "discarded").reason == "exhausted"
    assert len(sent.runs("not enabled")) == 1


@pytest.mark.parametrize(
    ("headers", "body", "content_type", "reason"),
    [
        ({"task": "no.such.task"}, b"[[], {}, {}]", "application/json", "unknown_task"),
        ({"task": "tests.support.shop.ok"}, b"no json", "application/json", "undecodable"),
        ({"task": "tests.support.shop.ok"}, b"\x80\x04N.", "application/x-python-serialize", "undecodable"),
        ({"task": "tests.support.shop.ok"}, b"17", "application/json", "invalid"),
        ({"task": "tests.support.shop.ok", "timelimit": "soon"}, b"[[], {}, {}]", "application/json", "invalid"),
        ({}, b"{}", "application/json", "invalid"),
    ],
    ids=["unknown-task", "no-json", "pickle", "no-triple", "limits", "no-task"],
)
def test_what_cannot_run_dies_with_its_bytes_kept(
    sent: Sent, headers: dict[str, Any], body: bytes, content_type: str, reason: str
) -> None:
    """In Celery such a message is dropped or ends the worker. Here it becomes a dead letter, and the worker goes on."""
    task_id, shop = str(uuid.uuid4()), sent.shop
    publish(shop, body, headers={"id": task_id, "lang": "py", **headers}, content_type=content_type, content_encoding="binary")
    assert shop.ended(task_id, "dead_lettered").reason == reason
    assert base64.b64decode(letter_of(shop, task_id)["body"]) == body
    assert shop.events_of(task_id)[0].reason == "unannounced"


def test_a_task_of_a_plain_producer_opens_its_life_at_its_first_sight(sent: Sent) -> None:
    """Its publication was not recorded. The books say that, and count the task like any other."""
    task_id = str(uuid.uuid4())
    headers = {"lang": "py", "task": "tests.support.shop.ok", "id": task_id, "root_id": task_id, "parent_id": None, "group": None}
    publish(sent.shop, [[], {}, {}], headers=headers, serializer="json")
    sent.shop.ended(task_id, "succeeded")
    first = sent.shop.events_of(task_id)[0]
    assert (first.outcome, first.reason) == ("received", "unannounced")


def revoked(sent: Sent, countdown: float) -> tuple[str, set[str]]:
    """Delay a task, revoke it while it waits, and wait for its end; returns its id and how it ended."""
    shop = sent.shop
    task_id = shop.send("ok", countdown=countdown)
    shop.ended(task_id, [sent.place.opening[0], *sent.place.waits][-1])
    shop.app.control.revoke(task_id)
    return task_id, until(lambda: {"revoked", "succeeded"}.intersection(shop.outcomes_of(task_id)), what="its end")


def test_a_task_is_shown_the_headers_of_its_producer_alone(sent: Sent) -> None:
    """A task never sees redelivery's headers, so it can pass its headers to another task."""
    sent.ended("shown", "succeeded")
    assert [run["headers"] for run in sent.runs("shown")] == [{"tenant": "t1"}] * 2


def test_what_a_newer_version_wrote_is_kept_through_a_death(sent: Sent) -> None:
    """The newer version's number, its extra field and its other headers stay, and its attempts count."""
    task_id, shop = str(uuid.uuid4()), sent.shop
    newer = {"version": 7, "lane": {"name": "fast", "since": [1, 2]}, "attempt": 1, "delivery": 1, "generation": 0, "first_seen": 5}
    headers = {"lang": "py", "task": "tests.support.shop.fails", "id": task_id, "retries": 1, "redelivery": newer}
    publish(shop, [[], {}, {}], headers=headers, serializer="json")
    assert shop.ended(task_id, "dead_lettered").attempt == 3
    kept = letter_of(shop, task_id)["headers"]["redelivery"]
    assert (kept["version"], kept["lane"], len(shop.runs(task_id))) == (7, newer["lane"], 2)


def test_a_waiting_task_can_be_revoked(sent: Sent) -> None:
    """It ends at once if the delay store can be searched; otherwise when it is due, on a worker that remembers the revoke."""
    is_at_once = sent.place.capabilities.issuperset((Capability.CANCEL_DELAYED, Capability.BROWSE_LETTERS_UNMARKED))
    task_id, ends = revoked(sent, 600 if is_at_once else 3)
    if ends != {"revoked"} and not is_at_once:  # the machine was too slow: the task was due before the worker got the revoke
        task_id, ends = revoked(sent, 40)
    assert ends == {"revoked"}
    assert sent.shop.runs(task_id) == []


def test_nothing_is_left_behind(sent: Sent) -> None:
    """When all tasks have ended, no message waits or is held."""
    sent.shop.ended(sent.shop.send("ok"), "succeeded")
    until(lambda: not sent.shop.leftovers(), what="nothing to be left")
