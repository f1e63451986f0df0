"""The export of the audit: what was recorded since the last one is copied to the events' destination.

Nothing is taken away, and nothing is written to the broker, so that a full one changes nothing: the broker keeps its newest
records, and the destination holds how far they were exported. What has left the broker before that is noted as a gap.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.middleware.logs import log

from .audit import Entry

if TYPE_CHECKING:
    from ...ports import AuditStore, Gap, Record


@dataclass(slots=True)
class ExportedAudit:
    """What one export did. `files` are relative to the destination; `gaps` are records that had left the broker before."""

    records: int = 0
    files: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


def export_audit(store: AuditStore | None, destination: str) -> ExportedAudit:
    """Export what was recorded since the last export to this destination; nothing where the broker has no audit.

    Raises `InputError` where the destination cannot be read or written, `ImportError` without pyarrow, and what the broker does.
    What was not written is written by the next export.
    """
    from ...export.gaps import note  # noqa: PLC0415 - pyarrow is an optional dependency
    from ...export.records import AUDIT, Cursor, advance, cursor_of, write_records  # noqa: PLC0415 - as above
    from ...export.tables import below  # noqa: PLC0415 - as above

    done = ExportedAudit()
    if store is None:
        return done
    cursor = cursor_of(destination, store.name)
    found = store.following(*cursor)
    if not found.records:
        return done
    if (gap := found.gap) is not None:
        note([gap], below(destination, AUDIT), store.name)
        done.gaps.append(gap)
        log.warning("audit.gap_found", after=gap.after, before=gap.before, lost=gap.lost, why=gap.why)
    done.files = write_records(destination, [_row(store.name, each) for each in found.records])
    done.records = len(found.records)
    advance(destination, store.name, Cursor(found.records[-1].record_id, found.position))
    return done


def _row(name: str, record: Record) -> dict[str, Any]:
    """A record as a line: as `redelivery audit --json` prints it, and what a later version may have recorded besides."""
    about = {"log": name, "record_id": record.record_id, "at_ms": record.at_ms}
    try:
        entry = Entry.of(record)
        row = {**about, "unreadable": record.said} if entry is None else {**json.loads(record.said), **entry.to_dict(), **about}
        json.dumps(row)
    except (ValueError, RecursionError):  # anybody may have written it, and it must not hold up the others
        return {**about, "unreadable": record.said}
    return row
