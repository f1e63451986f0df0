"""Gaps in the outcome log of RabbitMQ, which does not count the messages that leave a queue unexported: beyond its cap, or purged.

Each publisher numbers its events, from 1 on. Beyond the cap, the oldest events are dropped first. So if a publisher's first event
in an export does not have the number after its last exported event, the events between them left the log. How far each publisher
has been exported is noted beside the events, in `_publishers.jsonl`.

Missing numbers within one export are no gap: a publication that failed used a number. Missing numbers before events that are only
seconds old are no gap either: an earlier event may still arrive. Limits: if all events of a publisher are gone, no gap is found;
the books show such lives as without a beginning or an end.
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

#: Before younger events, earlier ones may still arrive (milliseconds).
YOUNG_MS = 5_000
#: A publisher that has been silent for so long has ended (400 days, in milliseconds).
SILENT_MS = 400 * 86_400_000

_NAME = "_publishers"
_SCHEMA = pa.schema({"publisher": pa.string(), "last": pa.int64(), "at_ms": pa.int64()})


@dataclass(slots=True)
class Publishers:
    """How far each publisher was exported: its last number, and when that was recorded."""

    known: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, destination: str) -> Publishers:
        """Read the notes beside the events."""
        rows = read_lines(destination, f"{_NAME}.jsonl", {"publisher": str, "last": int, "at_ms": int})
        return cls({str(row["publisher"]): (int(row["last"]), int(row["at_ms"])) for row in rows})

    def write(self, destination: str, now_ms: int) -> None:
        """Write the notes there; after the events, so that a crash between the two reports too many gaps rather than too few."""
        rows = (
            {"publisher": name, "last": last, "at_ms": at_ms}
            for name, (last, at_ms) in sorted(self.known.items())
            if at_ms > now_ms - SILENT_MS
        )
        write_rows(rows, destination, _SCHEMA, name=_NAME, format="jsonl")

    def gaps(self, events: Iterable[Event], now_ms: int) -> list[Gap]:
        """The gaps before these events; the events count as exported from here on."""
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
    """The publisher of an event and its number; 0 if the id has none."""
    publisher, _, number = event_id.partition("-")[2].rpartition(".")
    return publisher, int(number) if number.isdecimal() else 0
