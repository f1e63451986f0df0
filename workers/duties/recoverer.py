"""The recoverer: gives back, one by one, the messages that dead workers held.

It is a duty of its own, so that the lease is renewed and other owners are watched while it works. It handles every token in
`recovering`, whichever worker has fenced it: a recoverer that dies half-way leaves the token there. `operations.fleet.recovery`
describes the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..operations.fleet.recovery import Recovery
from .duty import Duty

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

#: Seconds between two looks for fenced owners; the lease wakes the recoverer when a renewal finds one.
EVERY = 10.0


class Recoverer(Duty):
    """Recovers the messages of all fenced owners. If it ends after a message, another worker's recoverer goes on."""

    title = "recoverer"
    line_if_unanswered = "warning", "recoverer.waiting"
    line_if_failed = "error", "recoverer.failed"

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(EVERY)
        self._recovery = Recovery(runtime, self._stopped.is_set)

    def step(self) -> None:
        """Recover all fenced owners. Raises the broker's errors."""
        self._recovery.step()
