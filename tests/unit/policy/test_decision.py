"""Decisions: what follows a failure, for each rule."""

from __future__ import annotations

import pickle
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.errors import ConfigurationError
from redelivery.middleware.messages.events import Reason
from redelivery.middleware.policy import task_exceptions as raised
from redelivery.middleware.policy.decision import DeadLetter, Discard, Failure, Redeliver, decide, ending
from redelivery.settings import RedeliveryPolicy
from redelivery.settings.values import MAX_DURATION

STEADY: dict[str, Any] = {"redelivery_delay_multiplier": 1, "redelivery_collision_avoidance_factor": 0}


def policy_of(**fields: Any) -> RedeliveryPolicy:
    """A policy without jitter or growth."""
    return RedeliveryPolicy(**{**STEADY, **fields})


def decided(policy: RedeliveryPolicy, **failure: Any) -> Any:
    """The decision; by default about a first attempt that has just begun."""
    return decide(policy, Failure(**{"attempt": 1, "age": 0.0, "exception": KeyError("x"), **failure}), random)


def test_a_failure_is_delivered_again_after_the_policy_s_delay() -> None:
    """The ordinary case."""
    assert decided(policy_of(redelivery_delay=7)) == Redeliver(7.0)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [(2, Redeliver), (3, DeadLetter), (4, DeadLetter)],
)
def test_the_last_attempt_is_the_limit_itself(attempt: int, expected: type) -> None:
    """With a limit of 3, the message is delivered again after the second failure, and not after the third."""
    found = decided(policy_of(max_delivery_attempts=3), attempt=attempt)
    assert isinstance(found, expected)
    if isinstance(found, DeadLetter):
        assert found.reason is Reason.EXHAUSTED
        assert f"attempt {attempt} of 3 (max_delivery_attempts)" in found.detail


def test_minus_one_is_no_limit() -> None:
    """-1 delivers again for ever."""
    assert decided(policy_of(max_delivery_attempts=-1), attempt=1_000_000) == Redeliver(1.0)


@pytest.mark.parametrize("cause", [Reason.WORKER_LOST, Reason.TIME_LIMIT])
def test_what_ended_the_last_attempt_is_the_reason(cause: Reason) -> None:
    """A crash is an attempt that counts. If it was the last one, it is the reason."""
    assert decided(policy_of(), attempt=9, exception=None, cause=cause) == Redeliver(1.0)
    assert decided(policy_of(), attempt=10, exception=None, cause=cause).reason is cause


@pytest.mark.parametrize(("age", "expected"), [(58.0, Redeliver), (59.0, Redeliver), (59.001, DeadLetter), (61.0, DeadLetter)])
def test_a_message_dies_before_the_delay_that_would_pass_its_age(age: float, expected: type) -> None:
    """With a delay of 1 s and `max_age` 60 s, a message of up to 59 s is delivered again."""
    found = decided(policy_of(max_age=60), age=age)
    assert isinstance(found, expected)
    if isinstance(found, DeadLetter):
        assert found.reason is Reason.MAX_AGE


def test_a_raised_dead_letter_ends_it_with_its_text() -> None:
    """`raise DeadLetter("card stolen")` is `non_retryable` at the first attempt. Its text is the detail."""
    assert decided(policy_of(), exception=raised.DeadLetter("card stolen")) == DeadLetter(Reason.NON_RETRYABLE, "card stolen")


def test_redeliver_after_says_the_delay_and_the_limits_hold() -> None:
    """The task's own delay replaces the policy's and may exceed its cap. The limits of attempts and age still apply."""
    policy = policy_of(max_redelivery_delay=10, max_age=3600, max_delivery_attempts=3)
    wish = raised.RedeliverAfter(timedelta(seconds=30))
    assert decided(policy, exception=wish) == Redeliver(30.0)
    assert decided(policy, exception=raised.RedeliverAfter(0)) == Redeliver(0.0)
    assert decided(policy, exception=wish, attempt=3).reason is Reason.EXHAUSTED
    assert decided(policy, exception=wish, age=3571.0).reason is Reason.MAX_AGE


def test_redeliver_after_is_above_every_class_of_exceptions() -> None:
    """`RedeliverAfter` decides, even if `Exception` is non-retryable or expected."""
    policy = policy_of(non_retryable=("Exception",))
    assert decided(policy, exception=raised.RedeliverAfter(5), throws=(Exception,)) == Redeliver(5.0)


def test_non_retryable_classes_die_at_once() -> None:
    """Also subclasses, and also if the task called `retry`. The detail names the class."""
    policy = policy_of(non_retryable=("LookupError",))
    assert decided(policy) == DeadLetter(Reason.NON_RETRYABLE, "KeyError is non-retryable by the policy")
    assert decided(policy, requested_delay=5.0).reason is Reason.NON_RETRYABLE
    assert decided(policy, exception=OSError()) == Redeliver(1.0)


def test_expected_exceptions_die_at_once_unless_the_task_asks() -> None:
    """After an exception of `throws` a task is not delivered again, unless it calls `retry` for it."""
    assert decided(policy_of(), throws=(KeyError,)).reason is Reason.NON_RETRYABLE
    assert decided(policy_of(), throws=(KeyError,), requested_delay=5.0) == Redeliver(5.0)
    assert decided(policy_of(), throws=(OSError,)) == Redeliver(1.0)


def test_the_delay_of_retry_is_used_and_its_limit_is_named() -> None:
    """`Task.retry` stops at the lower of its own limit and the policy's. The record names that limit."""
    assert decided(policy_of(), requested_delay=0.0, retries_left=1) == Redeliver(0.0)
    own = decided(policy_of(), requested_delay=5.0, retries_left=0)
    assert (own.reason, own.detail) == (Reason.EXHAUSTED, "attempt 1 used up the task's own max_retries")
    policy_s = decided(policy_of(max_delivery_attempts=1), requested_delay=5.0, retries_left=3)
    assert "max_delivery_attempts" in policy_s.detail


def test_rules_change_what_holds_for_an_exception() -> None:
    """A rule's delay, attempts and age apply to its exceptions, and to no others."""
    policy = policy_of(rules={"LookupError": {"redelivery_delay": 30, "max_delivery_attempts": 2}, "OSError": {"max_age": 0.5}})
    assert decided(policy) == Redeliver(30.0)
    assert decided(policy, attempt=2).reason is Reason.EXHAUSTED
    assert decided(policy, exception=OSError()).reason is Reason.MAX_AGE
    assert decided(policy, exception=ValueError(), attempt=2) == Redeliver(1.0)


def test_without_a_dead_letter_queue_the_reason_stays() -> None:
    """The message is discarded, with the reason that a dead letter would have."""
    found = decided(policy_of(dead_letter_queue=None, max_delivery_attempts=1))
    assert isinstance(found, Discard)
    assert found.reason is Reason.EXHAUSTED


@pytest.mark.parametrize(
    ("by_policy", "by_header", "kept"),
    [
        (True, None, True),
        (False, None, False),
        (True, False, False),
        (False, True, True),
        (True, True, True),
        (False, False, False),
    ],
)
def test_the_producer_s_header_wins_over_the_policy(by_policy: bool, by_header: bool | None, kept: bool) -> None:
    """If there is a header, it decides. A message that is not eligible is discarded, with the original reason in the detail."""
    found = decided(policy_of(max_delivery_attempts=1, dead_letter_eligible=by_policy), eligible=by_header)
    assert isinstance(found, DeadLetter if kept else Discard)
    assert found.reason is (Reason.EXHAUSTED if kept else Reason.NOT_ELIGIBLE)
    assert kept or found.detail.startswith("exhausted: attempt 1 of 1")


def test_any_death_can_be_asked_how_it_ends() -> None:
    """`ending` also decides about deaths without an attempt."""
    assert ending(policy_of(), Reason.EXPIRED) == DeadLetter(Reason.EXPIRED)
    assert ending(policy_of(), Reason.EXPIRED, eligible=False) == Discard(Reason.NOT_ELIGIBLE, "expired")
    assert ending(policy_of(dead_letter_queue=None), Reason.INVALID, "no id") == Discard(Reason.INVALID, "no id")


def test_no_delay_leaves_the_calendar() -> None:
    """A delay of thousands of years becomes 100 years, which every date can hold."""
    assert decided(policy_of(), exception=raised.RedeliverAfter(1e300)) == Redeliver(MAX_DURATION)
    assert decided(policy_of(), requested_delay=-5.0) == Redeliver(0.0)


def test_what_a_task_raises_survives_pickling() -> None:
    """Both exceptions come from the pool's child to the worker with all their values."""
    after = pickle.loads(pickle.dumps(raised.RedeliverAfter(30, detail="busy")))  # noqa: S301 - our own
    assert (after.delay, after.detail, str(after)) == (30.0, "busy", "to be delivered again after 30 s: busy")
    letter = pickle.loads(pickle.dumps(raised.DeadLetter("card stolen")))  # noqa: S301 - our own
    assert (letter.detail, str(letter)) == ("card stolen", "card stolen")


@pytest.mark.parametrize("delay", [-1, float("nan"), "30", True])
def test_a_wrong_redeliver_after_is_refused_where_it_is_raised(delay: Any) -> None:
    """So the author of the task sees the mistake at once."""
    with pytest.raises(ConfigurationError, match="RedeliverAfter's delay"):
        raised.RedeliverAfter(delay)


@given(
    limit=st.integers(1, 20) | st.just(-1),
    max_age=st.none() | st.floats(0, 1e6),
    known=st.fixed_dictionaries(
        {
            "attempt": st.integers(1, 10_000),
            "age": st.floats(0, 1e6),
            "requested_delay": st.none() | st.floats(0, 1e6),
            "retries_left": st.none() | st.integers(0, 3),
        },
    ),
)
def test_redelivery_never_passes_a_limit(limit: int, max_age: float | None, known: dict[str, Any]) -> None:
    """For any numbers: a message that is delivered again is within every limit, and any other has reached a limit."""
    attempt, age, left = known["attempt"], known["age"], known["retries_left"]
    policy = RedeliveryPolicy(max_delivery_attempts=limit, max_age=max_age)
    found = decided(policy, **known)
    if isinstance(found, Redeliver):
        assert limit == -1 or attempt < limit
        assert left != 0
        assert max_age is None or age + found.delay <= max_age
        assert found.delay >= 0
    else:
        assert found.reason in {Reason.EXHAUSTED, Reason.MAX_AGE}
        reached = limit != -1 and attempt >= limit
        assert reached or left == 0 or found.reason is Reason.MAX_AGE
