"""A batch of the outcome log for the export: entries, the log's cursor, and the gaps before the entries.

The entries of a page and the log's counters are read at one instant. A gap is found by arithmetic: the stream counts all entries
ever added to it, and the cursor holds how many were exported. Entries that were not exported and are no longer in the stream are
lost, whatever removed them. Nothing is changed here. Entries that redelivery did not write, and events with numbers too large for
their columns, are refused one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.errors import BrokerError, EnvelopeError
from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.messages.events import LATEST_MS, Event, entry_text

from ..ports import Gap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from redis import Redis

    from redelivery.middleware.brokers.redis.keys import Keys

#: Entries of one answer: while the broker writes it (about 2 ms), all other clients wait.
PAGE = 1000
OTHER_EXPORT = "another export moved the cursor meanwhile: nothing is lost, but run one export at a time"

_READ_LOG = Script("read_log")


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused entry of the stream, and why."""

    entry_id: str
    values: dict[str, str]
    why: str


@dataclass(slots=True)
class Batch:
    """A part of the log, from the cursor (`began`) to `last`, the stream's entry number `position`."""

    began: tuple[str, int] = ("", 0)
    last: str = "0-0"
    position: int = 0
    newest: str = "0-0"
    trimmed_at: str = ""
    #: When it was read (the server's milliseconds), and whether the log held the entry `looked_for`.
    now_ms: int = 0
    has_entry: bool = False
    entries: list[Event | Refused] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries, and the log's counters at the same instant."""

    raw: list[tuple[Any, dict[Any, Any]]]
    cursor: tuple[str, int]
    gone: int
    newest: str
    trimmed: dict[str, str]
    now_ms: int
    has_entry: bool


def take(client: Redis, keys: Keys, size: int, looked_for: str = "") -> Batch:
    """Read a batch of at most `size` entries in pages; `has_entry` says whether the log held the entry `looked_for`.

    Raises `BrokerError` if another export moved the cursor meanwhile, and redis-py's errors.
    """
    batch = Batch()
    while (left := size - len(batch.entries)) > 0:
        count = min(left, PAGE)
        # Exported entries are removed: the first page begins with the oldest entry, whatever its id.
        page = _read(client, keys, f"({batch.last}" if batch.entries else "-", count, looked_for)
        if page is None:
            break
        _add(batch, page)
        if len(page.raw) < count:
            break
    return batch


def _read(client: Redis, keys: Keys, start: str, count: int, looked_for: str) -> Page | None:
    """One page; None if there is no log yet."""
    answer: Any = _READ_LOG(client, [keys.outcomes, keys.exported, keys.trimmed], [start, count, looked_for])
    if answer is None:
        return None
    counters, entries, exported, trimmed, now_ms, has_entry = answer
    info, cursor = {entry_text(name): value for name, value in _pairs(counters)}, _texts(exported)
    return Page(
        raw=[(entry_id, dict(_pairs(values))) for entry_id, values in entries],
        cursor=(cursor.get("id", ""), int(cursor.get("position", 0))),
        gone=_gone(info),
        newest=entry_text(info["last-generated-id"]),
        trimmed=_texts(trimmed),
        now_ms=int(now_ms),
        has_entry=has_entry > 0,
    )


def _add(batch: Batch, page: Page) -> None:
    """Add a page, and a gap before it, to a batch."""
    first = not batch.entries
    if first:
        batch.began, batch.position = page.cursor, page.cursor[1]
        batch.now_ms, batch.has_entry = page.now_ms, page.has_entry
        batch.last = page.cursor[0] or batch.last
    elif page.cursor != batch.began:
        raise BrokerError(OTHER_EXPORT)
    # Entries of this batch may be removed while it is read; any other entries that are gone were never read.
    if (page.gone != batch.position) if first else (page.gone > batch.position):
        batch.gaps.append(_gap(batch, page))
    batch.newest, batch.trimmed_at = page.newest, page.trimmed.get("at", "")
    batch.position = (page.gone if first else max(page.gone, batch.position)) + len(page.raw)
    batch.entries.extend(storable(decoded(page.raw)))
    if page.raw:
        batch.last = entry_text(page.raw[-1][0])
    elif batch.gaps:
        batch.last = page.newest


def _gone(info: dict[str, Any]) -> int:
    """How many entries have left the stream, ever."""
    if "entries-added" not in info:
        msg = "the broker does not count what is added to a stream: the outcome log needs Redis 7.0, or any Valkey"
        raise BrokerError(msg)
    return int(info["entries-added"]) - int(info["length"])


def _gap(batch: Batch, page: Page) -> Gap:
    lost = page.gone - batch.position
    before = entry_text(page.raw[0][0]) if page.raw else ""
    if lost < 0:
        return Gap(after=batch.last, before=before, lost=None, why="replaced", noticed_ms=page.now_ms)
    why = "cap" if int(page.trimmed.get("entries", 0)) >= lost else "removed"
    return Gap(after=batch.last, before=before, lost=lost, why=why, noticed_ms=page.now_ms)


def decoded(raw: Iterable[tuple[Any, Mapping[Any, Any]]]) -> Iterator[Event | Refused]:
    """The answer of XRANGE or XREAD, as events and refused entries."""
    for entry_id, values in raw:
        try:
            yield Event.from_entry(entry_id, values)
        except (EnvelopeError, ValueError) as exc:
            yield Refused(entry_text(entry_id), {entry_text(key): entry_text(value) for key, value in values.items()}, str(exc))


def storable(entries: Iterable[Event | Refused]) -> Iterator[Event | Refused]:
    """The entries; events with numbers too large for their columns are refused."""
    for entry in entries:
        if isinstance(entry, Refused) or _fits(entry):
            yield entry
        else:
            values = {key: str(value) for key, value in entry.to_dict().items()}
            yield Refused(entry.event_id, values, "a number is out of range")


def _fits(event: Event) -> bool:
    counts = (event.generation, event.attempt, event.delivery, event.nesting)
    times = (each or 0 for each in (event.delay_ms, event.due_ms, event.started_ms, event.run_ms, event.waited_ms))
    return all(abs(each) < 2**31 for each in counts) and all(abs(each) < 2**63 for each in times) and event.at_ms <= LATEST_MS


def order(entry_id: str) -> tuple[int, int]:
    """The sort key of a stream id."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


def _pairs(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    """A flat answer: a name, its value, the next name, ..."""
    return zip(values[::2], values[1::2], strict=True)


def _texts(values: list[Any]) -> dict[str, str]:
    return {entry_text(key): entry_text(value) for key, value in _pairs(values)}
