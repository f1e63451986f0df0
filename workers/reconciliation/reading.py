"""Reading: from the files of an export to one table of rows, as the fold takes them.

Enters: a URI of outcome events and one of an inventory, each a file or a folder (with any partition folders), Parquet or JSON
lines by the endings of the files. Leaves: lazy DataFrames of the columns that `schema.py` names, and the gaps that the export
noticed. Refuses, with `InputError`: what is not there, a folder without a file, an ending that is neither, a Parquet file with
other columns. What only shows when the rows are read (a truncated file, a broken line, a row without a task id) is refused then.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType

from redelivery.errors import InputError

from .commits import check_size, root_of
from .files import literal
from .schema import ASIDE, EVENTS, EVENTS_REQUIRED, INVENTORY, INVENTORY_REQUIRED, empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from .files import File, Files

#: Where the export notes what left the outcome log before it was exported, one JSON object a line. Spark skips such names.
GAPS: Final = "_gaps.jsonl"

#: Where an inventory notes when it was taken, which one without a row would not say, and how large its file is.
TAKEN: Final = "_taken.json"

_FORMATS: Final = {
    ".parquet": "parquet",
    **dict.fromkeys((".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz"), "json"),
}


@dataclass(frozen=True, slots=True)
class Taken:
    """What an inventory's export noted: when it was taken (ms since the epoch), of which app, from which broker."""

    seen_ms: int | None = None
    app: str = ""
    broker: str = ""


def find(files: Files, uri: str, what: str) -> list[File]:
    """The files at this URI. Raises `InputError` where there is none, or one that is neither Parquet nor JSON lines."""
    if not files.exists(uri):
        msg = f"there is nothing at {uri}: export the {what} first, or look at the path"
        raise InputError(msg)
    found = list(files.walk(uri))
    for file in found:
        if _format_of(file.name) is None:
            msg = f"{file.path} is neither Parquet nor JSON lines by its ending: move it out of the {what}"
            raise InputError(msg)
    if not found:
        msg = f"{uri} holds no file with {what}: export it first, or look at the path"
        raise InputError(msg)
    return found


def paths_of(found: Iterable[File]) -> list[str]:
    """Their paths. Raises `InputError` where one is a Parquet file without a byte, which Spark would pass over in silence."""
    paths = []
    for file in found:
        if file.size == 0 and file.name.endswith(".parquet"):
            msg = f"{file.path} is no whole Parquet file: it has no bytes. Restore it, or move it away"
            raise InputError(msg)
        paths.append(file.path)
    return paths


def read_events(spark: SparkSession, paths: Sequence[str], uri: str = "") -> DataFrame:
    """The outcome events in these files; with `uri` they are all that is there, and Spark lists them itself."""
    return _read(spark, paths, uri, EVENTS, EVENTS_REQUIRED, "outcome events").drop(*ASIDE)


def read_inventory(spark: SparkSession, files: Files, uri: str) -> DataFrame:
    """The inventory at this URI."""
    return _read(spark, paths_of(find(files, uri, "inventory")), uri, INVENTORY, INVENTORY_REQUIRED, "inventory")


def read_gaps(files: Files, uri: str) -> list[dict[str, Any]]:
    """The gaps that the export left beside its events."""
    text = files.read(f"{root_of(uri)}/{GAPS}") if not _format_of(uri) else None
    try:
        gaps = [json.loads(line) for line in (text or "").splitlines() if line.strip()]
    except ValueError as exc:
        msg = f"{uri}/{GAPS} holds a line that is no JSON ({exc}): it is written by `redelivery outcomes export` alone"
        raise InputError(msg) from exc
    return [gap if isinstance(gap, dict) else {"gap": gap} for gap in gaps]


def read_taken(files: Files, uri: str, held: Iterable[File]) -> Taken:
    """What the export of the inventory noted; `held` are its files, of the noted sizes."""
    text = files.read(f"{uri.rstrip('/')}/{TAKEN}") if not _format_of(uri) else None
    if text is None:
        return Taken()
    try:
        told = json.loads(text)
        seen_ms, sizes = int(told["seen_ms"]), {str(told["file"]): int(told["bytes"])} if "bytes" in told else {}
    except (ValueError, TypeError, KeyError) as exc:
        msg = f"{uri}/{TAKEN} does not say when the inventory was taken ({exc}): only `redelivery inventory export` writes it"
        raise InputError(msg) from exc
    for file in held:
        check_size(file, sizes.get(file.name, file.size))
    return Taken(seen_ms, str(told.get("app") or ""), str(told.get("broker") or ""))


def _read(  # noqa: PLR0917 - what is read, and what it must be
    spark: SparkSession,
    paths: Sequence[str],
    uri: str,
    schema: StructType,
    required: Sequence[str],
    what: str,
) -> DataFrame:
    by_format: dict[str, list[str]] = {}
    for path in paths:
        by_format.setdefault(str(_format_of(path)), []).append(path)
    if "parquet" in by_format:
        _check_columns(spark, by_format["parquet"][0], schema, required, what)
    tables = [_table(spark, name, uri, by_format[name], schema) for name in sorted(by_format)]
    return reduce(DataFrame.unionByName, tables) if tables else empty(spark, schema)


def _format_of(name: str) -> str | None:
    return next((name_of for ending, name_of in _FORMATS.items() if name.endswith(ending)), None)


def _table(spark: SparkSession, name: str, uri: str, paths: list[str], schema: StructType) -> DataFrame:
    reader = spark.read.schema(schema)
    if name == "json":
        reader = reader.option("mode", "FAILFAST")
    if uri:
        reader = reader.option("recursiveFileLookup", value=True)
        if _format_of(uri) is None:
            endings = ",".join(ending for ending, kind in _FORMATS.items() if kind == name)
            reader = reader.option("pathGlobFilter", f"*{{{endings}}}")
    return reader.format(name).load(literal(uri) if uri else [literal(each) for each in paths]).selectExpr(*schema.fieldNames())


def _check_columns(spark: SparkSession, path: str, schema: StructType, required: Sequence[str], what: str) -> None:
    """Compare one file's own columns with ours: a column of ours that is not there reads as null, without a word."""
    actual = {each.name: each.dataType for each in spark.read.parquet(literal(path)).schema}
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
