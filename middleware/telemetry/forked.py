"""Forked processes: each has its own figures, and exports them before it ends.

A pool's child is forked from a process whose SDK runs. The SDK (1.45) gives the child its own id and exporting thread. But the
child also has the parent's measurements, and any lock that a thread of the parent held during the fork: it would export the
parent's histograms again, or wait for ever. So each forked process begins with no measurements and new locks (`reset`). The
SDK has no public way to do that, so an SDK with another structure is not changed.

A child that ends normally exports its spans and figures (`flush`), because a pool ends it without the SDK's exit handlers.
Limits: if a child is killed, its measurements since the last export are lost.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, trace

from ..logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

#: The constructor's arguments of an SDK's store of one reader's figures; earlier versions lack the last one.
PARTS: Final = (
    "_sdk_config",
    "_instrument_class_temporality",
    "_instrument_class_aggregation",
    "_instrument_class_cardinality_limit",
)
#: The longest wait for an export when a pool's child ends (seconds).
FLUSH: Final = 2.0


def reset() -> None:
    """Replace the parent's measurements in a forked process, and locks that a thread of the parent may have held."""
    consumer: Any = getattr(metrics.get_meter_provider(), "_measurement_consumer", None)
    stores = getattr(consumer, "_reader_storages", None)
    if not stores or not all(hasattr(store, PARTS[0]) for store in stores.values()):
        return
    try:
        fresh = {
            reader: type(store)(*(getattr(store, name) for name in PARTS if hasattr(store, name)))
            for reader, store in stores.items()
        }
    except Exception:  # noqa: BLE001 - an SDK with another structure is not changed
        log.exception("telemetry.failed", step="fork")
        return
    consumer._lock, consumer._reader_storages = threading.Lock(), fresh  # noqa: SLF001 - see above
    for reader in fresh:
        if hasattr(reader, "_export_lock"):
            reader._export_lock = threading.Lock()  # noqa: SLF001 - see above


def flush(**_: Any) -> None:
    """Export the spans and figures of a process that ends; wait at most `FLUSH` seconds, even if an exporter hangs."""
    flushes = [getattr(each, "force_flush", None) for each in (trace.get_tracer_provider(), metrics.get_meter_provider())]
    thread = threading.Thread(target=_all, args=([each for each in flushes if each is not None],), daemon=True)
    thread.start()
    thread.join(FLUSH)


def _all(flushes: list[Callable[[int], object]]) -> None:
    for each in flushes:
        try:
            each(round(FLUSH * 1000))
        except Exception:  # noqa: BLE001 - the process must end even without its collector
            log.exception("telemetry.failed", step="flush")
