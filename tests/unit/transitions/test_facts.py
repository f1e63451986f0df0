"""What is known about a delivery."""

from __future__ import annotations

import pytest

from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.ports import Held
from redelivery.middleware.transitions.facts import DeliveryFacts

HELD = Held("tag", "orders", "orders", b"", 10_000)
DEATH = {"queue": "orders", "reason": "exhausted", "generation": 0, "last": 6_000}


def test_a_first_delivery_is_attempt_one_and_has_no_age() -> None:
    """The message is first seen when this worker receives it."""
    facts = DeliveryFacts.of(HELD, Envelope(), {})
    assert (facts.tag, facts.queue, facts.attempt, facts.generation) == ("tag", "orders", 1, 0)
    assert (facts.first_seen_ms, facts.age, facts.waited, facts.eligible) == (10_000, 0.0, 0.0, None)


def test_a_redelivery_knows_its_age_and_what_it_waited() -> None:
    """Both are in seconds. A missing delay counts as 0."""
    envelope = Envelope(attempt=2, first_seen_ms=4_000, attempts=({"delay": 1_500}, {"delay": None}))
    facts = DeliveryFacts.of(HELD, envelope, {"redelivery-dead-letter-eligible": False})
    assert (facts.attempt, facts.age, facts.waited, facts.eligible) == (3, 6.0, 1.5, False)
    assert facts.age_now() >= 6.0


def test_the_facts_of_a_dead_letter_are_its_handlers() -> None:
    """The handler's own attempts count, the age begins at the death, and the message is eligible because it was kept."""
    envelope = Envelope(attempt=5, handled=1, first_seen_ms=1_000, deaths=(DEATH,), attempts=({"delay": 1_500},))
    facts = DeliveryFacts.of(HELD, envelope, {"redelivery-dead-letter-eligible": False})
    assert (facts.attempt, facts.first_seen_ms, facts.age, facts.waited, facts.eligible) == (2, 6_000, 4.0, 0.0, True)


def test_the_facts_do_not_change() -> None:
    """The child stores its own progress elsewhere."""
    with pytest.raises(AttributeError):
        DeliveryFacts.of(HELD, Envelope(), {}).attempt = 2  # type: ignore[misc]
