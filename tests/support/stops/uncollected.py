"""Remote-control commands that find what tasks leave to the garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

from celery.worker.control import control_command

__all__: list[str] = []


@control_command()
def leave_uncollected(_: Any) -> str:
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    return "ok"


@control_command()
def uncollected(_: Any) -> dict[str, int]:
    """The types of the objects that only the collector could free, with their numbers."""
    gc.collect()
    names = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    gc.garbage.clear()
    return dict(names)
