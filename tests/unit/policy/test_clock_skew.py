"""How wrong a clock is: an error counts only beyond the tolerance, and only if a slow answer does not explain it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.middleware.policy.clock_skew import TOLERANCE_MS, skew_ms

ASKED, ANSWERED = 1_000_000, 1_005_000


@pytest.mark.parametrize(
    ("said", "ahead"),
    [
        (ASKED, 0),
        (ANSWERED, 0),
        (1_002_000, 0),
        (ANSWERED + TOLERANCE_MS, 0),
        (ANSWERED + TOLERANCE_MS + 1, TOLERANCE_MS + 1),
        (ASKED - TOLERANCE_MS, 0),
        (ASKED - TOLERANCE_MS - 1, -TOLERANCE_MS - 1),
    ],
)
def test_only_what_lies_outside_the_question_is_wrong(said: int, ahead: int) -> None:
    """At both edges of the time between question and answer, and of the tolerance."""
    assert skew_ms(ASKED, said, ANSWERED) == ahead


@given(st.integers(0, 10**13), st.integers(0, 10**6), st.integers(-(10**7), 10**7))
def test_a_clock_is_never_said_to_be_more_wrong_than_it_is(asked: int, took: int, wrong: int) -> None:
    """For any moment between question and answer at which it was read."""
    for moment in (asked, asked + took // 2, asked + took):
        said = skew_ms(asked, moment + wrong, asked + took)
        assert abs(said) <= abs(wrong)
        assert said == 0 or (said > 0) == (wrong > 0)
