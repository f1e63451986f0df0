"""Countdowns: a task waits, or expires, a number of seconds from now, counted by the broker's clock and not by its producer's.

When a message is made, Celery turns `countdown`, and an `expires` that is a number, into a time, by the clock of the producer's
machine. Here the text of this time remembers its seconds. If a script of redelivery publishes the message (Redis, Valkey), the
script writes the broker's time instead, so that a worker without redelivery reads the right time, too. A time that was given as a
time is not changed.

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

#: kombu's `dumps` makes one for each message.
_ENCODER = JSONEncoder()


class FromNow(str):
    """A time as Celery has written it, which was given as `seconds` from `made` on (monotonic clock)."""

    __slots__ = ("made", "seconds")
    seconds: float
    made: float

    @classmethod
    def of(cls, text: str, seconds: float) -> Self:
        """The text that Celery has just made of `seconds`."""
        self = cls(text)
        self.seconds, self.made = seconds, time.monotonic()
        return self

    def left_ms(self) -> int:
        """How many milliseconds are left, rounded up: no task may run early."""
        return math.ceil((self.seconds - (time.monotonic() - self.made)) * 1000)


def from_now(headers: Mapping[str, Any]) -> dict[str, int]:
    """The headers whose times count from the publication, and how many milliseconds are left of each."""
    return {name: headers[name].left_ms() for name in ("eta", "expires") if isinstance(headers.get(name), FromNow)}


def with_gaps(message: Mapping[str, Any], times: Mapping[str, int]) -> tuple[bytes, str]:
    """A message's bytes without these headers' times, and the positions of the times, in the form that `dated.lua` reads."""
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
