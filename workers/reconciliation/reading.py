"""Reading: from the files of an export to one table of rows, as the fold takes them.

Enters: a URI of outcome events and one of an inventory, each a file or a folder (with any partition folders), Parquet or JSON
lines by the endings of the files. Leaves: lazy DataFrames of the columns that `schema.py` names, and the gaps that the export
noticed. Refuses, with `InputError`: what is not there, a folder without a file, an ending that is neither, a Parquet file with
other columns. What only shows when the rows are read (a truncated file, a broken line, a row without a task id) is refused then.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType

from redelivery.errors import InputError
from redelivery.workers.reconciliation.schema import EVENTS, EVENTS_REQUIRED, INVENTORY, INVENTORY_REQUIRED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from redelivery.workers.reconciliation.files import Files

__all__ = ["read_events", "read_gaps", "read_inventory", "read_taken"]

#: Where the export notes what left the outcome log before it was exported, one JSON object a line. Spark skips such names.
GAPS: Final = "_gaps.jsonl"

#: Where an inventory notes when it was taken: one without a row would not say.
TAKEN: Final = "_taken.json"

_FORMATS: Final = {
    ".parquet": "parquet",
    **dict.fromkeys((".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz"), "json"),
}


def read_events(spark: SparkSession, files: Files, uri: str) -> DataFrame:
    """The outcome events at this URI."""
    return _read(spark, files, uri, EVENTS, EVENTS_REQUIRED, "outcome events")


def read_inventory(spark: SparkSession, files: Files, uri: str) -> DataFrame:
    """The inventory at this URI."""
    return _read(spark, files, uri, INVENTORY, INVENTORY_REQUIRED, "inventory")


def read_gaps(files: Files, uri: str) -> list[dict[str, Any]]:
    """The gaps that the export left beside its events."""
    text = files.read(f"{uri.rstrip('/')}/{GAPS}") if not _format_of(uri) else None
    try:
        gaps = [json.loads(line) for line in (text or "").splitlines() if line.strip()]
    except ValueError as exc:
        msg = f"{uri}/{GAPS} holds a line that is no JSON ({exc}): it is written by `redelivery outcomes export` alone"
        raise InputError(msg) from exc
    return [gap if isinstance(gap, dict) else {"gap": gap} for gap in gaps]


def read_taken(files: Files, uri: str) -> int | None:
    """When the inventory was taken (ms since the epoch), where its export noted it."""
    text = files.read(f"{uri.rstrip('/')}/{TAKEN}") if not _format_of(uri) else None
    if text is None:
        return None
    try:
        return int(json.loads(text)["seen_ms"])
    except (ValueError, TypeError, KeyError) as exc:
        msg = f"{uri}/{TAKEN} does not say when the inventory was taken ({exc}): only `redelivery inventory export` writes it"
        raise InputError(msg) from exc


def _read(  # noqa: PLR0917 - what is read, and what it must be
    spark: SparkSession,
    files: Files,
    uri: str,
    schema: StructType,
    required: Sequence[str],
    what: str,
) -> DataFrame:
    formats = _formats(files, uri, what)
    if ".parquet" in formats:
        _check_columns(spark, formats[".parquet"], schema, required, what)
    return reduce(DataFrame.unionByName, [_table(spark, uri, name, endings, schema) for name, endings in _groups(formats)])


def _formats(files: Files, uri: str, what: str) -> dict[str, str]:
    """One file's path for each ending that there is."""
    if not files.exists(uri):
        msg = f"there is no {what} at {uri}: export it first, or look at the path"
        raise InputError(msg)
    found: dict[str, str] = {}
    for file in files.walk(uri):
        if _format_of(file.name) is None:
            msg = f"{file.path} is neither Parquet nor JSON lines by its ending: move it out of the {what}"
            raise InputError(msg)
        found.setdefault(next(ending for ending in _FORMATS if file.name.endswith(ending)), file.path)
    if not found:
        msg = f"{uri} holds no file with {what}: export it first, or look at the path"
        raise InputError(msg)
    return found


def _format_of(name: str) -> str | None:
    return next((name_of for ending, name_of in _FORMATS.items() if name.endswith(ending)), None)


def _groups(formats: dict[str, str]) -> list[tuple[str, list[str]]]:
    endings: dict[str, list[str]] = {}
    for ending in sorted(formats):
        endings.setdefault(_FORMATS[ending], []).append(ending)
    return list(endings.items())


def _table(spark: SparkSession, uri: str, name: str, endings: Sequence[str], schema: StructType) -> DataFrame:
    reader = spark.read.schema(schema).option("recursiveFileLookup", value=True)
    if _format_of(uri) is None:
        reader = reader.option("pathGlobFilter", "*{" + ",".join(endings) + "}")
    if name == "json":
        reader = reader.option("mode", "FAILFAST")
    return reader.format(name).load(uri).select(*schema.fieldNames())


def _check_columns(spark: SparkSession, path: str, schema: StructType, required: Sequence[str], what: str) -> None:
    """Compare one file's own columns with ours: a column of ours that is not there reads as null, without a word."""
    actual = {each.name: each.dataType for each in spark.read.parquet(path).schema}
    missing = [name for name in required if name not in actual]
    if missing:
        msg = f"{path} holds no {what}: it has no column {', '.join(missing)}; its columns are {', '.join(actual) or 'none'}"
        raise InputError(msg)
    for each in schema:
        kind = actual.get(each.name, each.dataType)
        if not _fits(kind, each.dataType):
            msg = f"{path}: column {each.name} of the {what} must be {each.dataType.simpleString()}, and is {kind.simpleString()}"
            raise InputError(msg)


def _fits(actual: DataType, ours: DataType) -> bool:
    return actual == ours or (isinstance(actual, IntegerType) and isinstance(ours, LongType))
