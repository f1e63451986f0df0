"""Reading: select the files of an export, and read them into one table.

The export writes one commit for each batch, after the batch's files. The commit names the files and their sizes. A file without a
commit comes from an export that died: it is not read, because the next export writes its events again. If a file of a commit is
missing, the run is refused. A folder without commits comes from another program: all its files are read.

Events and inventory are each a file or a folder (with any partition folders), Parquet or JSON lines by the endings of the files.
Missing inputs, other endings and other columns raise `InputError` at once. A truncated file, a broken line or a row without a task
id raises it when the rows are read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType

from redelivery.errors import InputError
from redelivery.middleware.messages.events import LATEST_MS

from ..figures.deadlines import Deadline
from ..schema import ASIDE, EVENTS, EVENTS_REQUIRED, INVENTORY, INVENTORY_REQUIRED, empty
from ..spark.files import literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from ..spark.files import File, Files

#: Where the export puts its commits: `_commits/<date>/<name>.json`. Spark skips such names.
COMMITS: Final = "_commits"

#: The name of a file that the export wrote. Other files are read without a commit.
_OURS: Final = re.compile(r"outcomes-\d+-\d+-\d+-\d+(?:-[0-9a-f]{8})?\.(?:parquet|jsonl)$")
#: A closing brace with text behind it: another object on the same line, or a brace inside a string.
_BEHIND: Final = "[}]\\\\s*[^\\\\s\\\\x00]"
_DATE: Final = re.compile(r"(?:^|/)date=(\d{4}-\d{2}-\d{2})(?=/)")


@dataclass(slots=True)
class Listing:
    """The `files` to read by key, the `commits` that name them, and the number of files without a commit (`uncommitted`).

    `rows` has the number of events of each file whose commit says it. `gaps` has the gaps in the commits, each with the name of its
    log.
    """

    files: dict[str, File] = field(default_factory=dict)
    commits: set[str] = field(default_factory=set)
    uncommitted: int = 0
    gaps: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def events(self) -> int | None:
        """The number of events to read, with duplicates; None if a commit does not say it."""
        return sum(self.rows[key] for key in self.files) if self.files.keys() <= self.rows.keys() else None


def root_of(uri: str) -> str:
    """The folder of the whole export if `uri` is one of its days or hours; otherwise `uri`."""
    found = _DATE.search(f"{uri.rstrip('/')}/")
    if found is None:
        return uri.rstrip("/")
    return uri[: found.start()] or ("/" if uri.startswith("/") else ".")


def key_of(path: str, root: str) -> str:
    """The name of a file that stays the same if the export moves: its path below the root, or its name if it is the root."""
    return path.removeprefix(root).lstrip("/") or path.rpartition("/")[2]


def date_of(key: str) -> str | None:
    """The date in a file's folder (`YYYY-MM-DD`, UTC), if there is one."""
    found = _DATE.search(f"/{key}")
    return None if found is None else found[1]


def listing(
    files: Files,
    uri: str,
    found: Iterable[File],
    *,
    known: AbstractSet[str] = frozenset(),
    read: Mapping[str, int] | None = None,
    since: str = "",
) -> Listing:
    """Select the files to read from `found`.

    Files and commits that are `known`, or of a date before `since`, are left out. `read` has the sizes that known files had when
    they were read. Raises `InputError` if a size has changed, or if the folder has another export inside.
    """
    root = files.absolute(root_of(uri))
    whole, part = root.rstrip("/"), files.absolute(uri).rstrip("/")
    all_here = {key_of(file.path, whole): file for file in found}
    _check_is_one(files, uri, whole, all_here)
    for key, size in (read or {}).items():
        if key in all_here:
            _check_unchanged(all_here[key], size)
    here = {key: file for key, file in all_here.items() if key not in known and (date_of(key) or "9") >= since}
    result = Listing()
    folder = f"{whole}/{COMMITS}"
    if not files.exists(folder):
        result.files = here
        return result
    named: dict[str, str] = {}
    sizes: dict[str, int] = {}
    missing: list[str] = []
    for name, found_commit in _commits(files, folder, known, since):
        keys = [str(each["file"]) for each in found_commit["files"]]
        inside = [key for key in keys if f"{whole}/{key}".startswith((f"{part}/", part))]
        gone = [key for key in inside if key not in here and key not in known and (date_of(key) or "9") >= since]
        if gone and all(files.exists(f"{whole}/{key}") for key in gone):
            continue  # an export wrote these files after they were listed: the next run reads them
        missing += gone
        sizes |= {str(each["file"]): int(each["bytes"]) for each in found_commit["files"] if "bytes" in each}
        result.rows |= {str(each["file"]): each["rows"] for each in found_commit["files"] if isinstance(each.get("rows"), int)}
        result.gaps += [(str(found_commit.get("log")), gap) for gap in found_commit.get("gaps", [])]
        named |= dict.fromkeys(inside, name)
        if len(inside) == len(keys):
            result.commits.add(name)
    if missing:
        raise InputError(_missing(uri, sorted(set(missing))))
    for key in named.keys() & here.keys() & sizes.keys():
        check_size(here[key], sizes[key])
    result.files = {key: file for key, file in here.items() if key in named or not _OURS.search(key)}
    result.uncommitted = len(here) - len(result.files)
    return result


def _check_is_one(files: Files, uri: str, whole: str, keys: Iterable[str]) -> None:
    """Raise `InputError` if this folder has another export inside, whose commits and gaps would not be read."""
    inner = {key[: found.start()] for key in keys if (found := _DATE.search(key))} - {""}
    for each in sorted(inner):
        if files.beginning(f"{whole}/{each}", "_"):
            msg = f"{uri} holds another export, in {each}: give each export books of its own, or move it away"
            raise InputError(msg)


def _check_unchanged(file: File, size: int) -> None:
    if file.size != size:
        msg = (
            f"{file.path} has {file.size} bytes, and an earlier run read {size} bytes under this name: what came later would not "
            "be read. Write new events to files with new names"
        )
        raise InputError(msg)


def sizes_of(found: Mapping[str, File]) -> dict[str, int]:
    """The sizes by key of files that the export did not write. Files of the export never change under one name."""
    return {key: file.size for key, file in found.items() if not _OURS.search(key)}


def check_size(file: File, size: int) -> None:
    """Raise `InputError` if the size of a file has changed since it was written: a truncated JSON lines file may look whole."""
    if file.size != size:
        msg = f"{file.path} has {file.size} bytes and was written with {size}: it is cut off, or was changed. Restore it"
        raise InputError(msg)


def _commits(files: Files, folder: str, known: AbstractSet[str], since: str) -> Iterable[tuple[str, dict[str, Any]]]:
    for date in files.names(folder):
        if date < since:
            continue
        for name in files.names(f"{folder}/{date}"):
            if f"{date}/{name}" in known or not name.endswith(".json") or name.startswith("."):
                continue
            text = files.read(f"{folder}/{date}/{name}")
            try:
                commit = json.loads(text or "")
                [(each["file"], int(each.get("bytes", 0))) for each in commit["files"]]
                [gap["after"] for gap in commit.get("gaps", [])]
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
                msg = f"{folder}/{date}/{name} is not a commit of an export ({exc}): only `redelivery outcomes export` writes there"
                raise InputError(msg) from exc
            yield f"{date}/{name}", commit


def _missing(uri: str, missing: list[str]) -> str:
    dates = sorted({date_of(key) or "no date" for key in missing})
    days = ", ".join(dates[:3]) + (f" and {len(dates) - 3} more" if len(dates) > 3 else "")  # noqa: PLR2004 - enough days to find the files
    return (
        f"{uri}: {len(missing)} files of {days} were exported and are not there, the first is {missing[0]}: restore them; "
        f"if you removed them on purpose, remove their commits, too ({COMMITS})"
    )


#: A commit's name. It has an ending (the group) if the app has a key prefix.
_ENDING: Final = re.compile(r"\d+-\d+-\d+(-[0-9a-f]{8})?\.json$")


def check_all_have_one(commits: Iterable[str], taken: Taken, inventory: str) -> None:
    """Raise `InputError` if an app with a commit has no inventory: all its open lives would look lost."""
    others = [name for name in sorted(commits) if (found := _ENDING.search(name)) and (found[1] or "") not in taken.endings]
    if others and taken.endings:
        msg = (
            f"{inventory} has no inventory of the app whose events {COMMITS}/{others[-1]} names: give each app a folder of its own"
            f" below {inventory}, and export its inventory to it"
        )
        raise InputError(msg)


#: The beginning of the names of files in which exports note gaps, one JSON object a line. An app with a key prefix has its own
#: file. Spark skips such names.
GAPS: Final = "_gaps"

#: The notes of an inventory: the time when it was taken (an empty inventory has no row with it), the size of its file, and more.
TAKEN: Final = "_taken.json"

#: Columns with which the job calculates. `_MOMENTS` are times since the epoch.
_MOMENTS: Final = ("at_ms", "seen_ms", "due_ms")
_CALCULATED: Final = (*_MOMENTS, "delay_ms", "run_ms", "delivery")

_FORMATS: Final = {
    ".parquet": "parquet",
    **dict.fromkeys((".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz"), "json"),
}


@dataclass(frozen=True, slots=True)
class Taken:
    """The notes of an inventory: the time when it was taken (ms since the epoch), its app and broker, and the deadlines.

    `unlisted` has the numbers of messages that were counted but not listed, by queue. `endings` has the endings of the names of the
    app's commits (`_ENDING`); empty if a note does not have it.
    """

    seen_ms: int | None = None
    app: str = ""
    broker: str = ""
    deadlines: tuple[Deadline, ...] = ()
    unlisted: Mapping[str, int] = field(default_factory=dict)
    endings: frozenset[str] = frozenset()

    @classmethod
    def of_all(cls, notes: Sequence[Taken]) -> Taken:
        """Join the notes of several inventories. The earliest time counts: only up to it did all inventories see everything.

        Deadlines are left out if they differ, because a life does not say to which app it belongs.
        """
        unlisted, deadlines = Counter[str](), {note.deadlines for note in notes}
        for note in notes:
            unlisted |= Counter(note.unlisted)
        return cls(
            min((note.seen_ms for note in notes if note.seen_ms is not None), default=None),
            ", ".join(sorted({note.app for note in notes} - {""})),
            ", ".join(sorted({note.broker for note in notes} - {""})),
            deadlines.pop() if len(deadlines) == 1 else (),
            dict(unlisted),
            frozenset().union(*(note.endings for note in notes)) if all(note.endings for note in notes) else frozenset(),
        )


def find(files: Files, uri: str, what: str) -> list[File]:
    """The files at this URI. Raises `InputError` without a file, or if one is neither Parquet nor JSON lines."""
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
    """The paths of these files. Raises `InputError` if a Parquet or gzip file is empty: Spark would skip it without an error."""
    paths = []
    for file in found:
        if file.size == 0 and file.name.endswith((".parquet", ".gz")):
            kind = "Parquet" if file.name.endswith(".parquet") else "gzip"
            msg = f"{file.path} is not a whole {kind} file: it is empty. Restore it, or move it away"
            raise InputError(msg)
        paths.append(file.path)
    return paths


def read_events(spark: SparkSession, paths: Sequence[str], uri: str = "") -> DataFrame:
    """The outcome events in these files. If they are all files of a folder, give its `uri`: then Spark lists the files itself."""
    return _read(spark, paths, uri, EVENTS, EVENTS_REQUIRED, "outcome events").drop(*ASIDE)


def read_inventory(spark: SparkSession, files: Files, uri: str) -> DataFrame:
    """The rows of the inventory at this URI."""
    return _read(spark, paths_of(find(files, uri, "inventory")), uri, INVENTORY, INVENTORY_REQUIRED, "inventory")


def read_gaps(files: Files, uri: str) -> list[dict[str, Any]]:
    """The gaps that the exports in this folder have noted."""
    names = [] if _format_of(uri) else [each for each in files.beginning(root_of(uri), GAPS) if each.endswith(".jsonl")]
    return [gap for name in names for gap in _gaps_of(files, uri, name)]


def _gaps_of(files: Files, uri: str, name: str) -> list[dict[str, Any]]:
    text = files.read(f"{root_of(uri)}/{name}")
    try:
        gaps = [json.loads(line) for line in (text or "").splitlines() if line.strip()]
    except (ValueError, RecursionError) as exc:
        msg = f"{uri}/{name} holds a line that is not JSON ({exc}): it is written by `redelivery outcomes export` alone"
        raise InputError(msg) from exc
    return [gap if isinstance(gap, dict) else {"gap": gap} for gap in gaps]


def not_noted(noted: Iterable[dict[str, Any]], of_commits: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The gaps in commits that are not in the files of gaps. Gaps of several logs may begin after the same entry id."""
    left, missing = Counter(gap.get("after") for gap in noted), []
    for (_, after), gap in {(log, gap.get("after")): gap for log, gap in of_commits}.items():
        if left[after]:
            left[after] -= 1
        else:
            missing.append(gap)
    return missing


def read_taken(files: Files, uri: str, held: Iterable[File]) -> Taken:
    """The notes of an inventory, or of the inventories of several apps below `uri`. Checks the sizes of their files (`held`).

    Raises `InputError` if two inventories belong to one app: one of them is out of date.
    """
    by_folder: dict[str, list[File]] = {} if _format_of(uri) else {files.absolute(uri).rstrip("/"): []}
    for file in () if _format_of(uri) else held:
        by_folder.setdefault(file.path.rpartition("/")[0], []).append(file)
    found = {where: note for where, here in sorted(by_folder.items()) if (note := _taken_in(files, where, here)) is not None}
    whose: dict[tuple[object, ...], str] = {}
    for where, note in found.items():
        other = whose.setdefault((note.app, note.broker, note.endings), where)
        if other != where:
            msg = f"{uri} holds two inventories of one app, in {other} and {where}: move the older one away"
            raise InputError(msg)
    return Taken.of_all(list(found.values()))


def _taken_in(files: Files, folder: str, held: Iterable[File]) -> Taken | None:
    text = files.read(f"{folder}/{TAKEN}")
    if text is None:
        return None
    try:
        note = json.loads(text)
        seen_ms, sizes = int(note["seen_ms"]), {str(note["file"]): int(note["bytes"])} if "bytes" in note else {}
        datetime.fromtimestamp(seen_ms / 1000, UTC)
        deadlines = tuple(Deadline.of(each) for each in note.get("deadlines") or ())
        unlisted = {str(queue): int(count) for queue, count in (note.get("unlisted") or {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError) as exc:
        msg = f"{folder}/{TAKEN} does not say when the inventory was taken ({exc}): only `redelivery inventory export` writes it"
        raise InputError(msg) from exc
    for file in held:
        check_size(file, sizes.get(file.name, file.size))
    endings = frozenset({str(note["ending"])} if "ending" in note else ())
    return Taken(seen_ms, str(note.get("app") or ""), str(note.get("broker") or ""), deadlines, unlisted, endings)


def _read(  # noqa: PLR0917 - the files and their columns
    spark: SparkSession, paths: Sequence[str], uri: str, schema: StructType, required: Sequence[str], what: str
) -> DataFrame:
    by_format: dict[str, list[str]] = {}
    for path in paths:
        by_format.setdefault(str(_format_of(path)), []).append(path)
    if "parquet" in by_format:
        _check_columns(spark, by_format["parquet"][0], schema, required, what)
    _check_lines(spark, [path for path in by_format.get("json", ()) if not _OURS.search(path)])
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
    table = reader.format(name).load(literal(uri) if uri else [literal(each) for each in paths])
    if uri and len(table._jdf.inputFiles()) != len(paths):  # noqa: SLF001 - its list in Java is not copied to Python
        return _table(spark, name, "", paths, schema)  # an export has written files since then
    return table.selectExpr(*(_usable(each.name) if each.name in _CALCULATED else each.name for each in schema))


def _usable(name: str) -> str:
    """A number, in SQL; null if sums or dates would overflow. A row without its time is refused later."""
    return f"IF({name} BETWEEN {0 if name in _MOMENTS else -LATEST_MS} AND {LATEST_MS}, {name}, NULL) AS {name}"


def _check_lines(spark: SparkSession, paths: list[str]) -> None:
    """Raise `InputError` if a line has text behind its object: Spark would ignore that text without an error."""
    if not paths:
        return
    lines = spark.read.text([literal(each) for each in paths]).where(f"value RLIKE '{_BEHIND}'")
    for line in lines.select("value", "_metadata.file_path").toLocalIterator():
        try:
            json.loads(line.value)
        except ValueError as exc:
            msg = f"{line.file_path} has a line that is not one JSON object: {exc}; is a line break missing between two objects?"
            raise InputError(msg) from exc


def _check_columns(spark: SparkSession, path: str, schema: StructType, required: Sequence[str], what: str) -> None:
    """Raise `InputError` for a file with other columns: Spark would read a missing column as null, without an error."""
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
