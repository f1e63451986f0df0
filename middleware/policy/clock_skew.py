"""How wrong another machine's clock is, as far as a question and its answer can tell, and from when on that matters.

The other clock was read at some moment between the question and the answer. So a clock that lies between the two is right, however
long the answer took, and no slow machine is taken for a wrong clock.
"""

from __future__ import annotations

#: Milliseconds that a clock may be wrong: NTP keeps machines far closer together.
TOLERANCE_MS = 2000


def skew_ms(asked_ms: int, said_ms: int, answered_ms: int) -> int:
    """By how many milliseconds the other clock is ahead at the least, negative where it is behind; 0 within the tolerance."""
    ahead = said_ms - answered_ms if said_ms > answered_ms else min(said_ms - asked_ms, 0)
    return ahead if abs(ahead) > TOLERANCE_MS else 0
