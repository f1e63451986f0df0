"""Exported outcome events, read again: what the files tell of the tasks whose ids begin so.

The files of the newest hours are read first, until enough events have been looked at. Of a Parquet file the column of the ids is
read, and the others only where one of them is meant; of JSON lines every line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute, fs, parquet

from redelivery.display import scrubbed
from redelivery.errors import InputError
from redelivery.middleware.messages.events import Event

from .tables import EVENTS, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDINGS = (".parquet", ".jsonl")


@dataclass(slots=True)
class Exported:
    """What was found: how many events were looked at, and how many files were not, since that was enough."""

    events: list[Event] = field(default_factory=list)
    looked_at: int = 0
    left: int = 0


def exported(uri: str, given: str, most: int) -> Exported:
    """The events of tasks whose ids begin with `given`, in the files at this URI; looks at `most` events, and ends with the file.

    Raises `InputError` where there are no such files, or one cannot be read.
    """
    filesystem, folder = resolve(uri)
    found = Exported()
    try:
        files = sorted(_files(filesystem, folder), reverse=True)
        for at, path in enumerate(files):
            if found.looked_at >= most:
                found.left = len(files) - at
                break
            rows = _of_parquet if path.endswith(".parquet") else _of_lines
            with filesystem.open_input_file(path) as source:
                found.events += [_event(row) for row in rows(source, given, found)]
    except (OSError, ValueError, TypeError, pa.ArrowException) as exc:
        msg = scrubbed(f"the exported events at {uri} cannot be read: {exc}")
        raise InputError(msg) from exc
    if not files:
        msg = scrubbed(f"there are no exported events at {uri}: name what `redelivery outcomes export --to` was given")
        raise InputError(msg)
    return found


def _files(filesystem: fs.FileSystem, folder: str) -> list[str]:
    """The files of events; what begins with a dot or an underscore is none."""
    if filesystem.get_file_info(folder).type is fs.FileType.File:
        return [folder]
    there = filesystem.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    paths = [each.path for each in there if each.type is fs.FileType.File and each.path.endswith(ENDINGS)]
    return [each for each in paths if not any(part[:1] in {".", "_"} for part in each[len(folder) :].split("/"))]


def _of_parquet(source: Any, given: str, found: Exported) -> Iterator[dict[str, Any]]:
    file = parquet.ParquetFile(source)
    for number in range(file.num_row_groups):
        ids = file.read_row_group(number, columns=["task_id"]).column("task_id")
        found.looked_at += len(ids)
        is_meant = compute.starts_with(ids, given)
        if compute.any(is_meant).as_py():
            yield from file.read_row_group(number).filter(is_meant).to_pylist()


def _of_lines(source: Any, given: str, found: Exported) -> Iterator[dict[str, Any]]:
    sought = json.dumps(given)[1:-1].encode()  # as the lines have it: in ASCII
    for line in source.read().splitlines():
        found.looked_at += 1
        if sought in line and (row := json.loads(line))["task_id"].startswith(given):
            yield row


def _event(row: dict[str, Any]) -> Event:
    return Event(**{name: row[name] for name in EVENTS.names if row.get(name) is not None})
