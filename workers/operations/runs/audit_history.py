"""The history of the audit: the records on the broker, and older ones from exports.

The broker is read first: meanwhile an export may take events from it, or new records may replace the oldest. A record that is in
both places is listed once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from redelivery.errors import InputError

from ...brokers.broker import broker_of
from .audit import MAX_READ, Entry, entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.runtime import Runtime

#: The maximum number of events of the outcome log that are searched for an actor.
LIMIT = 10_000


@dataclass(slots=True)
class History:
    """The found records or events, the newest first. `notes` say what was not read, and which records are lost."""

    entries: list[Entry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def history(
    runtime: Runtime, limit: int, *, actor: str = "", operation: str = "", outcomes: str | None = None, most: int = MAX_READ
) -> History:
    """Return the newest records, as `entries`, and then records that are only in an export.

    `outcomes` is the place of exported events (a path or a URI), where about `most` records are read. The default is the place in
    the settings, if it can be read. Raises `InputError` if `outcomes` cannot be read, and the errors of the broker's driver.
    """
    found = History(entries(runtime.transport, limit, actor=actor, operation=operation))
    if len(found.entries) < limit:
        _beyond(
            runtime, found, outcomes, "records", lambda place: _read_records(runtime, found, place, most, limit, actor, operation)
        )
    return found


def acts(runtime: Runtime, limit: int, *, actor: str = "", outcomes: str | None = None, most: int = MAX_READ) -> History:
    """Return the newest events of the acts of this actor (empty: of any). The other parameters are as in `history`."""
    with broker_of(runtime.transport).outcomes.tail(LIMIT, is_followed=False) as tail:
        events = [each for each in tail.events if each.actor and (not actor or each.actor == actor)]
    found = History(events=events[::-1][:limit])
    if len(found.events) < limit:
        _beyond(runtime, found, outcomes, "events", lambda place: _read_events(found, place, most, limit, actor))
    return found


def _beyond(runtime: Runtime, found: History, outcomes: str | None, what: str, read: Callable[[str], None]) -> None:
    """Read the export. If the place in the settings cannot be read, this is only noted."""
    place = runtime.settings.exported_outcomes if outcomes is None else outcomes
    if place is None:
        return
    try:
        read(place)
    except (InputError, ImportError) as exc:
        if outcomes is not None:
            raise
        found.notes.append(f"exported {what} were not read: {exc}")


def _read_records(runtime: Runtime, found: History, place: str, most: int, limit: int, actor: str, operation: str) -> None:  # noqa: PLR0917 - as `history`
    from ...export.batch import order  # noqa: PLC0415 - pyarrow is an optional dependency
    from ...export.gaps import noted  # noqa: PLC0415 - as above
    from ...export.records import AUDIT, read_records  # noqa: PLC0415 - as above
    from ...export.tables import below  # noqa: PLC0415 - as above

    store = broker_of(runtime.transport).audit
    kept = [each.record_id for each in store.records(MAX_READ)]
    known = {(store.name, each) for each in (*kept, *(each.record_id for each in found.entries))}
    looked_at = 0
    for rows in read_records(place, kept):
        fresh = (row for row in rows if (row["log"], row["record_id"]) not in known)
        read = (Entry.from_values(row, row["record_id"], row["at_ms"]) for row in fresh)
        found.entries += [each for each in read if each is not None and each.is_of(actor, operation)]
        looked_at += len(rows)
        if len(found.entries) >= limit:
            break
        if looked_at >= most:
            found.notes.append(f"exported records: only the newest {looked_at} were looked at")
            break
    found.entries = sorted(found.entries, key=lambda each: (each.at_ms, order(each.record_id)), reverse=True)[:limit]
    since = found.entries[-1].at_ms if len(found.entries) >= limit else 0
    for gap in noted(below(place, AUDIT)):
        if gap.noticed_ms >= since:
            lost = "an unknown number of" if gap.lost is None else gap.lost
            found.notes.append(f"{lost} records had left the broker before they were exported ({gap.why})")


def _read_events(found: History, place: str, most: int, limit: int, actor: str) -> None:
    from ...export import history  # noqa: PLC0415 - pyarrow is an optional dependency

    read = history.acts(place, actor, limit, most)
    by_id = {event.event_id: event for event in (*read.events, *found.events)}
    found.events = sorted(by_id.values(), key=attrgetter("at_ms"), reverse=True)[:limit]
    if read.left:
        found.notes.append(f"exported events: only the newest {read.looked_at} were looked at, and {read.left} files were not")
