"""The outcome log on Redis: kept below its cap, and read as it grows.

The log is a stream. An export empties it (`redelivery.workers.export.export`); where nobody exports, it must not fill the broker:
beyond the cap the oldest events go, and what went is noted, so that the next export reports the gap and the books show it. A worker
calls `bound` every few seconds. In between the log may pass the cap by what is recorded in that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.logs import log
from redelivery.middleware.messages.events import Event

from ...export.batch import Refused, decoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from redis import Redis

    from redelivery.middleware.brokers.redis.keys import Keys

#: What is left of the cap where it was passed: the next time is some way off then, and a gap is one gap and not many.
LEAVE = 0.9
#: From this part of the cap on, somebody should hear of it.
FILLING = 0.8
#: From this part of the cap on, every block is measured. Below, a sample is near enough: a block is 4 KiB, whatever is in it.
EXACT = 0.3
#: Entries of one answer.
PAGE = 500

_BOUND = Script("bound")


@dataclass(frozen=True, slots=True)
class Bounded:
    """What `bound` found and did. `bytes` is what the log takes now; `removed` how many events went, unexported."""

    bytes: int
    cap: int
    removed: int

    @property
    def filling(self) -> bool:
        """Whether the log is four fifths full: it is time to export, or to raise the cap."""
        return self.removed > 0 or self.bytes >= FILLING * self.cap


def bound(client: Redis, keys: Keys, max_bytes: int) -> Bounded:
    """Keep the outcome log below `max_bytes`, in one script.

    Costs about 0.1 ms far from the cap, and near a cap of 256 MiB some milliseconds. Any number of workers may call it. Raises
    whatever redis-py raises.
    """
    _, after, removed = _BOUND(client, [keys.outcomes, keys.trimmed], [max_bytes, int(max_bytes * LEAVE), int(max_bytes * EXACT)])
    return Bounded(bytes=after, cap=max_bytes, removed=removed)


def follow(client: Redis, stream: str, from_id: str = "$", block_ms: int = 1000) -> Iterator[Event]:
    """Events after `from_id` (`0`: from the oldest on; `$`: from now on) as they are recorded, without end.

    The server is asked anew every `block_ms` milliseconds: keep that below the client's socket time-out. What is trimmed before
    it was read is left out; what is not ours is logged and left out.
    """
    while True:
        if from_id == "$":
            from_id = newest_id(client, stream)
        read, from_id = read_on(client, stream, from_id, block_ms=block_ms)
        for entry in read:
            if isinstance(entry, Event):
                yield entry
            else:
                log.warning("outcome_log.entry_refused", entry_id=entry.entry_id, why=entry.why)


def read_on(client: Redis, stream: str, from_id: str, *, block_ms: int | None = None) -> tuple[list[Event | Refused], str]:
    """The next entries behind `from_id`, at most `PAGE`, and the id to read on from; with `block_ms` it waits for the first."""
    answer: Any = client.xread({stream: from_id}, count=PAGE, block=block_ms)
    read: list[Event | Refused] = []
    for raw in _entries(answer):
        read += decoded(raw)
        from_id = _text(raw[-1][0])
    return read, from_id


def _entries(answer: Any) -> Iterator[list[tuple[Any, Mapping[Any, Any]]]]:
    """The entries of the one stream that XREAD was asked for: RESP2 answers with a list of streams, RESP3 with a mapping."""
    if not answer:
        return
    [found] = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]
    # Under RESP3 some versions of redis-py wrap the entries once more.
    if found and isinstance(found[0], list):
        [found] = found
    if found:
        yield found


def newest_id(client: Redis, stream: str) -> str:
    """The id of the newest entry, so that nothing that follows is missed between two questions."""
    newest: Any = client.xrevrange(stream, count=1)
    return _text(newest[0][0]) if newest else "0"


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
