"""Keys of another type under the name of a queue: another program uses them.

Such a key holds no message. It must not stop the work on other queues, so it is left out, and logged once in a process.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from redelivery.middleware.brokers.redis.scripts import text_of
from redelivery.middleware.logs import log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from redis import Redis

WHY = "something else uses this key: rename or delete the key, or give the queue another name"
WHY_LETTERS = "something else uses this key, which holds no dead letter: rename or delete the key, or set another dead_letter_queue"


def is_taken(answer: Any) -> bool:
    """Return whether the broker answered that the key of a queue has another type."""
    return isinstance(answer, ResponseError) and "WRONGTYPE" in str(answer)


@functools.lru_cache
def warn_of_taken(key: str) -> None:
    """Log that something else uses the key of a queue."""
    log.warning("queue.taken", key=key, why=WHY)


@functools.lru_cache
def warn_of_taken_letters(name: str, key: str, kind: str) -> None:
    """Log that something else uses the key of a dead-letter queue."""
    log.warning("dead_letter_queue.taken", dead_letter_queue=name, key=key, type=kind, why=WHY_LETTERS)


def is_list(kind: bytes | str) -> bool:
    """Return whether a key of this type may be a queue; an empty queue has no key."""
    return text_of(kind) in {"none", "list"}


@contextmanager
def leaving_out_taken(client: Redis, keys: Iterable[str]) -> Iterator[None]:
    """End the block, without an error, where one of these keys has another type, and log which."""
    try:
        yield
    except ResponseError as exc:
        taken = [key for key in keys if not is_list(client.type(key))] if is_taken(exc) else []
        if not taken:
            raise
        for key in taken:
            warn_of_taken(key)
