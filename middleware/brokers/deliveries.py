"""What a worker holds where there are no leases: its deliveries, under the channel that brought them; and how it does without.

A tag begins with the token of the connection under which its message came; once the consumer has connected anew, the tags from
before are no longer ours to end. The clock is this machine's: such brokers tell nobody their own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..ports import Answer, Held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery.worker.consumer import Consumer

    from ..ports import Deliveries, Pipeline, Transport

__all__ = ["Claim", "Delivered", "WithoutLeases"]


class WithoutLeases:
    """What a transport answers whose broker itself gives back what a dead worker held, and waits for no answer of ours."""

    def receive(
        self,
        consumer: Consumer,  # noqa: ARG002 - the port's
        owner: Deliveries,  # noqa: ARG002 - the port's
        limit: Callable[[], int],  # noqa: ARG002 - the port's
        on_garbage: Callable[[Held, Exception], None],  # noqa: ARG002 - the port's
    ) -> bool:
        """Kombu receives."""
        return False

    def pipeline(self, hub: Any, wait_for: Callable[..., None]) -> Pipeline | None:  # noqa: ARG002 - the port's
        """Each transition is waited for."""
        return None

    def is_transient(self, exc: BaseException) -> bool:
        """Whether the broker is away."""
        return isinstance(exc, OSError)

    def is_driver_error(self, exc: BaseException) -> bool:
        """Whether the connection broke."""
        return isinstance(exc, ConnectionError)

    def objection_to(self, queue: str) -> str | None:  # noqa: ARG002 - the port's
        """Queues have their names to themselves."""
        return None

    def origin_of(self, dead_letter_queue: str) -> str | None:  # noqa: ARG002 - the port's
        """Nobody keeps that."""
        return None

    def accept(self, tag: str) -> Answer:  # noqa: ARG002 - the port's
        """There is no place to record it: such a message is acknowledged."""
        return Answer.MISSING

    def extend(self, tags: Iterable[str], seconds: float) -> None:
        """Nobody sweeps."""

    def recorded_start(self, held: Held) -> str | None:  # noqa: ARG002 - the port's
        """No start is recorded."""
        return None

    def warn(self, queues: Sequence[str], letters: Iterable[str], management_url: str | None) -> None:
        """Nothing is known of what the broker does by itself."""


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

    def __init__(self, transport: Transport, worker: str) -> None:
        self.transport = transport
        self.worker = worker
        self.held: dict[str, Held] = {}
        self.token = ""

    def holds(self, tag: str) -> bool:
        """Whether this tag was given under the channel that the consumer has now."""
        return not tag or tag.startswith(self.token)

    def begin(self, instead_of: str) -> None:
        """There is no lease to open."""

    def is_alive(self) -> bool:
        """There is no lease to lose."""
        return True

    def part(self) -> None:
        """There is no lease to end."""

    def take(self, message: Any) -> Held | None:
        """A message as this worker holds it."""
        raise NotImplementedError

    def has_minted(self, tag: str) -> bool:  # noqa: ARG002 - the port's
        """Never: there are no leases here."""
        return False

    def now_ms(self) -> int:
        """This machine's time."""
        return time.time_ns() // 1_000_000

    def drop(self, tag: str) -> None:
        """Its move is under way, or answered: the message is no longer looked after here."""
        held = self.held.pop(tag, None)
        if held is not None:
            held.leave()

    def make_room(self, tag: str) -> None:
        """The broker keeps the prefetch window, by what is acknowledged."""

    def release(self, keep: set[str]) -> int:
        """Give back what has not run, but for the tags to `keep`; how many went back."""
        given = [held for tag, held in list(self.held.items()) if tag not in keep]
        count: int = self.transport.release(given)
        for held in given:
            self.held.pop(held.tag, None)
        return count
