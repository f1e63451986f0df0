"""The messages that a worker holds on a broker without leases: its deliveries.

A tag begins with the token of the connection that delivered its message. When the consumer has connected again, the worker can no
longer end messages with the earlier token. The clock is this machine's, because these brokers do not report their time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..ports import Held

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ports import Transport


class WithoutLeases:
    """The common part of transports without leases. The broker itself delivers a dead worker's messages again."""

    fast_path: None = None
    registry: None = None

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def is_transient(self, exc: BaseException) -> bool:
        return isinstance(exc, OSError)

    def is_driver_error(self, exc: BaseException) -> bool:
        return isinstance(exc, ConnectionError)


class Delivered(Held):
    """A held message. Its envelope is made when it is first needed, because few messages are moved."""

    __slots__ = ("_read",)

    _read: Callable[[], bytes] | bytes

    @property
    def raw(self) -> bytes:
        if not isinstance(self._read, bytes):
            self._read = self._read()
        return self._read

    @raw.setter
    def raw(self, value: Callable[[], bytes] | bytes) -> None:
        self._read = value


class Claim:
    """The messages that this worker holds (`Deliveries`)."""

    lease: None = None

    def __init__(self, transport: Transport, worker: str) -> None:
        self.transport = transport
        self.worker = worker
        self.held: dict[str, Held] = {}
        self.token = ""

    def holds(self, tag: str) -> bool:
        """Whether this tag belongs to the consumer's current connection."""
        return not tag or tag.startswith(self.token)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def drop(self, tag: str) -> None:
        held = self.held.pop(tag, None)
        if held is not None:
            held.leave()

    def release(self, keep: set[str]) -> int:
        given = [held for tag, held in list(self.held.items()) if tag not in keep]
        count: int = self.transport.release(given)
        for held in given:
            self.held.pop(held.tag, None)
        return count
