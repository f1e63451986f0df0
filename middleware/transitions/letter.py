"""A dead letter, as its handler sees it, and the decisions of a handler.

`worker.deliveries.letter_handler` carries the decision out. A letter is never unpickled: a body that is not JSON has no `args`. An
impossible redrive raises inside the handler, which can catch it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from redelivery.errors import EnvelopeError, RedriveError
from redelivery.lazily import cached_property

from ..messages.body import edited, parts_of
from ..messages.envelope import Envelope
from ..messages.recording import raw_id
from ..messages.steps import opened, redriven

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .homes import Homes


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterDecision:
    """A decision about a dead letter, made by the methods of `Letter`; `detail` is for the log."""

    kind: Literal["redrive", "archive", "discard", "park"]
    detail: str = ""
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None
    task: str | None = None
    queue: str | None = None


@dataclass(frozen=True)
class Letter:
    """A dead letter, as its handler sees it. Times are milliseconds since the epoch, by the broker's clock."""

    raw: bytes
    message: dict[str, Any]
    envelope: Envelope = field(repr=False)
    _homes: Homes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, raw: bytes, homes: Homes | None = None) -> Letter:
        """Read a dead letter. Raises `EnvelopeError` if the bytes are no message. `homes` decides where it may go back to."""
        message = opened(raw)
        return cls(raw, message, Envelope.of(message["headers"]), homes)

    @property
    def task_id(self) -> str:
        """The task's id."""
        own = self.message["headers"].get("id")
        return own if isinstance(own, str) else raw_id(self.raw)

    @property
    def task(self) -> str:
        """The task's name; empty if the letter names no task."""
        return str(self.message["headers"].get("task") or "")

    @property
    def headers(self) -> Mapping[str, Any]:
        """The message's headers."""
        headers: Mapping[str, Any] = self.message["headers"]
        return headers

    @cached_property
    def _body(self) -> list[Any] | None:
        return parts_of(self.message)

    @property
    def args(self) -> list[Any] | None:
        """The positional arguments; None if the body is not JSON of a Celery call."""
        return None if self._body is None else list(self._body[0])

    @property
    def kwargs(self) -> dict[str, Any] | None:
        """The keyword arguments; None if the body is not JSON of a Celery call."""
        return None if self._body is None else dict(self._body[1])

    @property
    def reason(self) -> str:
        """The reason of its last death."""
        return str(self.envelope.deaths[0].get("reason") or "") if self.envelope.deaths else ""

    @property
    def queue(self) -> str:
        """The origin queue that it names. A redrive goes back there if the app has this queue."""
        return str(self.envelope.origin.get("queue") or "")

    @property
    def deaths(self) -> tuple[Mapping[str, Any], ...]:
        """Its deaths, the newest first: queue, reason, count, first, last."""
        return self.envelope.deaths

    @property
    def first_death(self) -> Mapping[str, Any] | None:
        """Queue, reason and time of the first death."""
        return self.envelope.first_death

    @property
    def failure(self) -> Mapping[str, Any]:
        """The failure that ended it: type, message, traceback, fingerprint."""
        return self.envelope.failure or {}

    @property
    def generation(self) -> int:
        """How often it was redriven before."""
        return self.envelope.generation

    @property
    def attempts(self) -> int:
        """How many deliveries its task had."""
        return self.envelope.attempt

    @property
    def handled(self) -> int:
        """How often a handler has failed on it."""
        return self.envelope.handled

    # decisions

    def redrive(
        self,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task: str | None = None,
        queue: str | None = None,
    ) -> LetterDecision:
        """Send it back to its origin, or to `queue`, in a new generation, with these arguments or this task if they are given.

        Raises `RedriveError` if it cannot go back, or its arguments cannot be edited. Its origin must be a queue of the app, and
        `queue` must not be a name that redelivery, kombu or Celery uses itself.
        """
        try:
            if self._homes is not None:
                _ = self._homes.of(self.envelope) if queue is None else self._homes.to(queue)
            edited(redriven(self.message, None if queue is None else ("", queue)), args=args, kwargs=kwargs, task=task)
        except EnvelopeError as exc:
            raise RedriveError(str(exc)) from exc
        given = None if args is None else tuple(args), None if kwargs is None else dict(kwargs)
        return LetterDecision(kind="redrive", args=given[0], kwargs=given[1], task=task, queue=queue)

    def archive(self, why: str = "") -> LetterDecision:
        """Write it to the archive (`dead_letter_archive`) and remove it from the queue: recorded as `purged`."""
        return LetterDecision(kind="archive", detail=why)

    def discard(self, why: str = "") -> LetterDecision:
        """Remove it from the queue without keeping it: recorded as `discarded`."""
        return LetterDecision(kind="discard", detail=why)

    def park(self, why: str = "") -> LetterDecision:
        """Move it to the dead-letter queue of this dead-letter queue, where it is kept and no longer delivered to the handler."""
        return LetterDecision(kind="park", detail=why)
