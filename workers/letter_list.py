"""The letters of one dead-letter queue, as a list that is read: what every tool for dead letters asks of a broker.

Enters: the transport of an app, and a queue's name. Leaves: the count, the newest letters, or all of them in pages, the oldest
first. On Redis reading changes nothing; RabbitMQ's letters are held while the list is open, and given back when it is closed
(`amqp_letters`). A walk that takes letters away does so between two pages, while the list is open.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

from redelivery.middleware.transports.base import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redelivery.middleware.transports.redis import RedisTransport

__all__ = ["LetterList", "RedisLetters", "letters_at"]

#: Letters that are read in one round trip.
PAGE = 1000
#: Pages get smaller where letters are huge.
MOST_BYTES = 8 * 1024 * 1024


class LetterList(AbstractContextManager["LetterList"], Protocol):
    """The letters of a queue, those that were there when it was opened."""

    @property
    def total(self) -> int:
        """How many there were."""
        ...

    def newest(self, limit: int) -> list[bytes]:
        """The `limit` newest, the newest first."""
        ...

    def pages(self, gone: Callable[[], int] = lambda: 0) -> Iterator[list[bytes]]:
        """All, the oldest first, in pages; `gone` says how many of them have left the queue so far."""
        ...


class RedisLetters:
    """A list of Redis: read a piece at a time."""

    def __init__(self, transport: RedisTransport, name: str) -> None:
        self._client, self._key = transport.client, transport.keys.list(name)
        self.total = 0

    def __enter__(self) -> Self:
        self.total = int(self._client.llen(self._key))
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def newest(self, limit: int) -> list[bytes]:
        """As `LetterList.newest`, whatever the queue's size."""
        raws: Any = self._client.lrange(self._key, 0, limit - 1) if limit > 0 else []
        return list(raws)

    def pages(self, gone: Callable[[], int] = lambda: 0) -> Iterator[list[bytes]]:
        """As `LetterList.pages`. What leaves the queue by other hands moves the rest: some may then be passed over."""
        seen, size = 0, PAGE
        while seen < self.total:
            count, staying = min(size, self.total - seen), seen - gone()
            page: Any = self._client.lrange(self._key, -(staying + count), -(staying + 1))
            if not page:
                return
            yield page[::-1]
            seen += len(page)
            size = max(size // 2, 1) if sum(map(len, page)) > MOST_BYTES else min(size * 2, PAGE)


def letters_at(transport: Any, name: str) -> LetterList:
    """The letters of the dead-letter queue `name`, to be opened with `with`."""
    if Capability.BROWSE_LETTERS_UNMARKED in transport.capabilities:
        return RedisLetters(transport, name)
    from redelivery.workers.amqp_letters import AmqpDesk  # noqa: PLC0415 - only where the broker is RabbitMQ

    return AmqpDesk.of(transport).letters(name)
