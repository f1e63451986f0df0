"""Exports the audit: copies the records since the last export to the events' destination.

The broker is only read, so a full broker does not prevent an export. The destination stores the last exported record. Records that
left the broker before an export are noted as a gap.
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
    """The result of one export. `files` are relative to the destination; `gaps` are records that left the broker before it."""

    records: int = 0
    files: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


def export_audit(store: AuditStore, destination: str) -> ExportedAudit:
    """Copy the records since the last export to this destination.

    Raises `InputError` if the destination cannot be read or written, `ImportError` without pyarrow, and the errors of the broker's
    driver. The next export writes the missing records.
    """
    from ...export.gaps import note  # noqa: PLC0415 - pyarrow is an optional dependency
    from ...export.records import AUDIT, Cursor, advance, cursor_of, write_records  # noqa: PLC0415 - as above
    from ...export.tables import below  # noqa: PLC0415 - as above

    done = ExportedAudit()
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
    """Return a record as a row: the fields that `redelivery audit --json` prints, and fields that a later version has recorded."""
    about = {"log": name, "record_id": record.record_id, "at_ms": record.at_ms}
    try:
        said = json.loads(record.said)
        entry = Entry.from_values(said, record.record_id, record.at_ms, record.moved)
        row = {**about, "unreadable": record.said} if entry is None else {**said, **entry.to_dict(), **about}
        json.dumps(row)
    except (ValueError, RecursionError):  # any client may have written it; it must not prevent the export of other records
        return {**about, "unreadable": record.said}
    return row
