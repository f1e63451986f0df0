"""The outcome log on Redis: a stream, kept below its cap, read as it grows, and exported by one process at a time.

An export empties the log (`redelivery.workers.export.export`). Without exports it must not fill the broker: a worker calls `bound`
every few seconds, which removes the oldest events beyond the cap and notes their number. The next export reports this gap.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.scripts import Script, text_of
from redelivery.middleware.logs import log
from redelivery.middleware.messages.events import Event, Outcome

from ...export.batch import Refused, decoded
from ...letters import Letter
from ...ports import Tail
from .transport import OnRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from redis import Redis

    from redelivery.middleware.brokers.redis.keys import Keys
    from redelivery.middleware.brokers.redis.transport import RedisTransport

    from ...ports import ExportResult, Format

#: A log that exceeds its cap is cut to this part of the cap: one large gap instead of many small ones.
LEAVE = 0.9
#: From this part of the cap on, the log counts as filling.
FILLING = 0.8
#: From this part of the cap on, every block of the stream is measured. Below it, a sample is exact enough.
EXACT = 0.3
#: The maximum number of entries in one answer, and how long a follower waits: less than the client's socket timeout.
PAGE, BLOCK_MS = 500, 1000

_BOUND = Script("bound")


@dataclass(frozen=True, slots=True)
class Bounded:
    """The result of `bound`: the log's size in `bytes`, and how many unexported events were `removed`."""

    bytes: int
    cap: int
    removed: int

    @property
    def filling(self) -> bool:
        """Whether the log is four fifths full, or was cut."""
        return self.removed > 0 or self.bytes >= FILLING * self.cap


def bound(client: Redis, keys: Keys, max_bytes: int) -> Bounded:
    """Keep the outcome log below `max_bytes`, in one script. Any number of workers may call it."""
    _, after, removed = _BOUND(client, [keys.outcomes, keys.trimmed], [max_bytes, int(max_bytes * LEAVE), int(max_bytes * EXACT)])
    return Bounded(bytes=after, cap=max_bytes, removed=removed)


def follow(client: Redis, stream: str, from_id: str, block_ms: int = BLOCK_MS) -> Iterator[Event]:
    """Yield the events after `from_id` as they are recorded, without end. Entries that redelivery did not write are logged."""
    while True:
        read, from_id = read_on(client, stream, from_id, block_ms=block_ms)
        for entry in read:
            if isinstance(entry, Event):
                yield entry
            else:
                log.warning("outcome_log.entry_refused", entry_id=entry.entry_id, why=entry.why)


def read_on(client: Redis, stream: str, from_id: str, *, block_ms: int | None = None) -> tuple[list[Event | Refused], str]:
    """Return at most `PAGE` entries after `from_id`, and the id to continue from. With `block_ms`, wait for the first entry."""
    raw = _entries(client.xread({stream: from_id}, count=PAGE, block=block_ms))
    return list(decoded(raw)), text_of(raw[-1][0]) if raw else from_id


def _entries(answer: Any) -> list[tuple[Any, Mapping[Any, Any]]]:
    """Return the entries of an answer to XREAD of one stream: a list of streams with RESP2, a mapping with RESP3."""
    if not answer:
        return []
    [found] = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]
    # With RESP3, some versions of redis-py wrap the entries once more.
    if found and isinstance(found[0], list):
        [found] = found
    return list(found)


def newest_id(client: Redis, stream: str) -> str:
    """Return the id of the newest entry; `0` if the stream is empty."""
    newest: Any = client.xrevrange(stream, count=1)
    return text_of(newest[0][0]) if newest else "0"


#: In one call: the maximum number of answers of the log, and of dead letters; the dead letters of each page after the first.
MAX_ANSWERS, MAX_LETTERS, LETTERS_PAGE = 100, 1000, 20
#: Seconds between two reads of a busy log.
PAUSE = 0.02


class Reading:
    """Reads new events. It also reads the newest dead letters, because an export may have taken their events out of the log."""

    def __init__(self, transport: RedisTransport, name: str, since_ms: int | None = None) -> None:
        self._client, self._log = transport.client, transport.keys.outcomes
        self._letters = transport.keys.list(name)
        self._began_ms = transport.now_ms() if since_ms is None else since_ms
        self._newest: Any = self._client.lindex(self._letters, 0) if since_ms is None else None
        self._at = newest_id(self._client, self._log) if since_ms is None else f"{since_ms}-0"

    def new_events(self, seconds: float) -> Iterator[Event]:
        """Yield the events since the last call. Wait at most `seconds` for the first."""
        block_ms = max(round(seconds * 1000), 1) if seconds > 0 else None  # Redis takes 0 as for ever
        is_busy = False
        for answers in range(MAX_ANSWERS):
            read, self._at = read_on(self._client, self._log, self._at, block_ms=None if answers else block_ms)
            yield from (each for each in read if isinstance(each, Event))
            is_busy = is_busy or bool(read)
            if len(read) < PAGE:
                break
        yield from self._arrived()
        if is_busy and seconds > 0:
            time.sleep(PAUSE)  # otherwise XREAD returns for each single event of a busy log

    def _arrived(self) -> Iterator[Event]:
        """Yield the deaths since the last call, the newest first, back to the first death before the redrive began."""
        known, at, size = self._newest, 0, 1
        while at < MAX_LETTERS:
            page: Any = self._client.lrange(self._letters, at, at + size - 1)
            if page and at == 0:
                self._newest = page[0]
            for raw in page:
                letter = Letter.of(raw)
                if raw == known or (letter.died_ms is not None and letter.died_ms < self._began_ms):
                    return
                yield _death(letter)
            if len(page) < size:
                return
            at, size = at + size, LETTERS_PAGE


def _death(letter: Letter) -> Event:
    raised = str(letter.failure.get("type") or "")
    return letter.event(Outcome.DEAD_LETTERED, letter.queue, reason=letter.reason, exception=raised)


class RedisOutcomeLog(OnRedis):
    """Implements `OutcomeLog` on Redis."""

    def lead(self, token: str, lead_ms: int) -> bool:
        return self._transport.leases.lead(self._keys.exporter, token, lead_ms / 1000)

    def export(self, destination: str, *, format: Format = "parquet", batch: int = 50_000) -> ExportResult:  # noqa: A002 - as `OutcomeLog`
        from ...export.export import export_outcomes  # noqa: PLC0415 - pyarrow is an optional dependency

        return export_outcomes(self._client, self._keys, destination, format=format, batch=batch)

    @contextmanager
    def tail(self, limit: int, *, is_followed: bool) -> Iterator[Tail]:  # noqa: ARG002 - the log can be read later
        raw: Any = self._client.xrevrange(self._keys.outcomes, count=max(limit, 1))
        last = raw[0][0].decode() if raw else "0"
        events = [each for each in decoded(reversed(raw[:limit])) if isinstance(each, Event)]
        yield Tail(events, 0, lambda: follow(self._client, self._keys.outcomes, last))

    @contextmanager
    def listen(self, dead_letter_queue: str, *, since_ms: int | None = None) -> Iterator[Callable[[float], Iterable[Event]]]:
        yield Reading(self._transport, dead_letter_queue, since_ms).new_events
