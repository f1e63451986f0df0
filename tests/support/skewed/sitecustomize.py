"""A machine whose clock is wrong: on the path of a worker process, before anything else is imported.

`CLOCK_SKEW` says by how many seconds. The monotonic clock is not touched: it has no date to be wrong about.
"""

import datetime  # noqa: ICN001 - its own name is what is replaced
import os
import time
from typing import Any

SKEW = float(os.environ.get("CLOCK_SKEW", "0"))
REAL, TIME = datetime.datetime, time.time


class _Kind(type):
    """A time that C code has made is one, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, REAL)


class Skewed(datetime.datetime, metaclass=_Kind):
    """`datetime.datetime` on that machine."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        """By the wrong clock."""
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        """By the wrong clock."""
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)


if SKEW:
    Skewed.__name__ = Skewed.__qualname__ = "datetime"
    time.time = lambda: TIME() + SKEW
    datetime.datetime = Skewed  # type: ignore[misc]
