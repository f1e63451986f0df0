"""The delay before the next attempt: Artemis's formula, except that a delay above the cap is reflected below it.

After n deliveries `base = min(cap, delay x multiplier^(n-1))`, then `d = base + base x factor x (+1 or -1) x U(0, 1)`. If d is
above the cap, it becomes `2 x cap - d`, so that messages at the cap are not all delivered at once (Artemis cuts d to the cap).
Jitter is computed from the base, so it never compounds. If the power overflows, the base is the cap. No delay is negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redelivery.settings import RedeliveryPolicy

#: The exponent does not grow beyond this: a float does not represent every larger integer.
MAX_DELIVERIES = 2**53


class Randomness(Protocol):
    """The source of the jitter: the module `random`, a `random.Random`, or a test double."""

    def choice(self, signs: Sequence[int], /) -> int:
        """One of the signs, -1 or +1."""

    def random(self) -> float:
        """A number from 0 to 1, 1 excluded."""


def delay(policy: RedeliveryPolicy, deliveries: int, random: Randomness) -> float:
    """Seconds before the next attempt, after `deliveries` deliveries (from 1)."""
    base = _base(policy, deliveries)
    spread = base * policy.redelivery_collision_avoidance_factor
    if not spread:
        return base
    seconds = base + spread * random.choice((-1, 1)) * random.random()
    return seconds if seconds <= policy.cap else max(policy.cap - (seconds - policy.cap), 0.0)


def delay_range(policy: RedeliveryPolicy, deliveries: int) -> tuple[float, float]:
    """The least and the greatest value that `delay` can return."""
    base = _base(policy, deliveries)
    spread = base * policy.redelivery_collision_avoidance_factor
    return max(base - spread, 0.0), min(base + spread, policy.cap)


def _base(policy: RedeliveryPolicy, deliveries: int) -> float:
    exponent = min(max(deliveries - 1, 0), MAX_DELIVERIES)
    if not policy.redelivery_delay:
        return 0.0
    try:
        return min(policy.cap, policy.redelivery_delay * policy.redelivery_delay_multiplier**exponent)
    except OverflowError:
        return policy.cap
