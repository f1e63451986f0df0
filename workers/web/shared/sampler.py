"""Reads the figures of the broker for all requests: at most every two seconds, in a thread.

If the broker is slow, a request does not wait for new figures: it gets the last ones, which say how old they are.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from redelivery.lazily import cached_property
from redelivery.middleware.brokers.errors import EXPECTED_ERRORS

from ...brokers.broker import broker_of
from ...operations.metrics.metrics import Living, measured
from ...operations.metrics.rates import Rates
from ..guard import Refused
from .figures import Figures

if TYPE_CHECKING:
    from ...ports import Condition
    from .source import Source

#: Seconds between two measurements, and between two requests for the broker's condition, which need a new connection to RabbitMQ.
BEAT, PAUSE = 2.0, 10.0
#: The maximum seconds that a request waits for the first figures, and for newer ones; the maximum age of figures that are shown.
FIRST, TIMEOUT, KEPT = 6.0, 1.0, 60.0
SLOW = "The broker answers slowly: its figures are not there yet."


class Sampler:
    """The figures for one page; at most two seconds old if the broker answers in time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rates: Rates | None = None
        self._lock = threading.Lock()
        self._measuring: Future[Figures] | None = None
        self._figures: Figures | None = None
        self._ended = 0.0
        self._condition: Condition | None = None
        self._asked: float | None = None

    @cached_property
    def living(self) -> Living:
        """The leases of earlier measurements."""
        return Living(self._source.runtime.settings.lease)

    def figures(self) -> Figures:
        """The newest figures. Raises the errors of the broker's driver, and `Refused` if there are no figures yet."""
        with self._lock:
            found, measuring, age = self._figures, self._measuring, time.monotonic() - self._ended
            if found is not None and age < BEAT:
                return found
            if measuring is None:
                measuring = self._measuring = Future()
                threading.Thread(target=self._run, args=(measuring,), name="redelivery-web-figures", daemon=True).start()
        last = found if age < KEPT else None
        if wait([measuring], FIRST if last is None else TIMEOUT).done:
            return measuring.result()
        if last is None:
            raise Refused(503, SLOW)
        return last

    def _run(self, measuring: Future[Figures]) -> None:
        try:
            figures = self._figures = self._measure(time.monotonic())
            self._ended = time.monotonic()
        except Exception as exc:  # noqa: BLE001 - the waiting requests raise it
            self._measuring = None
            measuring.set_exception(exc)
        else:
            self._measuring = None
            measuring.set_result(figures)

    def _measure(self, began: float) -> Figures:
        transport, runtime = self._source.transport, self._source.runtime
        if self._rates is None and Rates.can_read(runtime):
            self._rates = Rates(runtime)
        families = {each.name: each for each in measured(runtime, self.living)}
        if self._rates is not None:
            self._rates.read_on()
        rates = None if self._rates is None else self._rates.copied()
        return Figures(families, transport.now_ms(), rates, self._condition_now(), began)

    def _condition_now(self) -> Condition | None:
        """What the broker reports about itself, at most ten seconds old; None if the broker refuses."""
        if self._asked is None or time.monotonic() - self._asked >= PAUSE:
            try:
                self._condition = broker_of(self._source.transport).checkup.condition((), (), None)
            except EXPECTED_ERRORS:
                self._condition = None
            self._asked = time.monotonic()
        return self._condition
