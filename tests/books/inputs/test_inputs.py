"""Unusable inputs of the books: one clear line, exit code 2, and no part of an output or a state."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from redelivery.workers.export.tables import EVENTS, INVENTORY, write_rows
from tests.support.books.books_command import COMMAND, arguments, histories, run
from tests.support.books.spark_session import NOON, Histories, spark, write_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["histories", "spark"]

pytestmark = pytest.mark.xdist_group("spark")


def _parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def _truncated(folder: Path) -> None:
    columns: dict[str, list[Any]] = {"event_id": ["1-0"], "task_id": ["a"], "outcome": ["published"], "queue": ["q"], "at_ms": [1]}
    _parquet(folder / "outcomes" / "whole.parquet", columns)
    whole = (folder / "outcomes" / "whole.parquet").read_bytes()
    (folder / "outcomes" / "cut-off.parquet").write_bytes(whole[: len(whole) // 2])


def _without_bytes(folder: Path) -> None:
    (folder / "outcomes" / "nothing.parquet").touch()


def _cut_gzip(folder: Path) -> None:
    whole = gzip.compress(b"".join(b'{"task_id": "%d"}\n' % each for each in range(9999)))
    (folder / "outcomes" / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])


def _without_a_line_break(folder: Path) -> None:
    """Two files that were joined, of which the first did not end with a line break."""
    event = {"event_id": "1-0", "task_id": "{a} b", "outcome": "published", "queue": "q", "at_ms": NOON}
    ended = event | {"event_id": "2-0", "outcome": "succeeded"}
    lines = json.dumps(event), json.dumps(event | {"task_id": "b"}) + json.dumps(ended)
    (folder / "outcomes" / "joined.jsonl").write_text("\n".join(lines))


def _cut_inventory(folder: Path) -> None:
    write_rows([], str(folder / "inventory"), INVENTORY, name="inventory")
    file = folder / "inventory" / "inventory.parquet"
    file.write_bytes(file.read_bytes()[:-7])


def _of_another_type(folder: Path) -> None:
    columns: dict[str, list[Any]] = {
        "event_id": ["1-0"],
        "task_id": ["a"],
        "outcome": ["published"],
        "queue": ["q"],
        "at_ms": ["x"],
    }
    _parquet(folder / "outcomes" / "typed.parquet", columns)


def _event(**fields: Any) -> Callable[[Path], None]:
    event = {"event_id": "1-0", "task_id": "a", "outcome": "published", "queue": "q", "at_ms": NOON} | fields
    return lambda folder: write_lines(folder / "outcomes" / "more.jsonl", [event])


def _emptied(folder: Path, name: str) -> None:
    for file in (folder / name).rglob("*.jsonl"):
        file.unlink()


def _commit(folder: Path, text: str) -> None:
    (folder / "outcomes" / "_commits" / "2026-01-30").mkdir(parents=True)
    (folder / "outcomes" / "_commits" / "2026-01-30" / "0002-2-0.json").write_text(text)


def _committed(folder: Path) -> None:
    _commit(folder, json.dumps({"files": [{"file": "date=2026-01-30/hour=01/outcomes-1-0-2-0.parquet", "rows": 2}]}))


def _cut_at_a_line(folder: Path) -> None:
    """A copy that was cut at the end of a line, and so looks complete."""
    events = [{"event_id": f"{each}-0", "task_id": "a", "outcome": "published", "queue": "q", "at_ms": NOON} for each in (1, 2)]
    key = "date=2026-01-30/hour=01/outcomes-1-0-2-0.jsonl"
    file = folder / "outcomes" / key
    file.parent.mkdir(parents=True)
    write_lines(file, events)
    _commit(folder, json.dumps({"files": [{"file": key, "rows": 2, "bytes": file.stat().st_size}]}))
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])


def _cut_inventory_at_a_line(folder: Path) -> None:
    (folder / "inventory" / "_taken.json").write_text(json.dumps({"seen_ms": NOON, "file": "inventory.jsonl", "bytes": 10**6}))
    write_lines(folder / "inventory" / "inventory.jsonl", [{"task_id": "a", "queue": "q", "place": "queue", "seen_ms": NOON}])


def _another_export(folder: Path) -> None:
    """Its gaps and commits are not those of the folder that is read."""
    histories = Histories()
    histories.add("c", "published", "succeeded")
    write_lines(folder / "outcomes" / "shop" / "date=2026-01-31" / "hour=12" / "outcomes.jsonl", histories.events)
    write_lines(folder / "outcomes" / "shop" / "_gaps.jsonl", [{"after": "1-0", "lost": 7}])


BAD_INPUTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated file": (_truncated, "cut-off.parquet"),
    "a Parquet file without a byte": (_without_bytes, "nothing.parquet is not a whole Parquet file: it is empty"),
    "a gzip without a byte": (
        lambda folder: (folder / "outcomes" / "nothing.jsonl.gz").touch(),
        "nothing.jsonl.gz is not a whole gzip file: it is empty",
    ),
    "a truncated gzip": (_cut_gzip, "cut.jsonl.gz"),
    "lines that end early": (_cut_at_a_line, "it is cut off, or was changed"),
    "an inventory that ends early": (_cut_inventory_at_a_line, "inventory.jsonl has 75 bytes and was written with 1000000"),
    "a truncated inventory": (_cut_inventory, "inventory.parquet is not a whole Parquet file"),
    "an inventory with other columns": (
        lambda folder: _parquet(folder / "inventory" / "x.parquet", {"a": [1]}),
        "it has no column task_id, queue, place",
    ),
    "another type": (_of_another_type, "column at_ms of the outcome events must be bigint, and is string"),
    "other columns": (lambda folder: _parquet(folder / "outcomes" / "x.parquet", {"a": [1]}), "it has no column event_id, task_id"),
    "another ending": (lambda folder: (folder / "outcomes" / "notes.csv").write_text("a,b"), "neither Parquet nor JSON lines"),
    "a broken line": (
        lambda folder: (folder / "outcomes" / "cut.jsonl").write_text('{"task_id": "a'),
        "is not a JSON object of redelivery",
    ),
    "two objects in a line": (_without_a_line_break, "joined.jsonl has a line that is not one JSON object"),
    "an inventory of two objects in a line": (
        lambda folder: (folder / "inventory" / "x.jsonl").write_text('{"task_id": "a"} {"task_id": "b"}'),
        "x.jsonl has a line that is not one JSON object",
    ),
    "no task id": (_event(task_id=None), "1 rows have no task_id, event_id or at_ms"),
    "an empty task id": (_event(task_id=""), "1 rows have no task_id, event_id or at_ms"),
    "an empty event id": (_event(event_id=""), "1 rows have no task_id, event_id or at_ms"),
    "a moment that is none": (lambda folder: (folder / "inventory" / "_taken.json").write_text("{}"), "does not say when"),
    "a moment that never comes": (
        lambda folder: (folder / "inventory" / "_taken.json").write_text(json.dumps({"seen_ms": 10**18})),
        "does not say when",
    ),
    "counts that are none": (
        lambda folder: (folder / "inventory" / "_taken.json").write_text('{"seen_ms": 1, "file": "x", "unlisted": {"q": 1e999}}'),
        "_taken.json does not say",
    ),
    "a time that is none": (_event(at_ms=10**18), "1 rows have no task_id, event_id or at_ms"),
    "a time that overflows": (_event(at_ms=-(2**63)), "more.jsonl"),
    "an unknown outcome": (_event(outcome="eaten"), "1 rows have an unknown outcome"),
    "a number that is none": (_event(at_ms="noon"), "is not a JSON object of redelivery"),
    "an unknown place": (
        lambda folder: write_lines(
            folder / "inventory" / "x.jsonl", [{"task_id": "a", "queue": "q", "place": "moon", "seen_ms": 1}]
        ),
        "1 rows have no task_id, seen_ms or known place",
    ),
    "no events": (lambda folder: _emptied(folder, "outcomes"), "holds no file with outcome events"),
    "no inventory": (lambda folder: _emptied(folder, "inventory"), "holds no file with inventory"),
    "a missing day": (_committed, "1 files of 2026-01-30 were exported and are not there, the first is date=2026-01-30/hour=01/"),
    "a broken commit": (lambda folder: _commit(folder, "{"), "is not a commit of an export"),
    "a commit that is a list": (lambda folder: _commit(folder, "[]"), "is not a commit of an export"),
    "a commit with a size that is none": (
        lambda folder: _commit(folder, '{"files": [{"file": "x", "bytes": "many"}]}'),
        "is not a commit of an export",
    ),
    "a commit with a gap that is none": (
        lambda folder: _commit(folder, '{"files": [], "gaps": [1]}'),
        "is not a commit of an export",
    ),
    "another export within": (_another_export, "/outcomes holds another export, in shop: give each export books of its own"),
    "a broken gap": (lambda folder: (folder / "outcomes" / "_gaps.jsonl").write_text("{"), "holds a line that is not JSON"),
}


@pytest.mark.usefixtures("spark", "histories")
@pytest.mark.parametrize("fault", BAD_INPUTS)
def test_an_input_that_cannot_be_used_is_one_clear_line_and_no_output(tmp_path: Path, fault: str) -> None:
    """Exit code 2, the fault and the file in one line, and no trace of the output."""
    spoil, said = BAD_INPUTS[fault]
    spoil(tmp_path)
    result = run(tmp_path)
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if " s  " not in line]
    assert len(errors) == 1, result.stderr
    assert errors[0].startswith("redelivery: ")
    assert said in errors[0]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["inventory", "outcomes"]


@pytest.mark.usefixtures("spark", "histories")
def test_an_empty_table_of_events_is_refused(tmp_path: Path) -> None:
    """Books without a single event prove nothing."""
    write_rows([], str(tmp_path / "empty"), EVENTS, name="outcomes")
    result = run(tmp_path, outcomes=str(tmp_path / "empty"))
    assert result.exit_code == 2
    assert "holds no outcome events: export them first" in result.stderr


@pytest.mark.usefixtures("spark", "histories")
def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    """For both inputs."""
    result = run(tmp_path, outcomes=str(tmp_path / "nothing"))
    assert result.exit_code == 2
    assert f"there is nothing at {tmp_path / 'nothing'}: export the outcome events first" in result.stderr


@pytest.mark.usefixtures("spark", "histories")
def test_books_that_fail_leave_the_earlier_ones_alone(tmp_path: Path) -> None:
    """Yesterday's output stays until today's is complete."""
    assert run(tmp_path).exit_code == 0
    before = (tmp_path / "books" / "summary.json").read_text(encoding="utf-8")
    _truncated(tmp_path)
    assert run(tmp_path).exit_code == 2
    assert (tmp_path / "books" / "summary.json").read_text(encoding="utf-8") == before


@pytest.mark.usefixtures("spark", "histories")
def test_an_input_that_cannot_be_used_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    """Neither a new state nor a part of one; and when the input is mended, the run goes on from the old one."""
    state = tmp_path / "state"
    _truncated(tmp_path)
    assert run(tmp_path, state=str(state)).exit_code == 2
    assert not state.exists()
    for file in (tmp_path / "outcomes").glob("*.parquet"):
        file.unlink()
    assert run(tmp_path, state=str(state)).exit_code == 0
    before = sorted((each, each.read_bytes()) for each in state.rglob("*") if each.is_file())
    _truncated(tmp_path)
    assert run(tmp_path, state=str(state)).exit_code == 2
    assert sorted((each, each.read_bytes()) for each in state.rglob("*") if each.is_file()) == before


@pytest.mark.slow
@pytest.mark.usefixtures("histories")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    """Nobody may read the file; if root runs the tests, it gives up its own right to read everything."""
    secret = tmp_path / "outcomes" / "secret.jsonl"
    secret.write_text("{}\n")
    secret.chmod(0)
    as_others = [] if os.getuid() else ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    command = [*as_others, *COMMAND, *arguments(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 2, done.stderr
    [line] = [line for line in done.stderr.splitlines() if " s  " not in line]
    assert line.startswith("redelivery: ")
    assert line.endswith(f"{secret} cannot be opened: permission denied")
    assert not (tmp_path / "books").exists()


def test_files_of_one_name_in_two_folders_are_both_read(spark: SparkSession, tmp_path: Path) -> None:
    """Also if both folders have the same date."""
    histories = Histories()
    histories.write(tmp_path)
    for shop in ("north", "south"):
        each = Histories()
        each.add(shop, "published")
        write_lines(tmp_path / "outcomes" / shop / "date=2026-01-31" / "part-0.jsonl", each.events)
    histories.hold("b", "queue")
    summary = histories.reconcile(spark, tmp_path)
    assert (summary.verdicts["lost"], summary.events) == (2, 2)
