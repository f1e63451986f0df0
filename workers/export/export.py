"""The export of the outcome log: events move from the broker's stream to files that the reconciliation reads.

1. A batch is read from the stream's oldest entry on.
2. If entries had left the stream unexported, the gap is added to `_gaps.jsonl`.
3. Refused entries go to `_refused/refused-<first id>-<last id>.jsonl`, and a warning is logged. Spark skips both names.
4. The events are written as `date=YYYY-MM-DD/hour=HH/outcomes-<first id>-<last id>.parquet` (UTC, by the event's time). Each file
   is complete or absent, and flushed to the disk.
5. A commit names the batch's files (`redelivery.workers.export.commits`).
6. One script moves the cursor and removes the batch from the stream.

A log has one cursor, and so one destination. After a crash, or with two exports at once, some events are exported twice, and none
is lost: an event keeps its id, and the books count each id once. If an export dies between 5 and 6, and the log passes its cap
before the next one, the reported gap includes events that those files hold.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from redelivery.errors import BrokerError, InputError
from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.logs import log
from redelivery.middleware.messages.events import Event

from ..ports import ExportResult
from .batch import OTHER_EXPORT, Batch, Refused, order, take
from .commits import Commit, ending_of, newest, replaced
from .gaps import note
from .tables import EVENTS, below, size_of, write_rows

if TYPE_CHECKING:
    from redis import Redis

    from redelivery.middleware.brokers.redis.keys import Keys

    from ..ports import Format

#: Entries of one file, in memory until it is written (about 50 MB).
BATCH = 50_000

_REFUSED = pa.schema({"entry_id": pa.string(), "why": pa.string(), "values": pa.string()})
_EXPORTED = Script("exported")
_row = attrgetter(*EVENTS.names)


def export_outcomes(client: Redis, keys: Keys, destination: str, *, format: Format = "parquet", batch: int = BATCH) -> ExportResult:  # noqa: A002
    """Export the outcome log, `batch` entries at a time, to a path or a URI that pyarrow knows.

    Events that are recorded while it runs may wait for the next export. Raises `InputError` if the destination cannot be written or
    `batch` is not positive, `BrokerError` if another export runs, and redis-py's errors. Unwritten entries stay in the log.
    """
    if batch < 1:
        msg = f"batch = {batch}: give 1 or more"
        raise InputError(msg)
    result = ExportResult(destination)
    until: tuple[int, int] | None = None
    commit = newest(destination, keys.outcomes)  # before the log, because another export may run
    while True:
        taken = take(client, keys, batch, commit.last if commit is not None else "")
        until = order(taken.newest) if until is None else until
        if not taken.entries and not taken.gaps:
            return result
        if result.commits == 0 and not taken.gaps and (gap := replaced(taken, commit)) is not None:
            taken.gaps.append(gap)
        _write(client, keys, taken, result, format)
        if order(taken.last) >= until:
            return result


def _write(client: Redis, keys: Keys, batch: Batch, result: ExportResult, format: Format) -> None:  # noqa: A002
    """Write a batch to the disk before its entries are removed from the log."""
    write_gaps(batch, result, keys.outcomes)
    ending = ending_of(keys.outcomes)
    refused = write_refused(batch, result, ending)
    files = write_events(batch, result, format, ending)
    gaps = [asdict(gap) for gap in batch.gaps]
    Commit(keys.outcomes, batch.began, batch.last, batch.position, files, refused, gaps).write(result.destination)
    result.commits += 1
    _finish(client, keys, batch)


def write_gaps(batch: Batch, result: ExportResult, name: str) -> None:
    """Note the gaps before a batch of the log of this name."""
    if not batch.gaps:
        return
    note(batch.gaps, result.destination, name)
    result.gaps += batch.gaps
    for gap in batch.gaps:
        log.warning("outcome_log.gap_found", after=gap.after, before=gap.before, lost=gap.lost, why=gap.why)


def write_refused(batch: Batch, result: ExportResult, ending: str = "") -> int:
    """Write the refused entries to their own file; return how many there were."""
    refused = [entry for entry in batch.entries if isinstance(entry, Refused)]
    if not refused:
        return 0
    rows = [{"entry_id": each.entry_id, "why": each.why, "values": json.dumps(each.values)} for each in refused]
    name = f"refused-{refused[0].entry_id}-{refused[-1].entry_id}{ending}"
    write_rows(rows, below(result.destination, "_refused"), _REFUSED, name=name, format="jsonl")
    result.refused += len(refused)
    result.files.append(f"_refused/{name}.jsonl")
    log.warning("outcome_log.entries_refused", count=len(refused), first=refused[0].entry_id, why=refused[0].why)
    return len(refused)


def write_events(batch: Batch, result: ExportResult, format: Format, ending: str = "") -> list[dict[str, Any]]:  # noqa: A002
    """Write the events; return the files with their numbers of rows and of bytes."""
    files = []
    hours: defaultdict[str, list[Event]] = defaultdict(list)
    for entry in batch.entries:
        if isinstance(entry, Event):
            hours[datetime.fromtimestamp(entry.at_ms / 1000, UTC).strftime("date=%Y-%m-%d/hour=%H")].append(entry)
    for hour, events in hours.items():
        name = f"outcomes-{events[0].event_id}-{events[-1].event_id}{ending}"
        rows = (dict(zip(EVENTS.names, _row(event), strict=True)) for event in events)
        count = write_rows(rows, below(result.destination, hour), EVENTS, name=name, format=format)
        size = size_of(below(result.destination, hour), f"{name}.{format}")
        files.append({"file": f"{hour}/{name}.{format}", "rows": count, "bytes": size})
        result.events += count
    result.files += [str(each["file"]) for each in files]
    return files


def _finish(client: Redis, keys: Keys, batch: Batch) -> None:
    """Move the cursor and remove the batch, in one script."""
    names = [keys.outcomes, keys.exported, keys.trimmed]
    if _EXPORTED(client, names, [*batch.began, batch.last, batch.position, batch.trimmed_at]) < 0:
        raise BrokerError(OTHER_EXPORT)
