"""Writing: the outputs, all of them or none.

A run writes to a hidden folder next to the output, which replaces the output when it is complete. Only an earlier output of the
books is replaced; anything else in its place is refused before the run begins. On an object store a rename is a copy: a reader may
see an incomplete output, and a run that died must be repeated. The first successful run a day later removes the folder of a killed
run.
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


#: Age (ms) from which on a hidden folder belongs to a run that died. No run takes so long.
_ABANDONED_MS: Final = 86_400_000


def check_apart(files: Files, uri: str, inputs: dict[str, str], what: str) -> str:
    """The full URI of a folder to write to. Raises `InputError` if it is inside an input, or an input is inside it."""
    here = files.real(uri).rstrip("/")
    for name, given in inputs.items():
        source = files.real(given).rstrip("/")
        if f"{here}/".startswith(f"{source}/") or f"{source}/".startswith(f"{here}/"):
            msg = f"--{what} {uri} and --{name} {given} lie within each other: give the {what} a folder of its own"
            raise InputError(msg)
    return here


def check_output(files: Files, uri: str, inputs: dict[str, str]) -> str:
    """The full URI of the output. Raises `InputError` for a mount point, for foreign files, and as `check_apart` does."""
    output = check_apart(files, uri, inputs, "output")
    if output.startswith("file:") and os.path.ismount(output.removeprefix("file:")):  # a rename would empty it, and then fail
        msg = f"{uri} is a mount point, which cannot be replaced: give a folder inside it"
        raise InputError(msg)
    held = set(files.names(output))
    # Where a rename is a copy, a run that died may have left a part of its output.
    if held and (held - _OURS or (SUMMARY not in held and not _run_folders(files, output))):
        strange = ", ".join(sorted(held - _OURS)[:3]) or f"no {SUMMARY}"
        msg = f"{uri} is not empty, and not an output of these books ({strange}): give another folder"
        raise InputError(msg)
    return output


def _run_folders(files: Files, output: str) -> list[str]:
    """The hidden folders of runs next to this output."""
    parent, _, name = output.rpartition("/")
    return [f"{parent}/{each}" for word in ("new", "old") for each in files.beginning(parent, f".{name}.{word}-")]


@contextmanager
def replacing(files: Files, output: str) -> Iterator[str]:
    """A folder to write to. It becomes the output when the block ends, and is removed if the block fails."""
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
    for each in _run_folders(files, output):
        if files.modified_ms(each) < time.time() * 1000 - _ABANDONED_MS:
            files.remove(each)


def write_table(table: DataFrame, folder: str, name: str) -> None:
    """Write a table to the folder as Parquet."""
    table.write.parquet(f"{folder}/{name}")


def write_summary(files: Files, summary: Mapping[str, Any], folder: str) -> None:
    """Write the summary to the folder as JSON."""
    files.write(f"{folder}/{SUMMARY}", json.dumps(summary, indent=2) + "\n")
