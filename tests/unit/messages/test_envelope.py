"""The history that a message carries: written by each step, bounded, and read from any input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.errors import EnvelopeError
from redelivery.middleware.messages import envelope as header
from redelivery.middleware.messages import steps as envelope
from redelivery.middleware.messages.envelope import Attempt, Envelope, Failed

FAILED = Failed(type="ValueError", message="m" * 5000, traceback="t" * 50_000 + "END", fingerprint="f")


def fresh(**headers: Any) -> dict[str, Any]:
    """A message as kombu publishes it."""
    return {
        "body": "W10=",
        "headers": {"id": "a", "task": "t", "retries": 0, **headers},
        "properties": {"priority": 3, "delivery_info": {"exchange": "ex", "routing_key": "rk"}, "custom": 1},
    }


def attempt(at_ms: int = 5) -> Attempt:
    """An attempt that failed."""
    return Attempt(at_ms=at_ms, worker="w", exception="ValueError: no", delay_ms=100)


def die(message: dict[str, Any], *, queue: str = "q", reason: str = "exhausted", at_ms: int = 9) -> dict[str, Any]:
    """The message, dead."""
    return envelope.dead(
        message,
        queue,
        dead_letter_queue="DLQ.q",
        reason=reason,
        at_ms=at_ms,
        seen_ms=1,
        attempt=attempt(),
        failed=FAILED,
    )


def test_a_redelivery_counts_and_touches_nothing_else() -> None:
    """Body, properties and custom headers are unchanged."""
    before = fresh(tenant="t1")
    after = envelope.redelivered(before, "q", seen_ms=7, attempt=attempt(), due_ms=1000)
    read = Envelope.of(after["headers"])
    assert (read.attempt, read.delivery, read.first_seen_ms, read.generation) == (1, 1, 7, 0)
    assert read.origin == {"queue": "q", "exchange": "ex", "routing_key": "rk"}
    assert (after["headers"]["retries"], after["headers"]["tenant"], after["headers"]["eta"]) == (1, "t1", read.served_eta)
    assert after["body"] == before["body"]
    assert after["properties"]["custom"] == 1
    assert after["properties"]["delivery_info"] == {"exchange": "ex", "routing_key": "rk", "redelivered": True}
    assert "redelivery" not in before["headers"]


def test_a_crash_counts_as_an_attempt_but_not_against_celerys_retries() -> None:
    """`self.retry` keeps its own limit."""
    after = envelope.redelivered(fresh(), "q", seen_ms=7, attempt=attempt(), crash=True)
    read = Envelope.of(after["headers"])
    assert (read.attempt, read.suspect, after["headers"]["retries"]) == (1, True, 0)


def test_a_suspect_is_handed_over_again_uncounted() -> None:
    """Nobody knows whether its task had started."""
    read = Envelope.of(envelope.redelivered(fresh(), "q", seen_ms=7, attempt=None, suspect=True)["headers"])
    assert (read.attempt, read.delivery, read.suspect) == (0, 1, True)


@pytest.mark.parametrize("count", [header.MAX_ATTEMPTS - 1, header.MAX_ATTEMPTS, header.MAX_ATTEMPTS + 1])
def test_the_attempts_that_are_kept_are_the_last_ones(count: int) -> None:
    """One below its bound, at it, and one above."""
    message = fresh()
    for at in range(count):
        message = envelope.redelivered(message, "q", seen_ms=7, attempt=attempt(at))
    read = Envelope.of(message["headers"])
    assert read.attempt == count
    assert [each["at"] for each in read.attempts] == list(range(count))[-header.MAX_ATTEMPTS :]


def test_a_death_takes_the_expiry_off_and_keeps_it_in_the_record() -> None:
    """So a dead letter cannot expire again (RabbitMQ R6)."""
    letter = die(fresh(expires="2030-01-01T00:00:00"))
    (death,) = Envelope.of(letter["headers"]).deaths
    assert "expires" not in letter["headers"]
    assert death["expires"] == "2030-01-01T00:00:00"
    assert letter["properties"]["delivery_info"] == {"exchange": "", "routing_key": "DLQ.q"}


def test_what_is_kept_of_a_failure_is_bounded_and_keeps_the_end_of_the_traceback() -> None:
    """The end is where the error is."""
    failure = Envelope.of(die(fresh())["headers"]).failure
    assert failure is not None
    assert len(failure["message"]) == header.MAX_MESSAGE
    assert len(failure["traceback"]) == header.MAX_TRACEBACK
    assert failure["traceback"].endswith("END")


def test_deaths_of_one_queue_and_reason_are_one_entry_that_counts() -> None:
    """The newest is first, and its first time never changes (RabbitMQ's x-death)."""
    message = die(fresh(), at_ms=10)
    message = die(message, reason="rejected", at_ms=20)
    message = die(message, at_ms=30)
    deaths = Envelope.of(message["headers"]).deaths
    assert [(each["reason"], each["count"], each["first"], each["last"]) for each in deaths] == [
        ("exhausted", 2, 10, 30),
        ("rejected", 1, 20, 20),
    ]


@pytest.mark.parametrize("count", [header.MAX_DEATHS - 1, header.MAX_DEATHS, header.MAX_DEATHS + 1, 100])
def test_however_often_it_dies_the_history_is_bounded_and_the_first_death_stays(count: int) -> None:
    """One below its bound, at it, one above, and far above."""
    message = fresh()
    for at in range(count):
        message = die(message, queue=f"q{at}", at_ms=at)
    deaths = Envelope.of(message["headers"]).deaths
    assert len(deaths) == min(count, header.MAX_DEATHS)
    assert (deaths[0]["queue"], deaths[-1]["queue"]) == (f"q{count - 1}", "q0")


def test_a_redriven_letter_begins_anew_and_keeps_its_history() -> None:
    """The same id, the next generation, to the given exchange and routing key; without one, to its origin queue."""
    letter = die(envelope.redelivered(fresh(), "q", seen_ms=7, attempt=attempt(), due_ms=1000))
    again = envelope.redriven(letter, ("ex", "rk"))
    read = Envelope.of(again["headers"])
    assert (read.attempt, read.delivery, read.generation, again["headers"]["retries"]) == (0, 0, 1, 0)
    assert len(read.deaths) == 1
    assert "eta" not in again["headers"]
    assert again["properties"]["delivery_info"] == {"exchange": "ex", "routing_key": "rk"}
    assert envelope.redriven(letter)["properties"]["delivery_info"] == {"exchange": "", "routing_key": "q"}


def test_a_letter_without_an_origin_cannot_go_back() -> None:
    """Another client may have put it into the queue."""
    with pytest.raises(EnvelopeError, match="names no origin"):
        envelope.redriven(fresh())


@pytest.mark.parametrize("raw", [b"\xff", b"[]", b'{"headers": null, "properties": {}}', b"[" * 100_000, b'{"headers": {}}'])
def test_what_is_no_message_is_refused_by_name(raw: bytes) -> None:
    """Garbage, other shapes, and nesting that is too deep."""
    with pytest.raises(EnvelopeError):
        envelope.opened(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON | st.dictionaries(st.sampled_from(sorted(header.KNOWN)), JSON))
def test_a_hostile_header_stops_nothing(header: Any) -> None:
    """With any content of the header, every step can be taken, and its result can be read."""
    message = fresh(redelivery=header)
    written = [
        envelope.redelivered(message, "q", seen_ms=1, attempt=attempt(), due_ms=5),
        envelope.deferred(message, "q", seen_ms=1),
        die(message),
    ]
    for each in written:
        read = Envelope.of(each["headers"])
        assert read.origin["queue"]
        assert 0 <= read.attempt < 2**54
        envelope.opened(envelope.sealed(each))
