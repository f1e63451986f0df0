"""Search exported outcome events: those of tasks whose ids begin with a text, or those of an actor.

The files of the newest hours are read first, until enough events were searched. In a Parquet file the searched column is read
first, and the other columns only if a value matches. In JSON lines every line is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import compute, fs, parquet

from redelivery.display import scrubbed
from redelivery.errors import InputError
from redelivery.middleware.messages.events import Event

from .tables import EVENTS, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENDINGS = (".parquet", ".jsonl")


@dataclass(slots=True)
class Exported:
    """The events found, how many were searched, and how many files were not read."""

    events: list[Event] = field(default_factory=list)
    looked_at: int = 0
    left: int = 0


class Sought(NamedTuple):
    """Events whose text in this column begins with `value`, or with `is_whole` equals it. Events without a text never match."""

    column: str
    value: str
    is_whole: bool = False

    @property
    def text(self) -> bytes:
        """The ASCII text that the line of each such event contains."""
        return json.dumps(self.value)[1:-1].encode()

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether this row matches."""
        text = row.get(self.column)
        return isinstance(text, str) and (text == self.value if self.is_whole else text.startswith(self.value))

    def among(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which values of the column match."""
        return compute.equal(column, self.value) if self.is_whole else compute.starts_with(column, self.value)


def exported(uri: str, given: str, most: int) -> Exported:
    """The events of tasks whose ids begin with `given`, in the files at this URI.

    Searches `most` events, and the rest of the file in which it reaches that number. Raises `InputError` if there are no files, or
    one cannot be read.
    """
    return _read(uri, Sought("task_id", given), most)


def acts(uri: str, actor: str, limit: int, most: int) -> Exported:
    """The newest events of this actor (empty: any actor), up to the end of the file that has the `limit`th.

    Searches `most` events. Raises as `exported`.
    """
    return _read(uri, Sought("actor", actor, is_whole=bool(actor)), most, limit)


def _read(uri: str, sought: Sought, most: int, limit: int | None = None) -> Exported:
    filesystem, folder = resolve(uri)
    found = Exported()
    try:
        files = sorted(_files(filesystem, folder), reverse=True)
        for at, path in enumerate(files):
            if limit is not None and len(found.events) >= limit:
                break
            if found.looked_at >= most:
                found.left = len(files) - at
                break
            rows = _of_parquet if path.endswith(".parquet") else _of_lines
            with filesystem.open_input_file(path) as source:
                for row in rows(source, sought, found):
                    found.events.append(Event(**{name: row[name] for name in EVENTS.names if row.get(name) is not None}))
    except (OSError, ValueError, TypeError, pa.ArrowException) as exc:
        msg = scrubbed(f"the exported events at {uri} cannot be read: {exc}")
        raise InputError(msg) from exc
    if not files:
        msg = scrubbed(f"there are no exported events at {uri}: name what `redelivery outcomes export --to` was given")
        raise InputError(msg)
    return found


def _files(filesystem: fs.FileSystem, folder: str) -> list[str]:
    """The files of events, without names that begin with a dot or an underscore."""
    if filesystem.get_file_info(folder).type is fs.FileType.File:
        return [folder]
    there = filesystem.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    paths = [each.path for each in there if each.type is fs.FileType.File and each.path.endswith(ENDINGS)]
    return [each for each in paths if not any(part[:1] in {".", "_"} for part in each[len(folder) :].split("/"))]


def _of_parquet(source: Any, sought: Sought, found: Exported) -> Iterator[dict[str, Any]]:
    file = parquet.ParquetFile(source)
    for number in range(file.num_row_groups):
        group = file.read_row_group(number, columns=[sought.column])
        found.looked_at += group.num_rows
        if sought.column not in group.column_names:  # an earlier version wrote it
            continue
        is_meant = sought.among(group.column(sought.column))
        if compute.any(is_meant).as_py():
            yield from file.read_row_group(number).filter(is_meant).to_pylist()


def _of_lines(source: Any, sought: Sought, found: Exported) -> Iterator[dict[str, Any]]:
    text = sought.text
    for line in source.read().splitlines():
        found.looked_at += 1
        if text in line and sought.has(row := json.loads(line)):
            yield row
