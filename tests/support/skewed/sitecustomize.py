"""A wrong clock for a worker process, which imports this first. `CLOCK_SKEW` has the seconds. The monotonic clock stays right."""

import datetime  # noqa: ICN001 - its own name is what is replaced
import os
import time
from typing import Any

SKEW = float(os.environ.get("CLOCK_SKEW", "0"))
REAL, TIME = datetime.datetime, time.time


class _Kind(type):
    """Times made by C code are instances, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, REAL)


class Skewed(datetime.datetime, metaclass=_Kind):
    """`datetime.datetime` with the wrong clock."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)


if SKEW:
    Skewed.__name__ = Skewed.__qualname__ = "datetime"
    time.time = lambda: TIME() + SKEW
    datetime.datetime = Skewed  # type: ignore[misc]
