"""Shows a dead-letter queue of any size in pages, the newest dead letters first.

A page ends when it is full, at the end of the queue, or when it has read a maximum number of letters or taken a maximum time; the
next page continues there. Places count from the oldest letter, so new letters do not move them. A letter that leaves the queue
moves each newer letter by one place.

On RabbitMQ reading marks letters. `looked` reads a bounded number, and is called only if a person asks for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....brokers.broker import broker_of
from ....letters import Letter, may_be

if TYPE_CHECKING:
    from redelivery.middleware.ports import Transport

    from ..filter import Filter

#: Letters of the first round trip, and the maximum of later ones.
FIRST, LIMIT = 64, 1000
#: The maximum seconds for a page. `QUICK`: if it has a letter, and the filter has words, so that few letters are decoded. `SLOW`:
#: otherwise.
QUICK, SLOW = 0.06, 0.5
#: The number of letters on either side of a letter's last known place that are searched for it.
AROUND = 50


@dataclass(frozen=True, slots=True)
class Browsed:
    """One page: letters with their places. `looked_at` of the queue's `total` letters were read.

    The next page ends before the place `next`; None at the end of the queue.
    """

    letters: list[tuple[int, Letter]]
    looked_at: int
    total: int
    next: int | None


def browsed(
    transport: Transport,
    name: str,
    chosen: Filter,
    *,
    before: int | None,
    limit: int,
    most: int = 200_000,
    seconds: float | None = None,
) -> Browsed:
    """Return the newest `limit` letters that pass the filter, before the place `before` (None: the end)."""
    store, may_pass = broker_of(transport).letters, chosen.sieve()
    began = time.monotonic()
    ends = began + (SLOW if seconds is None else seconds)
    ends_with_some = began + QUICK if seconds is None and chosen.has_words else ends
    found: list[tuple[int, Letter]] = []
    looked_at, size = 0, FIRST
    while True:
        page = store.page(name, before, min(size, most - looked_at))
        for place, raw in page.letters:
            looked_at, before = looked_at + 1, place
            letter = Letter.of(raw) if may_pass(raw) else None
            if letter is not None and chosen.passes(letter):
                found.append((place, letter))
                if len(found) >= limit:
                    return Browsed(found, looked_at, page.total, place or None)
            elif letter is not None and time.monotonic() >= (ends_with_some if found else ends):
                return Browsed(found, looked_at, page.total, place or None)
        if not page.letters or not before:
            return Browsed(found, looked_at, page.total, None)
        if looked_at >= most or time.monotonic() >= (ends_with_some if found else ends):
            return Browsed(found, looked_at, page.total, before)
        size = min(size * 4, LIMIT)


def at_place(transport: Transport, name: str, task_id: str, place: int | None) -> list[tuple[int, Letter]]:
    """Return the letters of a task near this place, the nearest first; empty if they have left."""
    if place is None:
        return []
    page = broker_of(transport).letters.page(name, place + AROUND, 2 * AROUND)
    near = [(at, Letter.of(raw)) for at, raw in page.letters if may_be(raw, {task_id})]
    return sorted((each for each in near if each[1].task_id == task_id), key=lambda each: abs(each[0] - place))


def looked(transport: Transport, name: str, most: int) -> Browsed:
    """Return the `most` oldest letters of a queue. They are given back to the broker, which marks them as delivered before."""
    found: list[tuple[int, Letter]] = []
    with broker_of(transport).letters.open(name) as letters:
        for page in letters.pages():
            found += [(len(found) + at, Letter.of(raw)) for at, raw in enumerate(page)]
            if len(found) >= most:
                break
        total = letters.total
    return Browsed(found[:most], len(found), total, None)
