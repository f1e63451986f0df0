"""The audit's records as files, next to the exported events.

All files are below `_audit` in the destination, a name that the books, Spark and every reader of events skip:

- `<date>/records-<first id>-<last id>-<count>.jsonl`: records, by their times (UTC), as JSON lines. With a key prefix the name ends
  with `-<eight digits>` (`commits.ending_of`), because another app may have the same ids;
- `_exported.jsonl`: how far each audit was exported, because two apps with different key prefixes may share a destination;
- `_gaps.jsonl`: records that left the broker before they were exported.

`_exported.jsonl` is updated after the records are written. If the process is killed in between, the next export writes the records
again, to the same file if there are no new ones. So a reader takes each record once, by the audit's name (`log`) and the record's
id.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from redelivery.display import scrubbed
from redelivery.errors import InputError

from .batch import order
from .commits import day_of, ending_of
from .tables import below, files_below, names, read_lines, read_text, write_rows, write_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: The folder of the audit.
AUDIT = "_audit"

_EXPORTED = "_exported"
_FILE = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)/(?P<name>records-(?P<first>\d+-\d+)-(?P<last>\d+-\d+)-(?P<count>\d+)(-[0-9a-f]{8})?\.jsonl)"
)
_CURSORS = pa.schema({"log": pa.string(), "record_id": pa.string(), "position": pa.int64()})
_NEEDED = {"log": str, "record_id": str, "position": int}


class Cursor(NamedTuple):
    """How far an audit was exported: the last record's id, and its number among all records ever added."""

    record_id: str = ""
    position: int = 0


def cursor_of(destination: str, log: str) -> Cursor:
    """How far this audit was exported here. Raises `InputError` if that cannot be read."""
    found = _cursors(destination).get(log, {})
    return Cursor(str(found.get("record_id", "")), int(found.get("position", 0)))


def advance(destination: str, log: str, cursor: Cursor) -> None:
    """Note how far this audit was exported. Raises `InputError` if the destination cannot be written."""
    known = _cursors(destination) | {log: {"log": log, **cursor._asdict()}}
    write_rows(known.values(), below(destination, AUDIT), _CURSORS, name=_EXPORTED, format="jsonl")


def _cursors(destination: str) -> dict[str, dict[str, Any]]:
    return {row["log"]: row for row in read_lines(below(destination, AUDIT), f"{_EXPORTED}.jsonl", _NEEDED)}


def write_records(destination: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write records, the oldest first; return the files. Raises `InputError` if they cannot be written."""
    days: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        days[day_of(row["at_ms"])].append(row)
    files = []
    for day, of_day in days.items():
        ending = ending_of(str(of_day[0]["log"]))
        name = f"records-{of_day[0]['record_id']}-{of_day[-1]['record_id']}-{len(of_day)}{ending}.jsonl"
        write_text("".join(f"{json.dumps(row)}\n" for row in of_day), below(destination, f"{AUDIT}/{day}"), name)
        files.append(f"{AUDIT}/{day}/{name}")
    return files


def read_records(destination: str, kept: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """The exported records, the newest first, a list for each day; each record once.

    `kept` are the ids of the records that the broker still has, the newest first: files with only these are not read. Raises
    `InputError` if there is no destination, or a file cannot be read.
    """
    if not names(destination):
        msg = scrubbed(f"there is nothing at {destination}: name what `redelivery outcomes export --to` was given")
        raise InputError(msg)
    folder, places = below(destination, AUDIT), {each: at for at, each in enumerate(kept)}
    days: defaultdict[str, list[str]] = defaultdict(list)
    for path in files_below(folder):
        found = _FILE.fullmatch(path)
        if found is not None and not _are_kept(places, found["first"], found["last"], int(found["count"])):
            days[found["day"]].append(found["name"])
    for day, files in sorted(days.items(), reverse=True):
        rows = {(row["log"], row["record_id"]): row for name in files for row in _rows(below(folder, day), name)}
        yield sorted(rows.values(), key=lambda row: (row["at_ms"], order(row["record_id"])), reverse=True)


def _are_kept(places: Mapping[str, int], first: str, last: str, count: int) -> bool:
    """Whether the broker still has all records of a file, also those between the first and the last."""
    return first in places and last in places and places[first] - places[last] == count - 1


def _rows(place: str, name: str) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in read_text(place, name).splitlines()]
        for row in rows:
            int(row["at_ms"]), str(row["log"]), order(row["record_id"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        msg = scrubbed(f"{below(place, name)} is no file of the audit ({exc!r}): only `redelivery outcomes export` writes there")
        raise InputError(msg) from exc
    return rows
