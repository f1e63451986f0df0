"""The figures of the broker, read once for everybody: the broker is asked every two seconds, however many pages are open."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ...operations.metrics.metrics import Living, measured
from ...operations.metrics.rates import Rates
from .figures import Figures

if TYPE_CHECKING:
    from .source import Source

#: Seconds between two looks.
BEAT = 2.0


class Sampler:
    """The figures of one page, at most two seconds old: the first request after that reads them again."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._living: Living | None = None
        self._rates: Rates | None = None
        self._looking = threading.Lock()
        self._figures: Figures | None = None

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
        return Figures(families, transport.now_ms(), self._rates)
