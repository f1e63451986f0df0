"""What all transitions on Redis have in common: a client, its names, and how the words of a script are written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ports import Answer

if TYPE_CHECKING:
    from redis import Redis

    from ...messages.events import Event
    from .keys import Keys

__all__ = ["OnRedis", "answer_of", "encoded", "text_of"]


class OnRedis:
    """Transitions on one client; safe to call from any thread."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys


def encoded(event: Event) -> list[bytes]:
    """An event's values as bytes, whatever is in them."""
    return [str(value).encode("utf-8", "replace") for value in event.to_entry()]


def answer_of(value: Any) -> Answer:
    """What a script answered. Raises `ValueError` where it is none of its answers."""
    return Answer(text_of(value))


def text_of(value: Any) -> str:
    """A value of the server's as text, whichever it has come as."""
    return value.decode() if isinstance(value, bytes) else str(value)
