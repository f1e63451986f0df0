"""Commits: the record of what an export wrote, one small file for each batch, written after the batch's files.

A commit is `_commits/<date>/<position>-<last id>.json` under the destination. It names the part of the log that its batch holds,
and the files of the batch. With a key prefix the names end with eight digits, made from the log's name, because another app may
have the same ids. The cursor moves after the commit is written. So a reader of an object store, which has no atomic rename, knows
the complete files; the reconciliation notices a missing file; and the next export notices that the log is another one, even if the
broker has lost its cursor (FLUSHALL, a restored copy, a failover).

Limit: logs of two brokers under one key name need two destinations.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redelivery.display import scrubbed
from redelivery.errors import InputError
from redelivery.middleware.messages.events import LATEST_MS

from ..ports import Gap
from .batch import order
from .tables import below, names, read_text, write_text

if TYPE_CHECKING:
    from .batch import Batch

#: The folder of the commits. Spark skips such names.
COMMITS = "_commits"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_NAME = re.compile(r"\d{20}-(?P<last>\d+-\d+)(?P<ending>-[0-9a-f]{8})?\.json")
#: The names of a log and an audit without a key prefix, on Redis and RabbitMQ.
_PLAIN = re.compile(r"redelivery[.:](?:outcomes|audit)")


def ending_of(log: str) -> str:
    """The ending of file names for this log (or audit); empty without a key prefix."""
    return "" if _PLAIN.fullmatch(log) else f"-{hashlib.sha256(log.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class Commit:
    """A batch: from the cursor at `began` (id, position) to `last`, the log's entry number `position`, in these `files`."""

    log: str
    began: tuple[str, int]
    last: str
    position: int
    files: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0
    gaps: list[dict[str, Any]] = field(default_factory=list)

    def write(self, destination: str) -> None:
        """Write it, after the batch's files."""
        date = day_of(order(self.last)[0])
        name = f"{self.position:020}-{self.last}{ending_of(self.log)}.json"
        write_text(json.dumps(asdict(self)) + "\n", below(destination, f"{COMMITS}/{date}"), name)


def day_of(ms: int) -> str:
    """The date (UTC) of a time in milliseconds since the epoch; at most the last date that Python has."""
    return datetime.fromtimestamp(min(ms, LATEST_MS) / 1000, UTC).strftime("%Y-%m-%d")


def newest(destination: str, log: str) -> Commit | None:
    """The commit of this log with the highest last entry, from the last day that has any; None if there is none.

    Other files and folders are ignored. Raises `InputError` if the destination, or that commit, cannot be read.
    """
    folder, ending = below(destination, COMMITS), ending_of(log)
    for date in sorted(filter(_DAY.fullmatch, names(folder)), reverse=True):
        found = filter(None, map(_NAME.fullmatch, names(below(folder, date))))
        own = [each for each in found if (each["ending"] or "") == ending]
        if own:
            name = max(own, key=lambda each: order(each["last"])).string
            try:
                stored = json.loads(read_text(below(folder, date), name))
                order(stored["last"])
                return Commit(**{**stored, "began": tuple(stored["began"])})
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
                msg = f"{below(folder, f'{date}/{name}')} is not a commit of an export ({exc}): restore it, or move it away"
                raise InputError(scrubbed(msg)) from exc
    return None


def replaced(batch: Batch, commit: Commit | None) -> Gap | None:
    """The gap before this batch if `commit`, which was read before it, is of another log.

    The cursor is before the end of a commit only if an export died between the two, or has not moved the cursor yet; then the
    commit's last entry is in the log. Cursor and entry are read at one instant, because another export may end in between.
    """
    if commit is None or not commit.files or order(batch.began[0] or "0-0") >= order(commit.last):
        return None
    if batch.has_entry or batch.trimmed_at:
        return None
    before = next((entry.event_id if hasattr(entry, "event_id") else entry.entry_id for entry in batch.entries), "")
    return Gap(after=commit.last, before=before, lost=None, why="replaced", noticed_ms=batch.now_ms)
