"""The audit, told from the broker, and behind that from where it was exported.

The broker is read first: an export may take from it meanwhile, or the newest may push the oldest out. What is in both is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from redelivery.errors import InputError

from ...brokers.broker import broker_of, needed
from .audit import MAX_READ, Entry, entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.runtime import Runtime

#: Events of the outcome log that are looked through for those with an actor.
LIMIT = 10_000


@dataclass(slots=True)
class Told:
    """What was found, the newest first: records, or events. `notes` say what was not read, and what is nowhere."""

    entries: list[Entry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def told(
    runtime: Runtime,
    limit: int,
    *,
    actor: str = "",
    operation: str = "",
    outcomes: str | None = None,
    most: int = MAX_READ,
) -> Told:
    """The newest records, as `entries` has them, and behind them those that only an export has.

    `outcomes` is where exported events are (a path or a URI), of which about `most` records are looked at; without it, the place
    that the settings name, where it can be read. Raises `InputError` where the named one cannot be read, and what the broker does.
    """
    found = Told(entries(runtime.transport, limit, actor=actor, operation=operation))
    if len(found.entries) < limit:
        _beyond(
            runtime, found, outcomes, "records", lambda place: _read_records(runtime, found, place, most, limit, actor, operation)
        )
    return found


def acts(runtime: Runtime, limit: int, *, actor: str = "", outcomes: str | None = None, most: int = MAX_READ) -> Told:
    """The newest events of what this actor did, or any where it is empty; else as `told`."""
    with needed(broker_of(runtime.transport).outcomes).tail(LIMIT, is_followed=False) as tail:
        events = [each for each in tail.events if each.actor and (not actor or each.actor == actor)]
    found = Told(events=events[::-1][:limit])
    if len(found.events) < limit:
        _beyond(runtime, found, outcomes, "events", lambda place: _read_events(found, place, most, limit, actor))
    return found


def _beyond(runtime: Runtime, found: Told, outcomes: str | None, what: str, read: Callable[[str], None]) -> None:
    """Read what was exported; where nobody has named the place, what cannot be read is noted."""
    place = runtime.settings.exported_outcomes if outcomes is None else outcomes
    if place is None:
        return
    try:
        read(place)
    except (InputError, ImportError) as exc:
        if outcomes is not None:
            raise
        found.notes.append(f"exported {what} were not read: {exc}")


def _read_records(runtime: Runtime, found: Told, place: str, most: int, limit: int, actor: str, operation: str) -> None:  # noqa: PLR0917 - as `told`
    from ...export.batch import order  # noqa: PLC0415 - pyarrow is an optional dependency
    from ...export.gaps import noted  # noqa: PLC0415 - as above
    from ...export.records import AUDIT, read_records  # noqa: PLC0415 - as above
    from ...export.tables import below  # noqa: PLC0415 - as above

    store = needed(broker_of(runtime.transport).audit)
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


def _read_events(found: Told, place: str, most: int, limit: int, actor: str) -> None:
    from ...export import history  # noqa: PLC0415 - pyarrow is an optional dependency

    read = history.acts(place, actor, limit, most)
    by_id = {event.event_id: event for event in (*read.events, *found.events)}
    found.events = sorted(by_id.values(), key=attrgetter("at_ms"), reverse=True)[:limit]
    if read.left:
        found.notes.append(f"exported events: only the newest {read.looked_at} were looked at, and {read.left} files were not")
