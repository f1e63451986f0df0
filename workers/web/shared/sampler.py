"""The figures of the broker, read once for everybody: the broker is asked every two seconds, however many pages are open."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from redelivery.errors import RedeliveryError
from redelivery.middleware.brokers.errors import BROKER_ERRORS

from ...brokers.broker import broker_of
from ...operations.metrics.metrics import Living, measured
from ...operations.metrics.rates import Rates
from .figures import Figures

if TYPE_CHECKING:
    from ...ports import Condition
    from .source import Source

#: Seconds between two looks, and between two questions how the broker itself is, for which RabbitMQ needs a connection of its own.
BEAT, PAUSE = 2.0, 10.0


class Sampler:
    """The figures of one page, at most two seconds old: the first request after that reads them again."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._living: Living | None = None
        self._rates: Rates | None = None
        self._looking = threading.Lock()
        self._figures: Figures | None = None
        self._condition: Condition | None = None
        self._asked: float | None = None

    def figures(self) -> Figures:
        """The figures. Raises what the broker does."""
        found = self._figures
        if found is None or time.monotonic() - found.taken >= BEAT:
            with self._looking:
                found = self._figures
                if found is None or time.monotonic() - found.taken >= BEAT:
                    found = self._figures = self._look()
        return found

    def _look(self) -> Figures:
        transport, runtime = self._source.transport, self._source.runtime
        if self._living is None:
            self._living = Living(runtime.settings.lease)
        if self._rates is None and Rates.can_read(runtime):
            self._rates = Rates(runtime)
        families = {each.name: each for each in measured(runtime, self._living)}
        if self._rates is not None:
            self._rates.read_on()
        return Figures(families, transport.now_ms(), self._rates, self._condition_now())

    def _condition_now(self) -> Condition | None:
        """What the broker says of itself, at most ten seconds old; None where this user of it may not ask."""
        checkup = broker_of(self._source.transport).checkup
        if checkup is not None and (self._asked is None or time.monotonic() - self._asked >= PAUSE):
            try:
                self._condition = checkup.condition((), (), None)
            except (RedeliveryError, *BROKER_ERRORS):
                self._condition = None
            self._asked = time.monotonic()
        return self._condition
