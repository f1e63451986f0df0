"""The cost of one `delay()` in the calling process. No worker runs."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks.figures import less, percentile
from benchmarks.sides import side

if TYPE_CHECKING:
    from benchmarks.figures import Figure

__all__ = ["producer"]

WARM_UP = 100


def producer(name: str, *, calls: int, settings: dict[str, Any] | None = None) -> dict[str, Figure]:
    """Call `delay()`: the time and the processor time of one call (µs). `settings` are redelivery's."""
    with side(name, settings) as here:
        send = here.sender("noop")
        for _ in range(WARM_UP):
            send()
        took, used = [], time.process_time()
        for _ in range(calls):
            began = time.perf_counter()
            send()
            took.append((time.perf_counter() - began) * 1e6)
        used = time.process_time() - used
    return {
        "delay_mean": less(statistics.fmean(took), "µs"),
        "delay_p50": less(percentile(took, 0.5), "µs"),
        "delay_p99": less(percentile(took, 0.99), "µs"),
        "producer_processor": less(used / calls * 1e6, "µs/call"),
    }
