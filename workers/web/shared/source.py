"""Where a page looks: an app's installation, and its broker's transitions and clock, reached when they are first asked for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from redelivery.lazily import cached_property

from ...operations.reach import reached

if TYPE_CHECKING:
    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime


#: Seconds after which the broker is asked for its time again; until then this machine's clock counts on from its answer.
COUNTED_ON = 60.0


class Source:
    """One app and its broker."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._clock: tuple[int, float] | None = None

    @cached_property
    def transport(self) -> Transport:
        """The transitions. Raises as `reached`; after an error the next use tries again."""
        return reached(self.runtime)

    def now_ms(self) -> int:
        """The broker's time, ms since the epoch; asked for once a minute. Raises as `transport`, and what its driver raises."""
        if self._clock is None or time.monotonic() - self._clock[1] >= COUNTED_ON:
            self._clock = self.transport.now_ms(), time.monotonic()
        at_ms, at = self._clock
        return at_ms + round((time.monotonic() - at) * 1000)
