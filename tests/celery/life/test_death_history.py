"""The death history of a dead letter: what it contains after one death and after a thousand, whatever happened between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery import RedeliveryPolicy
from redelivery.middleware.messages.envelope import HEADER, MAX_DEATHS, Attempt, Envelope, Failed
from redelivery.middleware.messages.steps import dead, opened, redelivered, redriven, sealed
from redelivery.middleware.messages.ttl import PUBLISHED, TIME_TO_LIVE
from redelivery.middleware.policy.destinations import RestingPlace, resting_place
from redelivery.middleware.ports import Answer
from redelivery.middleware.transitions.recovery import recover
from redelivery.workers.brokers.redis.delay_store import RedisDelayStore
from redelivery.workers.operations.inventory.inventory import take as inventory
from redelivery.workers.operations.letters.dead_letters import newest
from tests.support.desk import LETTERS, Desk, each_desk, task_message

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["each_desk"]

#: What the header of a letter may take: 20 attempts and a failure with a whole message, a traceback of 16 KiB, 20 deaths with
#: details; each character at its worst is 12 bytes of JSON.
MAX_BYTES = 12 * (21 * 1200 + 16 * 1024 + 21 * 2000)


def dies(message: dict[str, Any], queue: str, reason: str, at_ms: int, **facts: Any) -> dict[str, Any]:
    """The message after one more death."""
    facts = {"attempt": None, "failed": None, **facts}
    return dead(message, queue, dead_letter_queue=f"DLQ.{queue}", reason=reason, at_ms=at_ms, seen_ms=at_ms, **facts)


def header(message: dict[str, Any]) -> dict[str, Any]:
    """Its death record."""
    found: dict[str, Any] = message["headers"][HEADER]
    return found


def test_repeated_deaths_are_counted_where_they_are_the_same() -> None:
    """One entry for each queue and reason, the newest first, with first and last time."""
    message = task_message()
    for at_ms, (queue, reason) in enumerate([("a", "exhausted"), ("b", "expired"), ("a", "exhausted"), ("a", "rejected")], 100):
        message = redriven(dies(message, queue, reason, at_ms))
    assert [(each["queue"], each["reason"], each["count"], each["first"], each["last"]) for each in header(message)["deaths"]] == [
        ("a", "rejected", 1, 103, 103),
        ("a", "exhausted", 2, 100, 102),
        ("b", "expired", 1, 101, 101),
    ]
    assert header(message)["first_death"] == {"queue": "a", "reason": "exhausted", "at": 100}
    assert header(message)["generation"] == 4


def test_what_makes_a_letter_expire_is_taken_off_and_kept_in_its_death() -> None:
    """The producer's `expires`, its time to live, kombu's expiration, and the publication time from which it counts."""
    message = task_message(expires="2026-01-01T00:00:00+00:00")
    message["headers"].update({TIME_TO_LIVE: 5000, PUBLISHED: 7})
    message["properties"]["expiration"] = "5000"
    letter = dies(message, "a", "expired", 100)
    assert not {"expires", TIME_TO_LIVE, PUBLISHED} & letter["headers"].keys()
    assert "expiration" not in letter["properties"]
    death = header(letter)["deaths"][0]
    assert (death["expires"], death["time_to_live"], death["expiration"]) == ("2026-01-01T00:00:00+00:00", 5000, "5000")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["die", "die", "handle", "redrive", "consume"]),
        st.text("abc\U0001f600\x00", min_size=1, max_size=3),
        st.sampled_from(["exhausted", "expired", "rejected", "worker_lost"]),
        st.sampled_from(["", "x" * 5000, "\U0001f600" * 20_000]),
    ),
    max_size=50,
)


@given(STEPS)
def test_the_record_is_bounded_and_its_first_death_never_changes(steps: list[tuple[str, str, str, str]]) -> None:
    """However often and wherever it dies, whatever the reasons are, and whoever sends it back in between."""
    message, first, seen, died = task_message(), None, 0, 0
    for at_ms, (what, queue, reason, text) in enumerate(steps, 1):
        failed = Failed(type="E", message=text, traceback=text, fingerprint="f")
        attempt = Attempt(at_ms=at_ms, worker="w", exception=text)
        if what == "die":
            message = dies(message, queue, reason, at_ms, attempt=attempt, failed=failed, detail=text)
            first, died = first or {"queue": queue, "reason": reason, "at": at_ms}, died + 1
        elif what == "handle":
            message = redelivered(message, queue, seen_ms=at_ms, attempt=attempt)
        elif died:
            message = redriven(message, on_purpose=what == "redrive")
        if not died:
            continue
        record, seen = header(message), seen + 1
        deaths = record["deaths"]
        assert record["first_death"] == first
        assert len(deaths) <= MAX_DEATHS
        assert len({(each["queue"], each["reason"]) for each in deaths}) == len(deaths)
        assert [each["last"] for each in deaths] == sorted((each["last"] for each in deaths), reverse=True)
        assert sum(each["count"] for each in deaths) <= died
        assert min(each["first"] for each in deaths) == record["first_death"]["at"]
    raw = sealed(message)
    assert len(raw) <= MAX_BYTES
    assert opened(raw) == message


@pytest.mark.parametrize("count", [MAX_DEATHS - 1, MAX_DEATHS, MAX_DEATHS + 1])
def test_the_twenty_first_kind_of_death_drops_one_of_the_middle(count: int) -> None:
    """Tested at N-1, N and N+1: the newest and the very first entry stay, even if the first kind of death has happened again."""
    message = task_message()
    for number in range(count):
        message = redriven(dies(message, f"q{number}", "exhausted", 100 + number))
    message = dies(message, "q0", "exhausted", 999)
    deaths = header(message)["deaths"]
    assert len(deaths) == min(count, MAX_DEATHS)
    assert (deaths[0]["queue"], deaths[0]["first"], deaths[0]["last"], deaths[0]["count"]) == ("q0", 100, 999, 2)
    message = dies(redriven(message), "new", "exhausted", 1000)
    assert "q0" in {each["queue"] for each in header(message)["deaths"]}


def test_an_older_versions_letter_has_its_first_death_from_its_deaths() -> None:
    """It is the death that began first, whatever the order of the entries."""
    letter = dies(task_message(), "a", "exhausted", 100)
    old = header(letter)
    del old["first_death"]
    del old["deaths"][0]["generation"]
    assert Envelope.of(letter["headers"]).is_letter
    again = dies(redriven(letter), "b", "expired", 200)
    assert header(again)["first_death"] == {"queue": "a", "reason": "exhausted", "at": 100}


def test_a_letter_is_one_until_it_lives_again() -> None:
    """Dead, redriven and dead again are told apart; a message that waits for a missing dead-letter queue is no dead letter yet."""
    message = task_message()
    assert not Envelope.of(message["headers"]).is_letter
    letter = dies(message, "a", "exhausted", 100)
    assert Envelope.of(letter["headers"]).is_letter
    assert not Envelope.of(redriven(letter)["headers"]).is_letter
    assert Envelope.of(dies(redriven(letter), "a", "exhausted", 200)["headers"]).is_letter


def test_a_handler_that_fails_changes_nothing_of_the_tasks_own_record() -> None:
    """The handler's tries are counted separately, and start again with every death."""
    attempt, failed = Attempt(at_ms=1, worker="w", exception="no"), Failed(type="ValueError", message="no")
    letter = dies(task_message(), "a", "exhausted", 100, attempt=attempt, failed=failed)
    before = header(letter)
    for _ in range(3):
        letter = redelivered(letter, "DLQ.a", seen_ms=200, attempt=attempt)
    after = header(letter)
    assert (after["handled"], after["attempt"], after["attempts"]) == (3, before["attempt"], before["attempts"])
    assert letter["headers"]["retries"] == 0
    parked = dies(letter, "DLQ.a", "exhausted", 300, attempt=attempt, failed=Failed(type="KeyError", message="handler"))
    assert header(parked)["failure"] == before["failure"]
    assert header(parked)["deaths"][0]["detail"] == "KeyError: handler"
    assert "handled" not in header(parked)


# where it goes

POLICY = RedeliveryPolicy()


def rests(message: Mapping[str, Any], queue: str, target: str | None, policy: RedeliveryPolicy = POLICY) -> RestingPlace:
    """Where a message that dies now goes."""
    return resting_place(Envelope.of(message["headers"]), queue, target, policy)


def test_what_would_go_round_is_parked_where_it_is() -> None:
    """It died in the target before: it goes to the dead-letter queue that is named after its current queue."""
    living = redriven(dies(task_message(), "here", "exhausted", 100), on_purpose=False)
    assert rests(living, "there", "here") == RestingPlace("DLQ.there", parked=True)
    assert rests(living, "there", "elsewhere") == RestingPlace("elsewhere")
    assert rests(living, "here", "DLQ.here") == RestingPlace("DLQ.here")


def test_a_redrive_or_a_rejection_between_makes_it_no_circle() -> None:
    """After a redrive or a rejection the target is allowed again; a worker that only consumes the queue changes nothing."""
    letter = dies(task_message(), "here", "exhausted", 100)
    assert rests(redriven(letter), "there", "here") == RestingPlace("here")
    assert rests(redriven(letter, on_purpose=False), "there", "here").parked
    rejected = redriven(dies(redriven(letter, on_purpose=False), "there", "rejected", 200), on_purpose=False)
    assert rests(rejected, "other", "here") == RestingPlace("here")
    own = redriven(dies(task_message(), "here", "rejected", 100), on_purpose=False)
    assert rests(own, "there", "here") == RestingPlace("here")


def test_the_place_of_what_is_parked_is_never_one_where_it_died() -> None:
    """This holds even if a worker consumes the parking queue and its messages die there."""
    message = task_message()
    for number, queue in enumerate(["here", "there", "DLQ.there"]):
        message = redriven(dies(message, queue, "expired", 100 + number), on_purpose=False)
    assert rests(message, "there", "here") == RestingPlace("DLQ.DLQ.there", parked=True)
    unnamed = RedeliveryPolicy(dead_letter_queue_prefix="", dead_letter_queue="x")
    assert rests(message, "there", "here", unnamed) == RestingPlace("DLQ.DLQ.there", parked=True)


def test_a_letter_that_dies_is_parked_and_never_discarded() -> None:
    """This holds whatever the policy of the dead-letter queue says about dead letters."""
    letter = dies(task_message(), "a", "exhausted", 100)
    assert rests(letter, "DLQ.a", "DLQ.DLQ.a") == RestingPlace("DLQ.DLQ.a", parked=True)
    assert rests(letter, "DLQ.a", None) == RestingPlace("DLQ.DLQ.a", parked=True)
    assert rests(task_message(), "a", None) == RestingPlace(None)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc"), st.sampled_from(["exhausted", "expired"])), max_size=60))
def test_no_policy_sends_a_message_round_for_ever(hops: list[tuple[str, str, str]]) -> None:
    """For any targets in the policies: between two redrives a message dies at most once in each queue."""
    targets = {queue: target for queue, target, _ in hops if queue != target}
    queue, message, deaths = "a", task_message(), []
    for at_ms in range(1, 200):
        target = targets.get(queue)
        if target is None:
            break
        place = rests(message, queue, target)
        deaths.append(queue)
        if place.parked:
            break
        message = redriven(dies(message, queue, "expired", at_ms), on_purpose=False)
        assert place.target is not None
        queue = place.target
    assert len(deaths) == len(set(deaths))


# what a worker that died held


@pytest.mark.parametrize("started", [None, "123"])
def test_a_letter_that_a_dead_worker_held_is_a_letter_again(desk: Desk, started: str | None) -> None:
    """With any priority it is where the tools look, the inventory calls it dead, and no step of its life is recorded."""
    desk.die(task_message("a", priority=9))
    tag, events = desk.hold(queue=LETTERS), len(desk.events)
    [held] = [each for each in desk.transport.leases.held_by("w") if each.tag == tag]
    assert inventory(desk.install).counts() == {"queue": 0, "unacked": 0, "delayed": 0, "dead_letter": 1}
    assert recover(desk.install, held, started=started, worker="w@desk", now_ms=desk.transport.now_ms()) is Answer.DONE
    assert len(desk.events) == events
    if started is not None:
        [waiting] = RedisDelayStore(desk.transport).soonest(10)
        assert (waiting.list_name, waiting.contents.envelope.handled) == (LETTERS, 1)
        assert inventory(desk.install).counts()["dead_letter"] == 1
        return
    [letter] = newest(desk.transport, LETTERS, 10)
    assert (letter.envelope.is_letter, letter.envelope.suspect, letter.envelope.handled) == (
        True,
        True,
        0,
    )


def test_a_letter_whose_handler_kills_every_worker_is_parked(desk: Desk) -> None:
    """After as many starts as the policy of its queue allows."""
    desk.die(task_message("a"))
    events = len(desk.events)
    for _ in range(3):
        tag = desk.hold(queue=LETTERS)
        [held] = [each for each in desk.transport.leases.held_by("w") if each.tag == tag]
        recover(desk.install, held, started="1", worker="w@desk", now_ms=desk.transport.now_ms())
        for each in RedisDelayStore(desk.transport).soonest(10):
            desk.transport.stores.hand_back(each.list_name, each.ident, each.contents.raw)
    [letter] = newest(desk.transport, f"DLQ.{LETTERS}", 10)
    assert (letter.reason, letter.envelope.parked, letter.envelope.attempt) == ("worker_lost", True, 1)
    assert letter.failure["type"] == "ValueError"
    assert len(desk.events) == events
