"""A dead letter, as its handler sees it, and what the handler may decide about it.

`worker.letter_handler` carries the decision out. A letter is never unpickled: a body that is not JSON has no `args`. A redrive that
cannot be carried out is refused while the handler can still catch that.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from redelivery.errors import EnvelopeError, RedriveError

from ..messages.body import decoded, edited
from ..messages.envelope import Envelope
from ..messages.recording import raw_id
from ..messages.steps import opened, redriven

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .homes import Homes


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterDecision:
    """What is to become of a letter. Made by the methods of `Letter`; `detail` is for the log."""

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
        """Read it. Raises `EnvelopeError` where it is no message. `homes` says where it may go back to."""
        message = opened(raw)
        return cls(raw, message, Envelope.of(message["headers"]), homes)

    @property
    def task_id(self) -> str:
        """The task's id."""
        said = self.message["headers"].get("id")
        return said if isinstance(said, str) else raw_id(self.raw)

    @property
    def task(self) -> str:
        """The task's name; empty where the letter is no task."""
        return str(self.message["headers"].get("task") or "")

    @property
    def headers(self) -> Mapping[str, Any]:
        """The message's headers."""
        headers: Mapping[str, Any] = self.message["headers"]
        return headers

    @functools.cached_property
    def _body(self) -> Any:
        body = decoded(self.message)
        return body if isinstance(body, list) and len(body) == 3 else None  # noqa: PLR2004 - args, kwargs, embed

    @property
    def args(self) -> list[Any] | None:
        """The positional arguments; None where the body is not JSON."""
        return None if self._body is None else list(self._body[0])

    @property
    def kwargs(self) -> dict[str, Any] | None:
        """The keyword arguments; None where the body is not JSON."""
        return None if self._body is None else dict(self._body[1])

    @property
    def reason(self) -> str:
        """Why it died last."""
        return str(self.envelope.deaths[0].get("reason") or "") if self.envelope.deaths else ""

    @property
    def queue(self) -> str:
        """The queue that it says it came from; it goes back there where that is a queue of the app."""
        return str(self.envelope.origin.get("queue") or "")

    @property
    def deaths(self) -> tuple[Mapping[str, Any], ...]:
        """Its deaths, the newest first: queue, reason, count, first, last."""
        return self.envelope.deaths

    @property
    def first_death(self) -> Mapping[str, Any] | None:
        """Queue, reason and time of the first one."""
        return self.envelope.first_death

    @property
    def failure(self) -> Mapping[str, Any]:
        """What it died of: type, message, traceback, fingerprint."""
        return self.envelope.failure or {}

    @property
    def generation(self) -> int:
        """How often it was sent back before."""
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
        """Back to its origin, or to `queue`, for another life; with other arguments or another task where they are given.

        Raises `RedriveError` where it cannot go back, or its arguments cannot be edited. Its origin must be a queue of the app, and
        `queue` no name that this project, kombu or Celery uses itself.
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
        """Into the archive (`dead_letter_archive`), and out of the queue: recorded as `purged`."""
        return LetterDecision(kind="archive", detail=why)

    def discard(self, why: str = "") -> LetterDecision:
        """Away: recorded as `discarded`."""
        return LetterDecision(kind="discard", detail=why)

    def park(self, why: str = "") -> LetterDecision:
        """Into the dead-letter queue of this dead-letter queue: held, and not delivered again."""
        return LetterDecision(kind="park", detail=why)
