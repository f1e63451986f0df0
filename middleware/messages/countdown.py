"""Countdowns: a task waits, or expires, some seconds from now by the broker's clock, not by its producer's.

Celery turns `countdown`, and an `expires` that is a number, into a time by the producer's clock. Here the text of this time
remembers its seconds. If a script of redelivery publishes the message (Redis, Valkey), the script writes the broker's time instead,
so that also a worker without redelivery reads the right time. A time that was given as a time is not changed.

Limit: on other brokers the text is sent as Celery wrote it.
"""

from __future__ import annotations

import math
import time
import uuid
from typing import TYPE_CHECKING, Any, Self

from kombu.utils.json import JSONEncoder

from .ttl import PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Shared: kombu's `dumps` makes an encoder for each message.
_ENCODER = JSONEncoder()


class FromNow(str):
    """A time as Celery writes it, which was given as `seconds` after `made` (monotonic clock)."""

    __slots__ = ("made", "seconds")
    seconds: float
    made: float

    @classmethod
    def of(cls, text: str, seconds: float) -> Self:
        """The text that Celery has just made from `seconds`."""
        self = cls(text)
        self.seconds, self.made = seconds, time.monotonic()
        return self

    def left_ms(self) -> int:
        """Milliseconds left, rounded up: no task may run early."""
        return math.ceil((self.seconds - (time.monotonic() - self.made)) * 1000)


def from_now(headers: Mapping[str, Any]) -> dict[str, int]:
    """The headers whose times count from the publication, each with its milliseconds left."""
    return {name: headers[name].left_ms() for name in ("eta", "expires") if isinstance(headers.get(name), FromNow)}


def with_gaps(message: Mapping[str, Any], times: Mapping[str, int]) -> tuple[bytes, str]:
    """A message's bytes without these times, and the positions of the times in the form that `dated.lua` reads."""
    if not times:
        return _ENCODER.encode(message).encode(), ""
    marks = {name: uuid.uuid4().hex for name in times}
    rest = _ENCODER.encode({**message, "headers": {**message["headers"], **marks}}).encode()
    whole, gaps = b"", []
    for name in sorted(marks, key=lambda each, text=rest: text.index(marks[each].encode())):  # type: ignore[misc]
        is_number = name == PUBLISHED
        before, _, rest = rest.partition((f'"{marks[name]}"' if is_number else marks[name]).encode())
        whole += before
        gaps.append(f"{len(whole)}{'n' if is_number else 't'}{times[name]}")
    return whole + rest, ",".join(gaps)
