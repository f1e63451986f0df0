"""A message as operators see it, read from bytes that any client may have written.

Any bytes are accepted. If they are not a message, their id is derived from the bytes, as in a worker. A body is decoded only if its
content type is JSON; nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from redelivery.errors import EnvelopeError
from redelivery.middleware.messages.body import decoded
from redelivery.middleware.messages.envelope import Envelope, count, text, unreadable
from redelivery.middleware.messages.events import Reason
from redelivery.middleware.messages.recording import MAX_TEXT, about, raw_id, recorded_id
from redelivery.middleware.messages.steps import opened

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from redelivery.middleware.messages.events import Event, Outcome

#: The reason of a dead letter that somebody else put there, and all reasons by which dead letters are counted and chosen.
UNKNOWN = "unknown"
REASONS = (*map(str, Reason), UNKNOWN)
#: Ids that JSON writes without escapes.
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]+")


@dataclass(frozen=True, slots=True)
class Contents:
    """A parsed message. If the bytes are not a message, `message` is None and the other fields have their defaults."""

    raw: bytes
    message: dict[str, Any] | None
    envelope: Envelope
    task_id: str
    task: str = ""
    nesting: int = 0

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """Parse a message."""
        try:
            message = opened(raw)
        except EnvelopeError:
            return cls(raw, None, Envelope(), raw_id(raw))
        headers = message["headers"]
        return cls(
            raw,
            message,
            Envelope.of(headers),
            recorded_id(headers.get("id"), raw),
            _name(headers.get("task")),
            count(headers.get("replaced_task_nesting")),
        )

    @property
    def headers(self) -> dict[str, Any]:
        """The message's headers; empty if the bytes are not a message."""
        return {} if self.message is None else self.message["headers"]

    @property
    def generation(self) -> int:
        """The generation of the message's life."""
        return self.envelope.generation

    @property
    def is_task(self) -> bool:
        """Whether this is a Celery message."""
        return bool(self.task) and isinstance(self.headers.get("id"), str)

    def body(self) -> Any:
        """The decoded body if it is JSON; None if it is anything else, or cannot be read."""
        return None if self.message is None else decoded(self.message)

    def call(self) -> tuple[Any, Any, Any] | None:
        """Args, kwargs and embed, if the body is JSON of Celery's protocol 2; otherwise None."""
        body = self.body()
        return (body[0], body[1], body[2]) if isinstance(body, list) and len(body) == 3 else None  # noqa: PLR2004 - these three

    def body_bytes(self) -> bytes:
        """The body's bytes as they were published, without base64; all bytes if they are not a message."""
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

    def event(self, outcome: Outcome, queue: str, **more: Any) -> Event:
        """An event about this message."""
        return about(self.headers, queue, self.raw, outcome, self.envelope, **{"attempt": 0, "delivery": 0, **more})


class Letter(Contents):
    """A dead letter: a message with a death record, unless something other than redelivery put it into its queue."""

    __slots__ = ()

    @property
    def death(self) -> Mapping[str, Any]:
        """The record of the last death; empty if there is none."""
        return self.envelope.deaths[0] if self.envelope.deaths else {}

    @property
    def reason(self) -> str:
        """Why the message died."""
        return str(self.death.get("reason") or "")

    @property
    def known_reason(self) -> str:
        """The reason by which it is counted and chosen: `UNKNOWN` if it has none, or one that this version does not know."""
        return self.reason if self.reason in REASONS else UNKNOWN

    @property
    def died_ms(self) -> int | None:
        """The server's time of the last death; None if it is not recorded."""
        died: int | None = self.death.get("last")
        return died

    @property
    def unreadable(self) -> list[str]:
        """The fields of the header `redelivery` that cannot be read."""
        return unreadable(self.headers)

    @property
    def queue(self) -> str:
        """The queue in which the message died."""
        return str(self.death.get("queue") or self.origin_queue)

    @property
    def origin_queue(self) -> str:
        """The queue that a redrive sends the message to; empty if the dead letter names none."""
        return str(self.envelope.origin.get("queue") or "")

    @property
    def failure(self) -> Mapping[str, Any]:
        """The failure: `type`, `message`, `traceback`, `fingerprint`."""
        return self.envelope.failure or {}

    @property
    def is_message(self) -> bool:
        """Whether this is a message. A worker keeps bytes that it cannot decode as raw bytes, which nothing can run."""
        return self.message is not None and not (self.task_id.startswith("raw-") and "task" not in self.headers)

    def to_row(self) -> dict[str, Any]:
        """What a listing shows."""
        return {
            "task_id": self.task_id,
            "task": self.task,
            "generation": self.generation,
            "reason": self.reason,
            "attempts": self.envelope.attempt,
            "died_ms": self.died_ms,
            "queue": self.queue,
            "exception": str(self.failure.get("type") or ""),
            "message": str(self.failure.get("message") or ""),
            "fingerprint": str(self.failure.get("fingerprint") or ""),
        }


def may_be(raw: bytes, task_ids: Collection[str]) -> bool:
    """Whether these bytes may be a message of one of these tasks (no task given: of any). Far cheaper than decoding them."""
    return not task_ids or any(each.encode("utf-8", "replace") in raw or not stands_plainly(each) for each in task_ids)


def stands_plainly(word: str) -> bool:
    """Whether a message's bytes contain this word unchanged. A derived id (`raw-`) is not in the bytes."""
    return _PLAIN.fullmatch(word) is not None and not word.startswith("raw-")


def _name(value: object) -> str:
    return text(value if isinstance(value, str) else str(value or ""), MAX_TEXT)
