"""Under which id a message is recorded, and the envelope of one that has none: whatever its bytes are, it has both."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Protocol

__all__ = ["MAX_TEXT", "Bytes", "raw_id", "recorded_id", "wrapped"]

#: Characters of an id, or of a name, that are recorded.
MAX_TEXT = 256


class Bytes(Protocol):
    """A message and the queue that it is in, as far as an event needs them."""

    @property
    def queue(self) -> str:
        """The queue."""
        ...

    @property
    def raw(self) -> bytes:
        """The whole message."""
        ...


def recorded_id(said: object, held: Bytes) -> str:
    """The id under which a message is recorded that says this of its id: cut, or made from its bytes, where it is none."""
    return said[:MAX_TEXT] if isinstance(said, str) and said else raw_id(held.raw)


def raw_id(raw: bytes) -> str:
    """The id under which a message without one of its own is recorded: equal bytes, equal id."""
    return f"raw-{hashlib.sha1(raw, usedforsecurity=False).hexdigest()}"


def wrapped(raw: bytes) -> dict[str, Any]:
    """An envelope for bytes that have none: they are its body, in base64, whatever they are."""
    return {
        "body": base64.b64encode(raw).decode(),
        "content-type": "application/octet-stream",
        "content-encoding": "binary",
        "headers": {"id": raw_id(raw)},
        "properties": {"body_encoding": "base64", "delivery_tag": "raw", "delivery_info": {}},
    }
