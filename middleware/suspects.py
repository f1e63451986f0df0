"""Suspects, where no start can be recorded: a worker holds one of them at a time, so that a crash counts against the right one.

A suspect is a message that a worker held when it died; nobody can tell whether that was its doing. Where starts are recorded, a
crash counts against what had begun. Where they cannot be (RabbitMQ), whatever was held comes back alike, and an innocent message
beside a poisonous one would be discarded for it. So the first `FREE` times count against nobody, and nobody waits for them: a
connection that broke, or one crash, costs no more. What comes back after that is taken one at a time: a worker that holds such a
suspect sets the others back for a while, unmarked and uncounted, until it has ended, or has run for `YOUNG` seconds: then the next
crash counts against it alone. The one that it takes begins after a `PAUSE`, when the others have left: what is on its way when the
worker dies is in two places.

Limits: what kills its worker after more than `YOUNG` seconds counts against the suspects that were taken meanwhile, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redelivery.middleware.envelope import Envelope
    from redelivery.middleware.transports.base import Held

__all__ = ["PAUSE", "SET_BACK_MS", "YOUNG", "Suspects", "must_be_alone"]

#: Seconds for which a suspect is alone.
YOUNG = 10.0
#: How often a message may be given back by a dead worker before it is looked at alone, and counted.
FREE = 2
#: Seconds before it begins; and how long the others stay away (milliseconds), so that none is back just when it has begun.
PAUSE = 0.5
SET_BACK_MS = 3000


def must_be_alone(envelope: Envelope) -> bool:
    """Whether a message has been given back so often that it is taken alone, and counted when it comes back again.

    A letter's life has ended: its handler's crashes count from the second on, and it is never set back.
    """
    return envelope.suspect and (envelope.is_letter or envelope.delivery - envelope.attempt >= FREE)


class Suspects:
    """Which suspect this worker has taken last, and when (monotonic seconds). `owner.held` tells whether it still holds it."""

    def __init__(self) -> None:
        self._tag, self._since = "", 0.0

    def must_wait(self, held: Held, owner: Any) -> bool:
        """Whether this suspect must wait for another one; else it is the one that is taken now."""
        now = time.monotonic()
        if self._tag != held.tag and self._tag in owner.held and now - self._since < YOUNG:
            return True
        self._tag, self._since = held.tag, now
        return False
