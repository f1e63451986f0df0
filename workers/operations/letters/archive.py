"""The archive of dead letters: whole letters in files. A purge writes them before it removes them; an export only copies them.

Each batch is a file `<uri>/dead_letter_queue=<name>/letters-<digest>.parquet`; without pyarrow, a file of JSON lines below a local
path. A file is complete or does not exist. Its name is derived from its letters: letters that are written twice, for example after
a crash, are one file. `letter_id` shows if a letter is in two files. An archive is complete: `redact` hides nothing in it. On a
local disk only its owner may read it (0600, new folders 0700).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import urllib.parse
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redelivery.display import scrubbed
from redelivery.errors import ConfigurationError, InputError

from ...export.private_files import private_folder, private_opener
from ...letters import Letter
from .filter import Filter
from .walk import letters_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redelivery.middleware.ports import Transport
    from redelivery.middleware.runtime import Runtime

#: The maximum number of dead letters, and of bytes, in one file. They are in memory until it is written.
BATCH, MAX_BYTES = 5_000, 64 * 1024 * 1024

#: The columns of an archive: text (True) or a whole number. Times are milliseconds since the epoch.
COLUMNS: dict[str, bool] = {
    "letter_id": True,
    "task_id": True,
    "generation": False,
    "task": True,
    "dead_letter_queue": True,
    "queue": True,
    "origin_queue": True,
    "reason": True,
    "exception": True,
    "message": True,
    "fingerprint": True,
    "attempts": False,
    "died_ms": False,
    "archived_ms": False,
    "why": True,
    "encoding": True,
    "letter": True,
}


@dataclass(slots=True, kw_only=True)
class Exported:
    """What an export wrote: how many `letters`, into which `files` (relative to the destination)."""

    dead_letter_queue: str
    destination: str
    letters: int = 0
    files: list[str] = field(default_factory=list)


def archive(letters: Sequence[Letter], uri: str, name: str, *, now_ms: int, why: str) -> str:
    """Write these letters of the dead-letter queue `name`, and flush them to the disk. Returns the file, relative to `uri`.

    Raises `InputError` if the destination cannot be written; then nothing was written.
    """
    rows = [row_of(letter, name, now_ms=now_ms, why=why) for letter in letters]
    digest = hashlib.sha1("".join(row["letter_id"] for row in rows).encode(), usedforsecurity=False).hexdigest()
    folder, file = f"dead_letter_queue={urllib.parse.quote(name, safe='.-_')}", f"letters-{digest}"
    try:
        import pyarrow as pa  # noqa: PLC0415 - it need not be installed

        from ...export.tables import below, write_rows  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "pyarrow":
            raise
        return f"{folder}/{_write_lines(rows, uri, folder, file)}"
    schema = pa.schema({column: pa.string() if is_text else pa.int64() for column, is_text in COLUMNS.items()})
    write_rows(rows, below(uri, folder), schema, name=file, format="parquet", private=True)
    return f"{folder}/{file}.parquet"


def archive_raw(runtime: Runtime, raw: bytes, *, held_in: str | None, why: str) -> str:
    """Write one letter of the dead-letter queue `held_in` to the app's archive. Raises `ConfigurationError` if there is none."""
    uri = runtime.settings.dead_letter_archive
    if uri is None:
        msg = "there is no archive: set dead_letter_archive to a folder or a URI such as s3://bucket/letters"
        raise ConfigurationError(msg)
    letter = Letter.of(raw)
    return archive([letter], uri, letter.queue if held_in is None else held_in, now_ms=runtime.transport.now_ms(), why=why)


def require_place(runtime: Runtime, uri: str) -> None:
    """Raise `InputError` if an operation may not write its archive to this place.

    Any client that may write to the broker can store an operation, so operations write only in or below the app's own archive.
    """
    own = runtime.settings.dead_letter_archive
    if own is None or ".." in uri.split("/") or not f"{uri.rstrip('/')}/".startswith(f"{own.rstrip('/')}/"):
        where = "which is not set" if own is None else f"which is {scrubbed(own)}"
        msg = (
            f"an operation may write its archive only in or below dead_letter_archive, {where}: "
            "name a place there, or run `dlq purge --archive` without --detach"
        )
        raise InputError(msg)


def export_letters(transport: Transport, name: str, uri: str, chosen: Filter | None = None) -> Exported:
    """Write the letters of a queue that a filter chooses. They stay in the queue."""
    done, batch, size = Exported(dead_letter_queue=name, destination=uri), [], 0
    chosen, now_ms = Filter() if chosen is None else chosen, transport.now_ms()
    for letter in letters_of(transport, name):
        if not chosen.passes(letter):
            continue
        batch.append(letter)
        size += len(letter.raw)
        if len(batch) >= BATCH or size >= MAX_BYTES:
            done.files.append(archive(batch, uri, name, now_ms=now_ms, why="export"))
            done.letters += len(batch)
            batch, size = [], 0
    if batch:
        done.files.append(archive(batch, uri, name, now_ms=now_ms, why="export"))
        done.letters += len(batch)
    return done


def row_of(letter: Letter, name: str, *, now_ms: int, why: str) -> dict[str, Any]:
    """Return the archive's row for a dead letter. `letter` is the message as it was in the queue, in base64 if it is not text."""
    raw = letter.raw
    try:
        encoding, text = "utf-8", raw.decode()
    except UnicodeDecodeError:
        encoding, text = "base64", base64.b64encode(raw).decode()
    return {
        **{key: value for key, value in letter.to_row().items() if key in COLUMNS},
        "letter_id": hashlib.sha1(raw, usedforsecurity=False).hexdigest(),
        "dead_letter_queue": name,
        "origin_queue": letter.origin_queue,
        "archived_ms": now_ms,
        "why": why,
        "encoding": encoding,
        "letter": text,
    }


def _write_lines(rows: Sequence[dict[str, Any]], uri: str, folder: str, file: str) -> str:
    """Write JSON lines below a local path. The file gets its name when the lines are on the disk."""
    if "://" in uri:
        msg = f"{scrubbed(uri)!r} needs pyarrow, which is not installed: install redelivery[export], or give a path"
        raise InputError(msg)
    place = Path(uri) / folder
    unfinished = place / f".{file}.{uuid.uuid4().hex}"
    try:
        private_folder(place)
        with open(unfinished, "x", encoding="ascii", opener=private_opener) as sink:
            sink.writelines(json.dumps({name: row.get(name) for name in COLUMNS}) + "\n" for row in rows)
            sink.flush()
            os.fsync(sink.fileno())
        unfinished.replace(place / f"{file}.jsonl")
    except OSError as exc:
        msg = f"the archive {scrubbed(uri)!r} cannot be written: {exc}; free space there, or name another place"
        raise InputError(msg) from exc
    return f"{file}.jsonl"
