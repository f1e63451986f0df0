"""Commits: what an export says that it wrote, one small file for each batch, beside the files and after them.

A commit is `_commits/<date>/<position>-<last id>.json` under the destination: the part of the log that its batch is, and the files
that hold it. The names of an app with a key prefix end with eight digits, made of its log's name, for another app may have the same
ids. The cursor moves after it. So a reader of an object store, where nothing is renamed at once, can tell what is whole;
the reconciliation sees a file that is missing; and the next export sees a log that is not the one that was exported last, also
where the broker has forgotten its cursor (FLUSHALL, a restored copy, a failover).

Limit: logs of two brokers under one key name need two destinations.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..ports import Gap
from .batch import order
from .tables import below, names, read_text, write_text

if TYPE_CHECKING:
    from .batch import Batch

#: The folder of the commits. Spark skips such names.
COMMITS = "_commits"
#: What a log or an audit is called without a key prefix, on Redis and on RabbitMQ.
_PLAIN = re.compile(r"redelivery[.:](?:outcomes|audit)")


def ending_of(log: str) -> str:
    """What the names of files end with that hold entries of this log (or audit); empty without a key prefix."""
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

    @classmethod
    def of(cls, batch: Batch, log: str, files: list[dict[str, Any]], refused: int) -> Commit:
        """The commit of a batch whose files are written."""
        return cls(log, batch.began, batch.last, batch.position, files, refused, [asdict(gap) for gap in batch.gaps])

    def write(self, destination: str) -> str:
        """Write it; returns its name."""
        date = day_of(order(self.last)[0])
        name = f"{self.position:020}-{self.last}{ending_of(self.log)}.json"
        write_text(json.dumps(asdict(self)) + "\n", below(destination, f"{COMMITS}/{date}"), name)
        return f"{COMMITS}/{date}/{name}"


_LATEST_MS = 253_402_300_799_999


def day_of(ms: int) -> str:
    """The date (UTC) of a time in milliseconds since the epoch; the last that there is, where it lies beyond."""
    return datetime.fromtimestamp(min(ms, _LATEST_MS) / 1000, UTC).strftime("%Y-%m-%d")


def newest(destination: str, log: str) -> Commit | None:
    """The commit of this log that goes furthest, of the last two days that have any; None where there is none.

    Raises `InputError` where the destination cannot be read.
    """
    folder = below(destination, COMMITS)
    best: Commit | None = None
    for date in sorted(names(folder), reverse=True)[:2]:
        for name in names(below(folder, date)):
            if name.startswith(".") or (best is not None and order(_last(name)) <= order(best.last)):
                continue
            found = json.loads(read_text(below(folder, date), name))
            if found["log"] == log:
                best = Commit(**{**found, "began": tuple(found["began"])})
    return best


def _last(name: str) -> str:
    return "-".join(name.removesuffix(".json").split("-")[1:3])


def replaced(batch: Batch, commit: Commit | None) -> Gap | None:
    """The gap before this batch where the log is not the one that `commit` is of; `commit` was read before the batch.

    The cursor stands behind a commit only where an export died between the two, or has not come to move it yet; then the commit's
    last entry is in the log. Both are looked at at one instant: between two looks, another export may have ended.
    """
    if commit is None or not commit.files or order(batch.began[0] or "0-0") >= order(commit.last):
        return None
    if batch.has_entry or batch.trimmed_at:
        return None
    before = next((entry.event_id if hasattr(entry, "event_id") else entry.entry_id for entry in batch.entries), "")
    return Gap(after=commit.last, before=before, lost=None, why="replaced", noticed_ms=batch.now_ms)
