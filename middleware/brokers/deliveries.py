"""What a worker holds where there are no leases: its deliveries, under the channel that brought them; and how it does without.

A tag begins with the token of the connection under which its message came; once the consumer has connected anew, the tags from
before are no longer ours to end. The clock is this machine's: such brokers tell nobody their own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..ports import Held

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ports import Transport


class WithoutLeases:
    """What the transports have in common whose broker itself gives back what a dead worker held."""

    fast_path: None = None
    registry: None = None

    def is_transient(self, exc: BaseException) -> bool:
        return isinstance(exc, OSError)

    def is_driver_error(self, exc: BaseException) -> bool:
        """Whether the connection broke."""
        return isinstance(exc, ConnectionError)


class Delivered(Held):
    """A message that is held here: its envelope is made when it is first asked for, as few of them are moved."""

    __slots__ = ("_read",)

    _read: Callable[[], bytes] | bytes

    @property
    def raw(self) -> bytes:
        """Its envelope's bytes."""
        if not isinstance(self._read, bytes):
            self._read = self._read()
        return self._read

    @raw.setter
    def raw(self, value: Callable[[], bytes] | bytes) -> None:
        self._read = value


class Claim:
    """Who holds what (`Deliveries`)."""

    lease: None = None

    def __init__(self, transport: Transport, worker: str) -> None:
        self.transport = transport
        self.worker = worker
        self.held: dict[str, Held] = {}
        self.token = ""

    def holds(self, tag: str) -> bool:
        """Whether this tag was given under the channel that the consumer has now."""
        return not tag or tag.startswith(self.token)

    def now_ms(self) -> int:
        """This machine's time."""
        return time.time_ns() // 1_000_000

    def drop(self, tag: str) -> None:
        """Its move is under way, or answered: the message is no longer looked after here."""
        held = self.held.pop(tag, None)
        if held is not None:
            held.leave()

    def release(self, keep: set[str]) -> int:
        given = [held for tag, held in list(self.held.items()) if tag not in keep]
        count: int = self.transport.release(given)
        for held in given:
            self.held.pop(held.tag, None)
        return count
