"""The contents of a message as an operator sees them: what it says of itself, read from bytes that anybody may have written.

Enters: the bytes of a message, wherever it lies. Leaves: who it is (task id, generation, nesting), what it is (task, priority,
envelope) and, on demand, its body. Refuses nothing: bytes that are no message have an id made from themselves, as ingress gives
them. A body is looked at only where it says that it is JSON; nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from redelivery.errors import EnvelopeError
from redelivery.middleware.bodies import decoded, without_chord
from redelivery.middleware.envelope import Envelope, opened
from redelivery.middleware.header import count, text
from redelivery.middleware.outcomes import Event

if TYPE_CHECKING:
    from redelivery.middleware.outcomes import Outcome

__all__ = ["Contents"]

#: The most of an id or a name that is recorded, as in the events of ingress.
MOST_NAME = 256


@dataclass(frozen=True, slots=True)
class Contents:
    """A message, read. `message` is None where the bytes are none; everything else then has its default."""

    raw: bytes
    message: dict[str, Any] | None
    envelope: Envelope
    task_id: str
    task: str = ""
    nesting: int = 0
    priority: int = 0

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """Read a message."""
        try:
            message = opened(raw)
        except EnvelopeError:
            return cls(raw, None, Envelope(), _raw_id(raw))
        headers, priority = message["headers"], message["properties"].get("priority")
        task_id = headers.get("id")
        return cls(
            raw,
            message,
            Envelope.of(headers),
            text(task_id, MOST_NAME) or _raw_id(raw),
            _name(headers.get("task")),
            count(headers.get("replaced_task_nesting")),
            count(priority),
        )

    @property
    def headers(self) -> dict[str, Any]:
        """The message's headers."""
        return {} if self.message is None else self.message["headers"]

    @property
    def is_task(self) -> bool:
        """Whether this is a message of Celery's."""
        return bool(self.task) and isinstance(self.headers.get("id"), str)

    def body(self) -> Any:
        """The body, decoded, where it is plain JSON; None where it is anything else, or cannot be read."""
        return None if self.message is None else decoded(self.message)

    def body_bytes(self) -> bytes:
        """The body as it was published, out of its base64 and undecoded; what is no message is all body."""
        if self.message is None:
            return self.raw
        body = self.message.get("body")
        if not isinstance(body, str):
            return json.dumps(body).encode()
        published = body.encode("utf-8", "surrogatepass")
        if self.message["properties"].get("body_encoding") != "base64":
            return published
        try:
            return base64.b64decode(published)
        except ValueError:
            return published

    def without_chord(self) -> tuple[dict[str, Any], bool]:
        """The message as it is once it belongs to no chord any more, and whether it belonged to one."""
        assert self.message is not None  # noqa: S101 - the callers have looked
        return without_chord(self.message)

    def event(self, outcome: Outcome, queue: str, **more: Any) -> Event:
        """An event about this message."""
        headers = self.headers
        return Event(
            task_id=self.task_id,
            outcome=outcome,
            task=self.task,
            queue=self.envelope.life_queue(queue),
            root_id=_name(headers.get("root_id")),
            parent_id=_name(headers.get("parent_id")),
            nesting=self.nesting,
            **more,
        )


def _raw_id(raw: bytes) -> str:
    """The id of what has none, as in the events of ingress."""
    return f"raw-{hashlib.sha1(raw, usedforsecurity=False).hexdigest()}"


def _name(value: object) -> str:
    return text(value if isinstance(value, str) else str(value or ""), MOST_NAME)
