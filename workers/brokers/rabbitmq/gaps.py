"""Finds gaps in the outcome log of RabbitMQ: events that were dropped or purged before an export. The broker does not count them.

Each publisher numbers its events from 1 on, and the queue drops its oldest events first. If a publisher's first number in an export
does not follow its last exported number, the events between them were lost. An export stores each publisher's last number in
`_publishers.jsonl`, next to the events.

Missing numbers within one export are not a gap: a failed publication used a number. Missing numbers before events that are only
seconds old are not a gap either: an earlier event may still arrive. Limit: if all events of a publisher are lost, no gap is found.
The books then show lives without a beginning or an end.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ...export.tables import read_lines, write_rows
from ...ports import Gap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redelivery.middleware.messages.events import Event

#: Up to this age of an event, earlier events may still arrive.
YOUNG_MS = 5_000
#: A publisher without events for this time (400 days) has ended.
SILENT_MS = 400 * 86_400_000

_NAME = "_publishers"
_SCHEMA = pa.schema({"publisher": pa.string(), "last": pa.int64(), "at_ms": pa.int64()})


@dataclass(slots=True)
class Publishers:
    """The last exported number of each publisher, and when that event was recorded."""

    known: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, destination: str) -> Publishers:
        """Read the numbers of earlier exports."""
        rows = read_lines(destination, f"{_NAME}.jsonl", {"publisher": str, "last": int, "at_ms": int})
        return cls({str(row["publisher"]): (int(row["last"]), int(row["at_ms"])) for row in rows})

    def write(self, destination: str, now_ms: int) -> None:
        """Write the numbers. Call it after the events are written: a crash before it then adds a false gap and hides none."""
        rows = (
            {"publisher": name, "last": last, "at_ms": at_ms}
            for name, (last, at_ms) in sorted(self.known.items())
            if at_ms > now_ms - SILENT_MS
        )
        write_rows(rows, destination, _SCHEMA, name=_NAME, format="jsonl")

    def gaps(self, events: Iterable[Event], now_ms: int) -> list[Gap]:
        """Return the gaps before these events, and note the events as exported."""
        numbered: defaultdict[str, dict[int, Event]] = defaultdict(dict)
        for event in events:
            publisher, number = _numbered(event.event_id)
            if number:
                numbered[publisher][number] = event
        found = []
        for publisher, of_it in numbered.items():
            last, _ = self.known.get(publisher, (0, 0))
            first, newest = min(of_it), max(of_it)
            if first > last + 1 and of_it[first].at_ms < now_ms - YOUNG_MS:
                lost = first - last - 1
                found.append(
                    Gap(after=f"{publisher}.{last}", before=of_it[first].event_id, lost=lost, why="cap", noticed_ms=now_ms)
                )
            self.known[publisher] = (max(last, newest), of_it[newest].at_ms)
        return found


def _numbered(event_id: str) -> tuple[str, int]:
    """Return the publisher of an event and its number; 0 if the id has none."""
    publisher, _, number = event_id.partition("-")[2].rpartition(".")
    return publisher, int(number) if number.isdecimal() else 0
