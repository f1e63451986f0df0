"""The state of the books between two runs: which files were read, and the lives that are still open.

A state is a folder. `current.json` names the current version. `v<number>/` is a version: `lives/` (Parquet: the lives of every task
that is not settled) and `run.json` (the record of the run). A run writes its version after the outputs, and then makes it the
current one by a rename. The version before it is kept, so after a crash the same run can be repeated. On an object store, which
cannot rename over a file, a crash may leave only the new file of the rename: then that file is read. The state forgets days older
than `keep`: their files count as read, and their discrepancies are no longer known.

Raises `InputError` for a folder that is not a state, an incomplete state, and a state that another run has changed meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from redelivery.errors import InputError

from ..schema import empty
from ..spark.files import literal
from ..spark.sql import row_of
from ..steps import STEPS
from .reading import date_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ..spark.files import Files

CURRENT: Final = "current.json"
#: The new `current.json`. It is complete before the old one is removed.
_NEXT: Final = f".{CURRENT}.new"
_FORMAT: Final = 1
_LIVES_PER_FILE: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The record of a run in its state.

    - `version`: the number of the run, 0 before the first.
    - `read`: all files that were read (by key), without forgotten ones. `sizes`: the bytes of those that the export did not write.
      `commits`: the export's commits that name them. `gaps`: the reported gaps.
    - `watermark_ms`: the latest time of an event. `forgotten`: the date before which nothing is known.
    - `fresh`: the files that this run read. `given`: its other inputs. A run with the same ones is a repetition.
    - `source`: the inventory's app and broker, and the folder of the export.
    - `lives`: the number of open lives. `unnamed`: whether one of them has no queue. `redriven`: whether a redrive opened one. Both
      are true by default, for states of earlier versions.
    """

    version: int = 0
    read: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    watermark_ms: int | None = None
    forgotten: str = ""
    lives: int = 0
    unnamed: bool = True
    redriven: bool = True
    fresh: list[str] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    format: int = _FORMAT

    @property
    def forgotten_ms(self) -> int:
        """The time before which nothing is known."""
        return round(datetime.fromisoformat(f"{self.forgotten or '1970-01-01'}T00:00:00+00:00").timestamp() * 1000)

    def forgetting(self, as_of_ms: int, keep_ms: int) -> Run:
        """This record without the files and commits of days that are older than `keep_ms`."""
        since = max(datetime.fromtimestamp(max(as_of_ms - keep_ms, 0) / 1000, UTC).strftime("%Y-%m-%d"), self.forgotten)
        read = {key: uri for key, uri in self.read.items() if (date_of(key) or "9") >= since}
        sizes = {key: size for key, size in self.sizes.items() if key in read}
        return replace(self, read=read, sizes=sizes, commits=[name for name in self.commits if name >= since], forgotten=since)


class State:
    """The state in a folder, for one run."""

    def __init__(self, spark: SparkSession, files: Files, uri: str) -> None:
        self._spark, self._files = spark, files
        self.uri = files.absolute(uri).rstrip("/")
        held = set(files.names(self.uri))
        if held and not held & {CURRENT, _NEXT} and not all(name.startswith((".", "v")) for name in held):
            msg = f"{uri} is not empty, and not a state of these books (no {CURRENT}): give --state a folder of its own"
            raise InputError(msg)
        self.last = self._read(self._current())

    def before(self, run: Run) -> Run:
        """The run before this one. A repetition of this run begins with it."""
        return self._read(run.version - 1)

    def check_source(self, source: dict[str, str]) -> None:
        """Raise `InputError` if two of app, broker and export have changed: these are other books, and open lives would look lost.

        One of them may change: an app gets another name, a broker another address, or an export another place.
        """
        last = {name: value for name, value in self.last.source.items() if value and source[name]}
        if sum(source[name] != value for name, value in last.items()) > 1:
            was, now = (", ".join(f"{name} {each[name]}" for name in last) for each in (last, source))
            msg = f"{self.uri} is the state of other books ({was}; now {now}): give each app and broker a state of its own"
            raise InputError(msg)

    def lives(self, run: Run, schema: StructType) -> DataFrame:
        """The lives that a run left open. A column that it did not know is null, or 0 if it counts an outcome.

        Raises `InputError` if the number of lives is not the number in the run's record.
        """
        if run.version == 0 or not run.lives:
            return empty(self._spark, schema)
        folder = f"{self._version(run.version)}/lives"
        is_there = self._files.exists(folder)
        found = self._spark.read.schema(schema).parquet(literal(folder)) if is_there else empty(self._spark, schema)
        if (count := found.count()) != run.lives:
            raise InputError(_broken(folder, f"it has {count:,} lives, and {run.lives:,} were written"))
        return found.fillna(0, [name for name in STEPS if name in schema.names])

    def write(self, run: Run, lives: DataFrame, *, about: int) -> Run:
        """Write a new version, and return its record. It is not the current one yet. `about` estimates the number of lives."""
        self._check_current()
        folder = self._version(run.version)
        self._files.remove(folder)
        lives.coalesce(max(1, -(-about // _LIVES_PER_FILE))).write.parquet(f"{folder}/lives")
        written = self._spark.read.schema(lives.schema).parquet(literal(f"{folder}/lives"))
        asked = {"lives": "count(*)", "unnamed": "count_if(queue = '') > 0", "redriven": "count_if(redriven > 0) > 0"}
        run = replace(run, **row_of(written, asked))
        self._files.write(f"{folder}/run.json", json.dumps(asdict(run)))
        return run

    def commit(self, run: Run) -> None:
        """Make this the current version, and remove all versions except it and the one before."""
        self._check_current()
        new = f"{self.uri}/{_NEXT}"
        self._files.write(new, json.dumps({"version": run.version, "format": _FORMAT}))
        self._files.replace(new, f"{self.uri}/{CURRENT}")
        for name in self._files.names(self.uri):
            if name.startswith("v") and name[1:].isdigit() and not run.version - 1 <= int(name[1:]) <= run.version:
                self._files.remove(f"{self.uri}/{name}")

    def _check_current(self) -> None:
        if self._current() != self.last.version:
            msg = f"{self.uri}: another run changed the state meanwhile; nothing is lost: run this one again, one at a time"
            raise InputError(msg)

    def _version(self, number: int) -> str:
        return f"{self.uri}/v{number:08}"

    def _current(self) -> int:
        name = f"{self.uri}/{CURRENT}"
        text = self._files.read(name)
        if text is not None:
            return _version_of(name, text)
        try:
            return _version_of(name, self._files.read(f"{self.uri}/{_NEXT}") or "")
        except InputError:  # there is no such file, or the first run died while it wrote it
            return 0

    def _read(self, version: int) -> Run:
        if version == 0:
            return Run()
        name = f"{self._version(version)}/run.json"
        text = self._files.read(name)
        if text is None:
            msg = f"{name} is missing: the state is not whole. Restore it, or begin a new one in another folder"
            raise InputError(msg)
        found = _object(name, text)
        if found.get("format") != _FORMAT or found.keys() - Run.__dataclass_fields__:
            msg = f"{name} was written by another version of redelivery: begin a new state in another folder"
            raise InputError(msg)
        run = Run(**found)
        wrong = [each for each, value in asdict(Run(watermark_ms=0)).items() if not isinstance(found.get(each, value), type(value))]
        if wrong and (wrong != ["watermark_ms"] or run.watermark_ms is not None):
            raise InputError(_broken(name, f"wrong values of {', '.join(wrong)}"))
        return run


def _version_of(name: str, text: str) -> int:
    version = _object(name, text).get("version")
    if type(version) is not int:
        raise InputError(_broken(name, "it has no version"))
    return version


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError(_broken(name, f"it is not JSON ({exc})")) from exc
    if not isinstance(found, dict):
        raise InputError(_broken(name, "it is not an object"))
    return found


def _broken(name: str, why: str) -> str:
    return f"{name} is broken: {why}. Restore it, or begin a new state in another folder"
