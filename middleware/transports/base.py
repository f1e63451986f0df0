"""What every transport offers the middleware: the moves of a message that a worker holds, and its answers.

A move is asked for with the tag under which the message is held. It is answered `DONE`; or `ALREADY`, when an earlier asking of the
same move was carried out and its answer was lost; or `REFUSED`, when the message has meanwhile been given to another worker; or
`MISSING`, when the queue that it should go to is not there and may not be made: then nothing has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redelivery.middleware.outcomes import Event

__all__ = ["Answer", "Held", "Transport"]


class Answer(StrEnum):
    """How a transition ended."""

    DONE = "done"
    ALREADY = "already"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(slots=True, eq=False)
class Held:
    """A message that this worker holds: the tag it is held under, where it came from, its bytes, and when it came (server's ms).

    `release_credit` gives its place in the prefetch window back; the receiver sets it. `request` is Celery's, once there is one.
    """

    tag: str
    queue: str
    list_name: str
    raw: bytes
    seen_ms: int
    release_credit: Callable[[], None] = field(default=lambda: None)
    request: Any = None


class Transport(Protocol):
    """The transitions; each is one step of the broker's, which happens whole or not at all."""

    def acknowledge(self, tag: str, event: Event | None) -> Answer:
        """End the message."""
        ...

    def defer(
        self,
        tag: str,
        list_name: str,
        message: bytes,
        *,
        task_id: str,
        event: Event | None,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        first: bool = False,
    ) -> Answer:
        """Move the message to the delay store, or straight back to its list where nothing is left to wait."""
        ...

    def dead_letter(
        self,
        tag: str,
        message: bytes,
        *,
        dead_letter_queue: str,
        queue: str,
        event: Event | None,
        must_exist: bool = False,
    ) -> Answer:
        """Move the message to a dead-letter queue, where that is there, or (unless it `must_exist`) may be made."""
        ...

    def start(self, tag: str) -> Answer:
        """Record that the message is about to run."""
        ...

    def release(self, held: Sequence[Held]) -> int:
        """Put messages that were not run back to where they were taken from."""
        ...
