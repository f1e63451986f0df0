"""The export of the outcome log: from the broker's stream to files that the reconciliation reads, and out of the broker.

1. A batch is read from the stream's oldest entry on.
2. Where entries had left the stream unexported, the gap is added to `_gaps.jsonl`.
3. What is not ours goes to `_refused/refused-<first id>-<last id>.jsonl`, and a warning is logged. Spark skips both names.
4. The events are written as `date=YYYY-MM-DD/hour=HH/outcomes-<first id>-<last id>.parquet` (UTC, by the event's time), each file
   complete or not there at all, and flushed to the disk.
5. One script moves the cursor and removes the batch from the stream.

A log has one cursor, and so one destination. A crash anywhere, or a second export at the same time, exports some events twice and loses
none: an event keeps its id, and the books count each id once. A gap is seen by arithmetic: the stream counts what was ever added to it,
the cursor holds how many of those were exported, and what is neither exported nor there is gone, whoever removed it. Where an export
dies between 4 and 5, and the log passes its cap before the next one, the gap that is reported includes what those files hold.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from redis.exceptions import ResponseError

from redelivery.errors import BrokerError, InputError
from redelivery.middleware.logs import log
from redelivery.middleware.outcomes import Event
from redelivery.middleware.scripts import Script
from redelivery.workers.outcome_log import Refused, decoded
from redelivery.workers.tables import EVENTS, Format, read_lines, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from redis import Redis

    from redelivery.middleware.keys import Keys

__all__ = ["ExportResult", "Gap", "export_outcomes"]

#: Entries of one answer: the broker serves nobody else while it writes them (about 2 ms).
PAGE = 1000
#: Entries of one file, held in memory until it is written (about 50 MB).
BATCH = 50_000

_GAPS = pa.schema({"after": pa.string(), "before": pa.string(), "lost": pa.int64(), "why": pa.string(), "noticed_ms": pa.int64()})
_REFUSED = pa.schema({"entry_id": pa.string(), "why": pa.string(), "values": pa.string()})
_EXPORTED = Script("exported")
_OTHER = "another export moved the cursor meanwhile: nothing is lost, but run one export at a time"
_row = attrgetter(*EVENTS.names)
#: The end of the year 9999, which Python's dates cannot pass (milliseconds since the epoch).
_LATEST_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that left the log before they were exported.

    They lay between the entries `after` and `before` (stream ids; `before` is empty where nothing followed yet). `lost` is how
    many, or None where that cannot be known. `why` is `cap` (the log passed `outcome_log_max_bytes`), `removed` (something else
    deleted them) or `replaced` (the stream is not the one that was exported last: deleted, or restored from an older copy).
    `noticed_ms` is the server's time, in milliseconds since the epoch.
    """

    after: str
    before: str
    lost: int | None
    why: str
    noticed_ms: int


@dataclass(slots=True)
class ExportResult:
    """What one export did. `files` are relative to the destination; `refused` counts entries that were not ours."""

    destination: str
    events: int = 0
    refused: int = 0
    files: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """A part of the log, from the cursor (`began`) up to `last`, which is the stream's entry number `position`."""

    began: tuple[str, int] = ("", 0)
    last: str = "0-0"
    position: int = 0
    newest: str = "0-0"
    trimmed_at: str = ""
    entries: list[Event | Refused] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Page:
    """Some entries, and what the broker knew of the log at the same instant."""

    raw: list[tuple[Any, dict[Any, Any]]]
    cursor: tuple[str, int]
    gone: int
    newest: str
    trimmed: dict[str, str]
    now_ms: int


def export_outcomes(client: Redis, keys: Keys, destination: str, *, format: Format = "parquet", batch: int = BATCH) -> ExportResult:  # noqa: A002
    """Export what stands in the outcome log, `batch` entries at a time, to a path or a URI that pyarrow knows.

    What is recorded while it runs may wait for the next export. Raises `InputError` where the destination cannot be written or
    `batch` is not positive, `BrokerError` where another export runs, and whatever redis-py raises. What is in the log and was not
    written stays in the log.
    """
    if batch < 1:
        msg = f"batch = {batch}: give 1 or more"
        raise InputError(msg)
    result = ExportResult(destination)
    until: tuple[int, int] | None = None
    while True:
        taken = _take(client, keys, batch)
        until = _order(taken.newest) if until is None else until
        if not taken.entries and not taken.gaps:
            return result
        _write_gaps(taken, result)
        _write_refused(taken, result)
        _write_events(taken, result, format)
        _finish(client, keys, taken)
        if _order(taken.last) >= until:
            return result


def _take(client: Redis, keys: Keys, size: int) -> _Batch:
    """Read a batch from the broker, in pages."""
    batch = _Batch()
    while (left := size - len(batch.entries)) > 0:
        count = min(left, PAGE)
        # What was exported is no longer there: the first page begins with the oldest entry, whatever its id.
        page = _read(client, keys, f"({batch.last}" if batch.entries else "-", count)
        if page is None:
            break
        _add(batch, page)
        if len(page.raw) < count:
            break
    return batch


def _read(client: Redis, keys: Keys, start: str, count: int) -> _Page | None:
    """One page; None where there is no log yet."""
    with client.pipeline(transaction=True) as pipe:
        pipe.xinfo_stream(keys.outcomes)
        pipe.xrange(keys.outcomes, start, "+", count=count)
        pipe.hgetall(keys.exported)
        pipe.hgetall(keys.trimmed)
        pipe.time()
        answers: list[Any] = pipe.execute(raise_on_error=False)
    if isinstance(answers[0], ResponseError) and "no such key" in str(answers[0]):
        return None
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    info, raw, exported, trimmed, (seconds, micros) = answers
    cursor = _texts(exported)
    return _Page(
        raw=raw,
        cursor=(cursor.get("id", ""), int(cursor.get("position", 0))),
        gone=_gone(info),
        newest=_text(info["last-generated-id"]),
        trimmed=_texts(trimmed),
        now_ms=seconds * 1000 + micros // 1000,
    )


def _add(batch: _Batch, page: _Page) -> None:
    """Add a page to a batch, and the gap before it, if there is one."""
    first = not batch.entries
    if first:
        batch.began, batch.position = page.cursor, page.cursor[1]
        batch.last = page.cursor[0] or batch.last
    elif page.cursor != batch.began:
        raise BrokerError(_OTHER)
    # Entries of this batch may go while it is read: they are here already. What is gone beyond them was not read by anybody.
    if (page.gone != batch.position) if first else (page.gone > batch.position):
        batch.gaps.append(_gap(batch, page))
    batch.newest, batch.trimmed_at = page.newest, page.trimmed.get("at", "")
    batch.position = (page.gone if first else max(page.gone, batch.position)) + len(page.raw)
    batch.entries.extend(_storable(decoded(page.raw)))
    if page.raw:
        batch.last = _text(page.raw[-1][0])
    elif batch.gaps:
        batch.last = page.newest


def _gone(info: dict[str, Any]) -> int:
    """How many entries have left the stream, ever."""
    if "entries-added" not in info:
        msg = "the broker does not count what is added to a stream: the outcome log needs Redis 7.0, or any Valkey"
        raise BrokerError(msg)
    return int(info["entries-added"]) - int(info["length"])


def _gap(batch: _Batch, page: _Page) -> Gap:
    lost = page.gone - batch.position
    before = _text(page.raw[0][0]) if page.raw else ""
    if lost < 0:
        return Gap(after=batch.last, before=before, lost=None, why="replaced", noticed_ms=page.now_ms)
    why = "cap" if int(page.trimmed.get("entries", 0)) >= lost else "removed"
    return Gap(after=batch.last, before=before, lost=lost, why=why, noticed_ms=page.now_ms)


def _storable(entries: Iterable[Event | Refused]) -> Iterator[Event | Refused]:
    """The same, with events whose numbers no column holds refused."""
    for entry in entries:
        if isinstance(entry, Refused) or _fits(entry):
            yield entry
        else:
            values = {key: str(value) for key, value in entry.to_dict().items()}
            yield Refused(entry.event_id, values, "a number is out of range")


def _fits(event: Event) -> bool:
    counts = (event.generation, event.attempt, event.delivery, event.nesting)
    times = (event.delay_ms or 0, event.due_ms or 0)
    return all(abs(each) < 2**31 for each in counts) and all(abs(each) < 2**63 for each in times) and event.at_ms <= _LATEST_MS


def _write_gaps(batch: _Batch, result: ExportResult) -> None:
    if not batch.gaps:
        return
    known = {row["after"]: row for row in read_lines(result.destination, "_gaps.jsonl")}
    # After a crash the same gap is noticed again: it begins where it began.
    known |= {gap.after: asdict(gap) for gap in batch.gaps}
    write_rows(known.values(), result.destination, _GAPS, name="_gaps", format="jsonl")
    result.gaps += batch.gaps
    for gap in batch.gaps:
        log.warning("outcome_log.gap_found", after=gap.after, before=gap.before, lost=gap.lost, why=gap.why)


def _write_refused(batch: _Batch, result: ExportResult) -> None:
    refused = [entry for entry in batch.entries if isinstance(entry, Refused)]
    if not refused:
        return
    rows = [{"entry_id": each.entry_id, "why": each.why, "values": json.dumps(each.values)} for each in refused]
    name = f"refused-{refused[0].entry_id}-{refused[-1].entry_id}"
    write_rows(rows, f"{result.destination.rstrip('/')}/_refused", _REFUSED, name=name, format="jsonl")
    result.refused += len(refused)
    result.files.append(f"_refused/{name}.jsonl")
    log.warning("outcome_log.entries_refused", count=len(refused), first=refused[0].entry_id, why=refused[0].why)


def _write_events(batch: _Batch, result: ExportResult, format: Format) -> None:  # noqa: A002
    hours: defaultdict[str, list[Event]] = defaultdict(list)
    for entry in batch.entries:
        if isinstance(entry, Event):
            hours[datetime.fromtimestamp(entry.at_ms / 1000, UTC).strftime("date=%Y-%m-%d/hour=%H")].append(entry)
    for hour, events in hours.items():
        name = f"outcomes-{events[0].event_id}-{events[-1].event_id}"
        rows = (dict(zip(EVENTS.names, _row(event), strict=True)) for event in events)
        result.events += write_rows(rows, f"{result.destination.rstrip('/')}/{hour}", EVENTS, name=name, format=format)
        result.files.append(f"{hour}/{name}.{format}")


def _finish(client: Redis, keys: Keys, batch: _Batch) -> None:
    """Move the cursor and remove the batch, in one script."""
    names = [keys.outcomes, keys.exported, keys.trimmed]
    if _EXPORTED(client, names, [*batch.began, batch.last, batch.position, batch.trimmed_at]) < 0:
        raise BrokerError(_OTHER)


def _order(entry_id: str) -> tuple[int, int]:
    """What stream ids are ordered by."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


def _texts(values: dict[Any, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in values.items()}


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
