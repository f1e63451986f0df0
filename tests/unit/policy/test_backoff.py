"""The delay formula: Artemis's worked examples to the millisecond, and its bounds for any numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.middleware.policy.backoff import delay, delay_range
from redelivery.settings import RedeliveryPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Injected:
    """A random source with fixed results: signs and values of U."""

    drawn: list[tuple[int, float]] = field(default_factory=list)

    def choice(self, signs: Sequence[int], /) -> int:
        """The next sign."""
        assert set(signs) == {-1, 1}
        return self.drawn[0][0]

    def random(self) -> float:
        """The next U."""
        return self.drawn.pop(0)[1]


def test_delays_double_up_to_the_cap() -> None:
    """Artemis's first example: 5000 ms, x2, at most 15000, no jitter."""
    policy = RedeliveryPolicy(
        redelivery_delay=5,
        redelivery_delay_multiplier=2,
        max_redelivery_delay=15,
        redelivery_collision_avoidance_factor=0,
    )
    assert [round(delay(policy, n, Injected()) * 1000) for n in (1, 2, 3)] == [5000, 10000, 15000]


def test_jitter_is_taken_of_the_delay() -> None:
    """Artemis's second example: 1000 ms, x1, factor 0.5, with three draws."""
    policy = RedeliveryPolicy(
        redelivery_delay=1,
        redelivery_delay_multiplier=1,
        max_redelivery_delay=15,
        redelivery_collision_avoidance_factor=0.5,
    )
    drawn = Injected([(-1, 0.25), (1, 0.75), (-1, 0.05)])
    assert [round(delay(policy, n, drawn) * 1000) for n in (1, 2, 3)] == [875, 1375, 975]


def test_what_passes_the_cap_is_reflected_below_it() -> None:
    """At the cap, +20 % becomes -20 %, so that many messages do not come back at the same moment."""
    policy = RedeliveryPolicy(redelivery_delay=10, max_redelivery_delay=10, redelivery_collision_avoidance_factor=1)
    assert delay(policy, 5, Injected([(1, 0.2)])) == pytest.approx(8)
    assert delay(policy, 5, Injected([(1, 1.0)])) == 0
    assert delay(policy, 5, Injected([(-1, 0.2)])) == pytest.approx(8)


def test_a_delay_of_nothing_stays_nothing() -> None:
    """0 times any power is 0, even if the power overflows."""
    policy = RedeliveryPolicy(redelivery_delay=0, redelivery_delay_multiplier=1e300)
    assert [delay(policy, n, random) for n in (1, 2, 10_000)] == [0.0, 0.0, 0.0]


def test_a_multiplier_of_one_never_overflows_and_below_one_shrinks() -> None:
    """After any number of deliveries, x1 keeps the delay, and a smaller multiplier brings it towards 0."""
    same = RedeliveryPolicy(redelivery_delay_multiplier=1, redelivery_collision_avoidance_factor=0)
    assert delay(same, 10**400, Injected()) == 1
    less = RedeliveryPolicy(redelivery_delay_multiplier=0.5, redelivery_collision_avoidance_factor=0)
    assert delay(less, 3, Injected()) == 0.25
    assert delay(less, 10_000, Injected()) == 0


SECONDS = st.floats(0, 1e9)


@st.composite
def policies(draw: st.DrawFn) -> RedeliveryPolicy:
    """The delay fields of any policy."""
    first = draw(SECONDS)
    return RedeliveryPolicy(
        redelivery_delay=first,
        redelivery_delay_multiplier=draw(st.floats(1e-3, 1e6)),
        max_redelivery_delay=draw(st.none() | st.floats(first, 1e10)),
        redelivery_collision_avoidance_factor=draw(st.floats(0, 1)),
    )


DELIVERIES = st.integers(1, 100) | st.sampled_from([1_000, 9_999, 10_000, 10**9])


@given(policy=policies(), deliveries=DELIVERIES, sign=st.sampled_from([-1, 1]), u=st.floats(0, 1))
def test_a_delay_lies_within_its_range_and_below_the_cap(policy: RedeliveryPolicy, deliveries: int, sign: int, u: float) -> None:
    """It is never negative, never above the cap, and always within `delay_range`. No number of deliveries overflows."""
    found = delay(policy, deliveries, Injected([(sign, u)]))
    least, most = delay_range(policy, deliveries)
    assert 0 <= found <= policy.cap
    assert least - 1e-6 * (1 + least) <= found <= most + 1e-6 * (1 + most)


@given(policy=policies(), deliveries=DELIVERIES)
def test_the_range_is_reached_at_its_ends(policy: RedeliveryPolicy, deliveries: int) -> None:
    """-1 and U = 1 draw the least delay, and no range is wider than what can be drawn."""
    least, most = delay_range(policy, deliveries)
    assert delay(policy, deliveries, Injected([(-1, 1.0)])) == pytest.approx(least, abs=1e-9)
    up = delay(policy, deliveries, Injected([(1, 1.0)]))
    assert up == pytest.approx(most) or most == policy.cap


@given(policy=policies())
def test_overflow_is_the_cap(policy: RedeliveryPolicy) -> None:
    """After 10,000 deliveries a growing delay is the cap, and a constant one is itself."""
    without = RedeliveryPolicy(
        redelivery_delay=policy.redelivery_delay,
        redelivery_delay_multiplier=2,
        max_redelivery_delay=policy.max_redelivery_delay,
        redelivery_collision_avoidance_factor=0,
    )
    expected = 0 if policy.redelivery_delay == 0 else without.cap
    assert delay(without, 10_000, Injected()) == expected


@given(policy=policies(), seed=st.integers())
def test_the_standard_generator_serves(policy: RedeliveryPolicy, seed: int) -> None:
    """`random.Random` can be used as it is, and the same seed gives the same delay."""
    assert delay(policy, 3, random.Random(seed)) == delay(policy, 3, random.Random(seed))  # noqa: S311 - jitter is no secret
