"""Policies on every broker: each setting of a queue has the effect that its name says.

The tests of one broker share one worker. Each of its queues has its own policy. All messages are sent together, some of them
before the worker starts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.ports import Capability
from tests.conformance.sent import Sent
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.brokers import Place

#: Other brokers do not record when a message was published: its time to live begins when a worker first sees it.
DATED = pytest.mark.needs(Capability.OUTCOME_LOG)
HOUR = 3600
#: Time to live, in seconds, of messages that expire before the worker starts.
BRIEF = 1
#: Seconds of a queue's delivery delay.
LATER = 3
QUEUES: dict[str, dict[str, Any]] = {
    "#": {
        "redelivery_delay": 1,
        "redelivery_delay_multiplier": 1.0,
        "redelivery_collision_avoidance_factor": 0.0,
        "max_delivery_attempts": 2,
    },
    "slow": {"redelivery_delay": 5},
    "atonce": {"redelivery_delay": 0, "max_delivery_attempts": 4},
    "doubling": {"redelivery_delay_multiplier": 2.0, "max_redelivery_delay": 3, "max_delivery_attempts": 4},
    "endless": {"redelivery_delay": 0, "max_delivery_attempts": -1},
    "eu.#": {"max_delivery_attempts": 3, "redelivery_delay": 0},
    "eu.*": {"dead_letter_queue": "eu.graves"},
    "eu.mails": {"max_delivery_attempts": 1},
    "unkept": {"dead_letter_queue": None},
    "post": {"dead_letter_queue_prefix": "", "dead_letter_queue_suffix": ".DLQ"},
    "aged": {"max_age": 2, "max_delivery_attempts": -1},
    "brief": {"max_time_to_live": BRIEF, "expiry_queue": "gone"},
    "fading": {"max_time_to_live": BRIEF, "redelivery_delay": HOUR},
    "deaf": {"respect_time_to_live": False},
    "later": {"delivery_delay": LATER},
    "ruled": {
        "non_retryable": ["ValueError"],
        "rules": {"RuntimeError": {"max_delivery_attempts": 3, "redelivery_delay": 0}},
    },
    "here": {"max_delivery_attempts": 1, "dead_letter_queue": "there"},
    "there": {"max_delivery_attempts": 1, "dead_letter_queue": "here"},
}
CONSUMED = [name for name in QUEUES if "#" not in name and "*" not in name] + ["eu.post", "eu.fr.post"]
TIME_TO_LIVE, DELIVERY_DELAY = "redelivery-time-to-live-ms", "redelivery-delivery-delay-ms"
#: Messages that expire before the worker starts: the queue and the options of the publication.
EARLY: dict[str, tuple[str, dict[str, Any]]] = {
    "over": ("slow", {"expires": BRIEF}),
    "over by its header": ("slow", {"headers": {TIME_TO_LIVE: BRIEF * 1000}}),
    "over by its queue": ("brief", {}),
    "over by the lesser": ("brief", {"headers": {TIME_TO_LIVE: HOUR * 1000}}),
    "over, and not kept": ("slow", {"expires": BRIEF, "headers": {"redelivery-dead-letter-eligible": False}}),
    "over, and nobody cares": ("deaf", {"expires": BRIEF, "headers": {TIME_TO_LIVE: BRIEF * 1000}}),
}
#: The tasks to send: queue, name, arguments, and options of the publication.
SENT: dict[str, tuple[str, str, tuple[Any, ...], dict[str, Any]]] = {
    "waits": ("slow", "fails", (1,), {}),
    "flows": ("slow", "ok", (), {}),
    "at once": ("atonce", "fails", (), {}),
    "doubles": ("doubling", "fails", (), {}),
    "never gives up": ("endless", "fails", (12,), {}),
    "exact": ("eu.mails", "fails", (), {}),
    "one word": ("eu.post", "fails", (), {}),
    "many words": ("eu.fr.post", "fails", (), {}),
    "unkept": ("unkept", "fails", (), {}),
    "suffixed": ("post", "fails", (), {}),
    "too old": ("aged", "fails", (), {}),
    "expires before it is due": ("slow", "ok", (), {"countdown": HOUR, "expires": 2}),
    "expires before its redelivery": ("fading", "fails", (), {}),
    "delayed by its queue": ("later", "ok", (), {}),
    "delayed by its header": ("slow", "ok", (), {"headers": {DELIVERY_DELAY: 4000}}),
    "delayed by the longer": ("later", "ok", (), {"countdown": 5}),
    "no use": ("ruled", "raises", ("value",), {}),
    "of some use": ("ruled", "fails", (), {}),
    "round": ("here", "fails", (), {}),
}


@pytest.fixture(scope="module")
def sent(shared_place: Place) -> Iterator[Sent]:
    """A shop with one worker, for all tests of this broker."""
    shop = shared_place.shop(settings={"queues": QUEUES})
    sent = Sent(shared_place, shop)
    for queue in dict.fromkeys(queue for queue, _ in EARLY.values()):
        shared_place.declare(shop, queue)
    for name, (queue, options) in EARLY.items():
        sent.send(name, "ok", queue=queue, **options)
    until(lambda: time.time() > max(sent.at.values()) + BRIEF + 0.5, what="all of them to be over")
    shop.start("-Q", ",".join(CONSUMED), concurrency=3)
    for name, (queue, task, args, options) in SENT.items():
        sent.send(name, task, *args, queue=queue, **options)
    yield sent
    shop.stop()


# redelivery


def test_only_the_failed_message_waits(sent: Sent) -> None:
    """Messages behind it in its queue run before its next attempt (Artemis A1)."""
    sent.ended("waits", "succeeded")
    sent.ended("flows", "succeeded")
    first, again = sent.runs("waits")
    (flowed,) = sent.runs("flows")
    assert again["at"] >= first["at"] + 5
    assert flowed["at"] < again["at"]


def test_no_delay_is_no_delay(sent: Sent) -> None:
    """0 is a real value (Artemis A2): four attempts run without a wait."""
    sent.ended("at once", "dead_lettered")
    scheduled = [event for event in sent.shop.events_of(sent.ids["at once"]) if event.outcome == "redelivery_scheduled"]
    assert [event.delay_ms for event in scheduled] == [0, 0, 0]
    assert len(sent.runs("at once")) == 4


def test_delays_double_up_to_the_cap(sent: Sent) -> None:
    """1 s, 2 s, 3 s (Artemis A3, A4), and never early."""
    sent.ended("doubles", "dead_lettered")
    scheduled = [event for event in sent.shop.events_of(sent.ids["doubles"]) if event.outcome == "redelivery_scheduled"]
    assert [event.delay_ms for event in scheduled] == [1000, 2000, 3000]
    times = [run["at"] for run in sent.runs("doubles")]
    assert [later - earlier >= seconds for earlier, later, seconds in zip(times, times[1:], (1, 2, 3), strict=False)] == [True] * 3


def test_one_queue_has_no_limit_where_all_others_have_theirs(sent: Sent) -> None:
    """-1 (Artemis A9): it succeeds at its thirteenth attempt."""
    assert sent.ended("never gives up", "succeeded").attempt == 13


@pytest.mark.parametrize(
    ("name", "attempts", "target"),
    [("exact", 1, "eu.graves"), ("one word", 3, "eu.graves"), ("many words", 3, "DLQ.eu.fr.post")],
)
def test_patterns_are_merged_setting_by_setting(sent: Sent, name: str, attempts: int, target: str) -> None:
    """An exact name beats `*`, and `*` beats `#`. The weaker row gives the settings that the stronger row lacks (Artemis A10)."""
    assert sent.ended(name, "dead_lettered").attempt == attempts
    sent.letter(name, target)


@pytest.mark.parametrize(
    ("name", "outcome", "reason", "runs"),
    [
        ("no use", "dead_lettered", "non_retryable", 1),
        ("of some use", "dead_lettered", "exhausted", 3),
    ],
)
def test_an_exception_may_have_a_policy_of_its_own(sent: Sent, name: str, outcome: str, reason: str, runs: int) -> None:
    """`non_retryable` and `rules` decide by the exception."""
    assert sent.ended(name, outcome).reason == reason
    assert len(sent.runs(name)) == runs


def test_what_has_lived_too_long_is_given_up_before_its_next_delay(sent: Sent) -> None:
    """With `max_age`, the task dies before its attempts are used up, and no attempt begins after that age."""
    assert sent.ended("too old", "dead_lettered").reason == "max_age"
    assert all(run["at"] < sent.at["too old"] + 60 for run in sent.runs("too old"))
    assert len(sent.runs("too old")) in {1, 2}


# dead letters


def test_where_no_letters_are_kept_nothing_leaves_without_a_record(sent: Sent) -> None:
    """With `dead_letter_queue = None` (Artemis A7), the message is discarded after the last attempt, and this is recorded."""
    assert sent.ended("unkept", "discarded").reason == "exhausted"
    assert len(sent.runs("unkept")) == 2


def test_a_dead_letter_queue_is_named_by_prefix_and_suffix(sent: Sent) -> None:
    """Artemis's own example (A11)."""
    sent.ended("suffixed", "dead_lettered")
    letter = sent.letter("suffixed", "post.DLQ")
    assert Envelope.of(letter["headers"]).origin["queue"] == "post"


def test_what_would_go_round_is_parked(sent: Sent) -> None:
    """Two queues are each other's DLQ: the message dies once in each, and is then parked. RabbitMQ (R7) would drop it."""
    envelope = Envelope.of(sent.letter("round", "DLQ.there")["headers"])
    assert [(death["queue"], death["count"]) for death in envelope.deaths] == [("there", 1), ("here", 1)]
    assert envelope.to_header()["first_death"]["queue"] == "here"
    assert envelope.parked
    assert len(sent.runs("round")) == 2


# time


@DATED
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("over", "DLQ.slow"),
        ("over by its header", "DLQ.slow"),
        ("over by its queue", "gone"),
        ("over by the lesser", "gone"),
        ("expires before it is due", "DLQ.slow"),
    ],
)
def test_what_has_expired_dies_unrun(sent: Sent, name: str, target: str) -> None:
    """The shorter time to live of message and queue applies (Solace S6). The message goes to the expiry queue, if there is one."""
    assert sent.ended(name, "dead_lettered").reason == "expired"
    assert sent.runs(name) == []
    letter = sent.letter(name, target)
    assert not {"expires", TIME_TO_LIVE} & letter["headers"].keys()
    assert [death["reason"] for death in Envelope.of(letter["headers"]).deaths] == ["expired"]


def test_what_expires_while_it_waits_for_its_redelivery_dies_of_it(sent: Sent) -> None:
    """Its next attempt is due in an hour, and its time to live is one second."""
    assert sent.ended("expires before its redelivery", "dead_lettered").reason == "expired"
    assert len(sent.runs("expires before its redelivery")) == 1


def test_what_has_expired_and_may_not_be_kept_is_discarded(sent: Sent) -> None:
    """The producer said that the message is not eligible (Solace S5)."""
    assert sent.ended("over, and not kept", "discarded").reason == "not_eligible"


def test_a_time_to_live_that_is_not_respected_ends_nothing(sent: Sent) -> None:
    """`respect_time_to_live` off (Solace S1)."""
    sent.ended("over, and nobody cares", "succeeded")


@DATED
@pytest.mark.parametrize(
    ("name", "seconds"), [("delayed by its queue", LATER), ("delayed by its header", 4), ("delayed by the longer", 5)]
)
def test_a_message_waits_from_its_publication_on(sent: Sent, name: str, seconds: float) -> None:
    """Delayed consumption (Solace S10): the message waits in the broker once, for its longest delay."""
    sent.ended(name, "succeeded")
    assert sent.outcomes(name) == ["published", "deferred", "succeeded"]
    (run,) = sent.runs(name)
    assert run["at"] >= sent.at[name] + seconds
