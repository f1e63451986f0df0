"""How wrong another machine's clock is, estimated from one question and its answer, and the error that is tolerated.

The other clock was read between the question and the answer. So any time between the two counts as right, and a slow machine is not
reported as a wrong clock.
"""

from __future__ import annotations

#: Milliseconds that a clock may be wrong; NTP keeps clocks far closer.
TOLERANCE_MS = 2000


def skew_ms(asked_ms: int, said_ms: int, answered_ms: int) -> int:
    """The least milliseconds by which the other clock is ahead (negative: behind); 0 within the tolerance."""
    ahead = said_ms - answered_ms if said_ms > answered_ms else min(said_ms - asked_ms, 0)
    return ahead if abs(ahead) > TOLERANCE_MS else 0
