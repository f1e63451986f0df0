"""Reads huge lists and hashes in bounded pages, so that the broker serves other clients in between.

An element may come twice. An element that stays from the first page to the last is not missed: if another element is removed from a
list, the later ones move, so each page begins with the last element of the page before. If it is not there, the reader goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .taken_keys import is_taken, warn_of_taken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

#: The maximum number of elements of a page and of the first page, and the bytes that a page should not exceed: they cost the broker
#: at most a millisecond, in addition to the walk to the page.
PAGE, FIRST_PAGE, MAX_BYTES = 400, 100, 1024 * 1024
#: Fields of one page of a hash.
FIELDS = 250
#: How often a reader goes back before it accepts the page that it gets: clients may empty a list from both ends.
MAX_RETURNS = 1000


def list_pages(client: Redis, key: str, page: int = PAGE) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the elements of a list from its head (the newest message) on, each page with the server's time (ms).

    A list has no cursor: the broker walks to each page from the nearer end.
    """
    start, returns, size = 0, 0, min(page, FIRST_PAGE)
    last: bytes | None = None
    while True:
        with client.pipeline(transaction=False) as pipe:
            pipe.lrange(key, start, start + size - 1)
            pipe.time()
            got, now = pipe.execute(raise_on_error=False)
        if is_taken(got):
            warn_of_taken(key)
            return
        for error in (each for each in (got, now) if isinstance(each, Exception)):
            raise error
        if last is not None and start and last not in got and returns < MAX_RETURNS:
            start, returns = max(start - size, 0), returns + 1
            continue
        if got:
            yield int(now[0]) * 1000 + int(now[1]) // 1000, got
        if len(got) < size:
            return
        last = got[-1]
        start += len(got) - 1
        size = max(min(page, MAX_BYTES * len(got) // (sum(map(len, got)) + 1)), 2)


def hash_pages(client: Redis, key: str, page: int = FIELDS) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    """Yield the fields of a hash in no order, each page with the server's time (ms)."""
    cursor = 0
    while True:
        with client.pipeline(transaction=False) as pipe:
            pipe.hscan(key, cursor, count=page)
            pipe.time()
            (cursor, got), now = pipe.execute()
        if got:
            yield int(now[0]) * 1000 + int(now[1]) // 1000, got
        if cursor == 0:
            return
