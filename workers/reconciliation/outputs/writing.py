"""Writing: the outputs, all of them or none.

Everything is written to a hidden folder beside the output, which replaces the output when it is complete. An earlier output of the
books is replaced; if anything else is in that place, the run is refused before any work is done. On an object store a rename is a
copy: a reader there may see an incomplete output, and a run that died there must be done again. The folder that a killed run left
beside its output is removed by the first run that succeeds a day later.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from redelivery.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from ..spark.files import Files

SUMMARY: Final = "summary.json"
_TABLES: Final = frozenset({"verdicts", "metrics", "causes", "run_times", "failures", "in_time", "repeats"})
_OURS: Final = frozenset({SUMMARY, "trend.json", "report.html"}) | _TABLES


#: No run takes so long (ms): an older folder was left by a run that died.
_LEFT_MS: Final = 86_400_000


def check_apart(files: Files, uri: str, inputs: dict[str, str], what: str) -> str:
    """The full URI of a folder of ours. Raises `InputError` if it is inside an input, or an input is inside it."""
    here = files.real(uri).rstrip("/")
    for name, given in inputs.items():
        source = files.real(given).rstrip("/")
        if f"{here}/".startswith(f"{source}/") or f"{source}/".startswith(f"{here}/"):
            msg = f"--{what} {uri} and --{name} {given} lie within each other: give the {what} a folder of its own"
            raise InputError(msg)
    return here


def check_output(files: Files, uri: str, inputs: dict[str, str]) -> str:
    """The full URI of the output. Raises `InputError` for a mount point, for files that are not ours, and as `check_apart`."""
    output = check_apart(files, uri, inputs, "output")
    if output.startswith("file:") and os.path.ismount(output.removeprefix("file:")):  # a rename would empty it, and then fail
        msg = f"{uri} is a mount point, which cannot be replaced: give a folder inside it"
        raise InputError(msg)
    held = set(files.names(output))
    # If a run that wrote here died, and a rename is a copy, it may have left a part of its output.
    if held and (held - _OURS or (SUMMARY not in held and not _beside(files, output))):
        strange = ", ".join(sorted(held - _OURS)[:3]) or f"no {SUMMARY}"
        msg = f"{uri} is not empty, and not an output of these books ({strange}): give another folder"
        raise InputError(msg)
    return output


def _beside(files: Files, output: str) -> list[str]:
    """The hidden folders of runs beside this output."""
    parent, _, name = output.rpartition("/")
    return [f"{parent}/{each}" for word in ("new", "old") for each in files.beginning(parent, f".{name}.{word}-")]


@contextmanager
def replacing(files: Files, output: str) -> Iterator[str]:
    """A folder to write to; it becomes the output when the block ends, and is removed if the block fails."""
    parent, _, name = output.rpartition("/")
    new, old = (f"{parent}/.{name}.{word}-{uuid.uuid4().hex}" for word in ("new", "old"))
    try:
        yield new
        if files.exists(output):
            files.rename(output, old)
        files.rename(new, output)
    except BaseException:
        files.remove(new)
        if files.exists(old) and not files.exists(output):
            files.rename(old, output)
        raise
    files.remove(old)
    for each in _beside(files, output):
        if files.modified_ms(each) < time.time() * 1000 - _LEFT_MS:
            files.remove(each)


def write_table(table: DataFrame, folder: str, name: str) -> None:
    """Write a table as Parquet."""
    table.write.parquet(f"{folder}/{name}")


def write_summary(files: Files, summary: Mapping[str, Any], folder: str) -> None:
    """Write the summary."""
    files.write(f"{folder}/{SUMMARY}", json.dumps(summary, indent=2) + "\n")
