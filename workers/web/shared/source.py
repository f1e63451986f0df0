"""The app of a page, its broker's transitions and the broker's clock. The broker is reached at the first use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from redelivery.lazily import cached_property

from ...operations.reach import reached

if TYPE_CHECKING:
    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime

#: Seconds after which the broker is asked for its time again; until then this machine's clock continues from its answer.
CLOCK_EVERY = 60.0


class Source:
    """One app and its broker."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._clock: tuple[int, float] | None = None

    @cached_property
    def transport(self) -> Transport:
        """The transitions. Raises as `reached`. After an error the next use tries again."""
        return reached(self.runtime)

    def now_ms(self) -> int:
        """Return the broker's time, in ms since the epoch. Raises as `transport`, and the errors of its driver."""
        if self._clock is None or time.monotonic() - self._clock[1] >= CLOCK_EVERY:
            self._clock = self.transport.now_ms(), time.monotonic()
        at_ms, at = self._clock
        return at_ms + round((time.monotonic() - at) * 1000)
