"""Forked processes: each has its own figures, and exports them before it ends.

A pool's child is forked from a process whose SDK runs. The SDK (1.45) gives it an id and an exporting thread of its own. But the
child also has the parent's measurements, and any lock that a thread of the parent held during the fork: it would export the
parent's histograms again, or wait for ever. So each forked process begins with no measurements and with locks of its own
(`begin_anew`). The SDK has no public way to do that, so only the known versions are changed.

A child that ends normally exports its spans and figures (`flush`): a pool ends it without the exit handlers that an SDK has
registered for that.
Limits: if a child is killed, its measurements since the last export are lost.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, trace

from ..logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

#: The attributes from which an SDK's store of one reader's figures is made; earlier versions do not have the last one.
PARTS: Final = (
    "_sdk_config",
    "_instrument_class_temporality",
    "_instrument_class_aggregation",
    "_instrument_class_cardinality_limit",
)
#: How long a pool's child that ends waits until its spans and figures are exported (seconds).
FLUSH: Final = 2.0


def begin_anew() -> None:
    """This process was forked: replace the parent's measurements, and locks that a thread of the parent may have held."""
    consumer: Any = getattr(metrics.get_meter_provider(), "_measurement_consumer", None)
    stores = getattr(consumer, "_reader_storages", None)
    if not stores or not all(hasattr(store, PARTS[0]) for store in stores.values()):
        return
    try:
        fresh = {reader: type(store)(*_parts(store)) for reader, store in stores.items()}
    except Exception:  # noqa: BLE001 - an SDK with another structure is not changed
        log.exception("telemetry.failed", step="fork")
        return
    consumer._lock, consumer._reader_storages = threading.Lock(), fresh  # noqa: SLF001 - see above
    for reader in fresh:
        if hasattr(reader, "_export_lock"):
            reader._export_lock = threading.Lock()  # noqa: SLF001 - see above


def _parts(store: object) -> list[Any]:
    return [getattr(store, name) for name in PARTS if hasattr(store, name)]


def flush(**_: Any) -> None:
    """This process ends: export its spans and figures, and wait for that at most `FLUSH` seconds, even if an exporter hangs."""
    flushes = [getattr(each, "force_flush", None) for each in (trace.get_tracer_provider(), metrics.get_meter_provider())]
    thread = threading.Thread(target=_all, args=([each for each in flushes if each is not None],), daemon=True)
    thread.start()
    thread.join(FLUSH)


def _all(flushes: list[Callable[[int], object]]) -> None:
    for each in flushes:
        try:
            each(round(FLUSH * 1000))
        except Exception:  # noqa: BLE001 - the process ends also if its collector is gone
            log.exception("telemetry.failed", step="flush")
