"""The export of the audit: what was recorded since the last one is copied to the events' destination.

Nothing is taken away, and nothing is written to the broker, so that a full one changes nothing: the broker keeps its newest
records, and the destination holds how far they were exported. What has left the broker before that is counted by arithmetic, as for
the events: the broker counts what was ever recorded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.middleware.logs import log

from ...ports import Gap
from .audit import Entry

if TYPE_CHECKING:
    from ...ports import AuditStore, Record, Recorded


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
    found, is_another = store.following(*cursor), False
    if found is not None and _is_another(found, cursor.position):
        found, is_another = store.following("", 0), True
    if found is None or not found.records:
        return done
    gap = _gap(found, cursor.record_id, cursor.position, is_another=is_another)
    if gap is not None:
        note([gap], below(destination, AUDIT))
        done.gaps.append(gap)
        log.warning("audit.gap_found", after=gap.after, before=gap.before, lost=gap.lost, why=gap.why)
    done.files = write_records(destination, [_row(store.name, each) for each in found.records])
    done.records = len(found.records)
    advance(destination, store.name, Cursor(found.records[-1].record_id, found.added))
    return done


def _is_another(found: Recorded, position: int) -> bool:
    """Whether this audit is not the one that was exported last: deleted since, or restored from an older copy.

    Then all that it holds is exported; what is in the files already is there twice, and counts once.
    """
    return found.added < position or (found.gone < position and not found.has_last)


def _gap(found: Recorded, record_id: str, position: int, *, is_another: bool) -> Gap | None:
    """What is missing between the record that was exported last, the audit's `position`th, and those that follow it."""
    lost = found.added - position - len(found.records)
    if lost == 0 and not is_another:
        return None
    why = "replaced" if is_another else "cap" if found.gone > position else "removed"
    before = found.records[0].record_id
    return Gap(after=record_id, before=before, lost=None if is_another else lost, why=why, noticed_ms=found.now_ms)


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
