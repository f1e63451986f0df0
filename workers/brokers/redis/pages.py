"""Pages: reading what may be huge, a bounded piece at a time, so that the broker serves others in between.

An element of a list or a hash may come twice. What stays in it from the first page to the last is not missed, though others come
and go meanwhile: taking an element from the middle of a list moves those behind it, so each page begins with the last element of
the one before, and where that is not found in it, the reading goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

#: Elements of one page at the most, of its beginning, and the bytes that it should not pass: a millisecond or less for the broker,
#: besides the walk to it.
PAGE, FIRST_PAGE, MAX_BYTES = 400, 100, 1024 * 1024
#: Fields of one page of a hash.
FIELDS = 250
#: How often the reading of one list goes back before it takes what it finds: a list that is emptied from both ends has no middle.
MAX_RETURNS = 1000


def list_pages(client: Redis, key: str, page: int = PAGE) -> Iterator[tuple[int, list[bytes]]]:
    """The elements of a list from its head (the newest message) on, each page with the server's time (ms) of its reading.

    A list has no cursor: the broker walks to each page from the nearer end, 1.5 to 3 ms to the middle of a million messages.
    """
    start, returns, size = 0, 0, min(page, FIRST_PAGE)
    last: bytes | None = None
    while True:
        with client.pipeline(transaction=False) as pipe:
            pipe.lrange(key, start, start + size - 1)
            pipe.time()
            got, now = pipe.execute()
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
    """The fields of a hash in no order, each page with the server's time (ms) of its reading."""
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
