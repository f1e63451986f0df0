"""The recoverer: gives back, one by one, what dead workers held.

A native thread of its own in each worker, so that the lease is renewed and others are watched while it works, however much there
is. It takes up every token that stands in `recovering`, its own fence's or another's: a recoverer that died half-way left it there.
How is told in `operations.fleet.recovery`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..operations.fleet.recovery import Recovery
from .duty import Duty

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

#: Seconds between two looks at who is to be recovered, where nobody said so: the lease asks with each renewal.
EVERY = 10.0


class Recoverer(Duty):
    """Recovers the messages of all fenced owners. It ends after the message that is under way; another worker's goes on."""

    title = "recoverer"
    line_if_unanswered = "warning", "recoverer.waiting"
    line_if_failed = "error", "recoverer.failed"

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(EVERY)
        self._recovery = Recovery(runtime, self._stopped.is_set)

    def step(self) -> None:
        """Recover all that were fenced. Raises what the broker does where it is away."""
        self._recovery.step()
