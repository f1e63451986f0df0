"""Tables: the columns of outcome events and inventories, and files of rows as Parquet or JSON lines.

A file is complete or absent: it gets its name when its last byte is on the disk, or when the store has the whole object. Missing
values are null; invalid Unicode is replaced. The reconciliation reads these columns by the same names and types
(`redelivery.workers.reconciliation.schema`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs, parquet

from redelivery.display import scrubbed
from redelivery.errors import InputError
from redelivery.middleware.messages.events import Event

from .private_files import private_folder, private_opener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ..ports import Format

#: The beginning of a URI. Any other text is a path.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
NOTHING: Mapping[str, type] = {}
#: The rows in memory at once, which form one row group.
ROW_GROUP = 20_000
_TEXT, _COUNT, _MS = pa.string(), pa.int64(), pa.int64()
#: An outcome event: a column for each field of it. Times are milliseconds since the epoch.
EVENTS = pa.schema({each.name: _COUNT if "int" in str(each.type) else _TEXT for each in fields(Event)})

#: A message that the broker holds. `owner` is the token of the worker that holds it, empty if that worker is gone; `message` is the
#: text of a dead letter's exception.
INVENTORY = pa.schema(
    {
        "task_id": _TEXT,
        "generation": _COUNT,
        "task": _TEXT,
        "queue": _TEXT,
        "place": _TEXT,
        "due_ms": _MS,
        "owner": _TEXT,
        "seen_ms": _MS,
        "nesting": _COUNT,
        "message": _TEXT,
    }
)


def below(uri: str, path: str) -> str:
    """A folder or file below a destination; the options after a URI's `?` (region, endpoint) stay at its end."""
    folder, mark, options = uri.partition("?") if _SCHEME.match(uri) else (uri, "", "")
    return f"{folder.rstrip('/')}/{path}{mark}{options}"


def write_rows(
    rows: Iterable[Mapping[str, Any]],
    uri: str,
    schema: pa.Schema,
    *,
    name: str,
    format: Format = "parquet",  # noqa: A002 - the word for it
    private: bool = False,
) -> int:
    """Write rows as the file `<uri>/<name>.<format>`, in place of an earlier one; return how many.

    Folders are made as needed. `private`: on a local disk only the owner may read the file or enter these folders. Without rows the
    file is empty. Only `ROW_GROUP` rows are in memory at once. Raises `InputError` if the destination cannot be written, and what
    `rows` raises; then no file is left.
    """
    write = _write_parquet if format == "parquet" else _write_lines
    return _whole(uri, f"{name}.{format}", lambda sink: write(rows, sink, schema), private=private)


def write_text(text: str, uri: str, file: str) -> None:
    """Write a small file `<uri>/<file>`, whole or not at all. Raises `InputError` if the destination cannot be written."""
    _whole(uri, file, lambda sink: int(sink.write(text.encode())))


def remove(uri: str, file: str) -> None:
    """Remove `<uri>/<file>`, if there is one."""
    filesystem, folder = resolve(uri)
    if filesystem.get_file_info(f"{folder}/{file}").type is fs.FileType.File:
        filesystem.delete_file(f"{folder}/{file}")


def size_of(uri: str, file: str) -> int:
    """How many bytes `<uri>/<file>` has."""
    filesystem, folder = resolve(uri)
    return int(filesystem.get_file_info(f"{folder}/{file}").size or 0)


def names(uri: str) -> list[str]:
    """The names in the folder `uri`; none if there is no such folder. Raises `InputError` if it cannot be read."""
    return sorted(each.base_name for each in _listed(uri))


def files_below(uri: str) -> list[str]:
    """The paths of the files in the folder `uri` and below it, from there. Raises as `names`."""
    _, folder = resolve(uri)
    found = [each.path for each in _listed(uri, recursive=True) if each.type is fs.FileType.File]
    return sorted(path[len(folder) :].lstrip("/") for path in found)


def _listed(uri: str, *, recursive: bool = False) -> list[fs.FileInfo]:
    filesystem, folder = resolve(uri)
    try:
        return list(filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=recursive)))
    except FileNotFoundError:  # the folder was made between pyarrow's two looks
        return []
    except OSError as exc:
        msg = scrubbed(f"{uri} cannot be read: {exc}. Give it rights, or give another destination")
        raise InputError(msg) from exc


def read_text(uri: str, file: str) -> str:
    """The text of a small file. Raises `InputError` if it cannot be read."""
    filesystem, folder = resolve(uri)
    try:
        with filesystem.open_input_stream(f"{folder}/{file}") as source:
            return str(source.read().decode())
    except (OSError, ValueError) as exc:
        msg = scrubbed(f"{below(uri, file)} cannot be read: {exc}. Move it away, or give another destination")
        raise InputError(msg) from exc


def read_lines(uri: str, file: str, needed: Mapping[str, type] = NOTHING) -> list[dict[str, Any]]:
    """The rows of the JSON lines file `<uri>/<file>`; none if there is no such file.

    Raises `InputError` if it cannot be read, or if a row has no value of its type for a `needed` name.
    """
    filesystem, folder = resolve(uri)
    try:
        with filesystem.open_input_stream(f"{folder}/{file}") as source:
            rows = [json.loads(line) for line in source.read().splitlines()]
        for row in rows:
            if not isinstance(row, dict) or any(type(row.get(name)) is not kind for name, kind in needed.items()):
                msg = f"a line is no object with {', '.join(needed) or 'columns'}"
                raise ValueError(msg)  # noqa: TRY301 - reported with the file's name
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as exc:
        msg = scrubbed(f"{below(uri, file)} cannot be read: {exc}. Move it away, or give another destination")
        raise InputError(msg) from exc
    return rows


def is_on_this_machine(uri: str) -> bool:
    """Whether a URI names a folder of this machine's own file system. Raises as `resolve`."""
    return isinstance(resolve(uri)[0], fs.LocalFileSystem)


def resolve(uri: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a path or a URI, and the path there. Raises `InputError` if pyarrow does not know the URI."""
    try:
        if _SCHEME.match(uri) is None:
            return fs.LocalFileSystem(), str(Path(uri).absolute())
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as exc:
        msg = scrubbed(f"{uri!r} is not a destination that pyarrow knows ({exc}): give a path, or a URI such as s3://bucket/prefix")
        raise InputError(msg) from exc
    return filesystem, path.rstrip("/")


def _whole(uri: str, file: str, write: Callable[[Any], int], *, private: bool = False) -> int:
    """Have `write` fill a file, which gets its name when it is complete."""
    filesystem, folder = resolve(uri)
    # A crash may leave such a file. Spark skips names that begin with a dot.
    unfinished = f"{folder}/.{file}.{uuid.uuid4().hex}"
    try:
        if private and isinstance(filesystem, fs.LocalFileSystem):
            private_folder(folder)
        else:
            filesystem.create_dir(folder, recursive=True)
        try:
            with _sink(filesystem, unfinished, private=private) as sink:
                count = write(sink)
            _rename(filesystem, unfinished, f"{folder}/{file}")
        except BaseException:
            with contextlib.suppress(OSError):
                filesystem.delete_file(unfinished)
            raise
    except (OSError, pa.ArrowException) as exc:
        msg = scrubbed(f"{below(uri, file)} cannot be written: {exc}. Make room, give it rights, or give another destination")
        raise InputError(msg) from exc
    return count


@contextlib.contextmanager
def _sink(filesystem: fs.FileSystem, path: str, *, private: bool) -> Iterator[IO[bytes] | pa.NativeFile]:
    """Open a file for writing; after the block its bytes are on the disk, as far as the filesystem guarantees that."""
    if isinstance(filesystem, fs.LocalFileSystem):
        with open(path, "xb", opener=private_opener if private else None) as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
    else:
        with filesystem.open_output_stream(path) as sink:
            yield sink


def _rename(filesystem: fs.FileSystem, unfinished: str, path: str) -> None:
    """Rename a complete file, in place of an earlier one. On an object store the copy appears as a whole."""
    if not isinstance(filesystem, fs.LocalFileSystem):
        try:
            filesystem.move(unfinished, path)
        except NotImplementedError:  # Azure renames blobs only in a hierarchical namespace
            filesystem.copy_file(unfinished, path)
            filesystem.delete_file(unfinished)
        return
    Path(unfinished).replace(path)
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_parquet(rows: Iterable[Mapping[str, Any]], sink: Any, schema: pa.Schema) -> int:
    count, source = 0, iter(rows)
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        while group := list(islice(source, ROW_GROUP)):
            writer.write_batch(_batch(group, schema))
            count += len(group)
    return count


def _write_lines(rows: Iterable[Mapping[str, Any]], sink: Any, schema: pa.Schema) -> int:
    count = 0
    for row in rows:
        line = {key: row[key] for key in schema.names if row.get(key) is not None}
        # `json` writes ASCII, with escapes, even for a lone surrogate.
        sink.write(json.dumps(line).encode() + b"\n")
        count += 1
    return count


def _batch(rows: list[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_column([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array([None if value is None else value.encode("utf-8", "replace").decode() for value in values], kind)
