"""`redelivery reconcile` as its users meet it: exit codes, what it prints, and what it leaves or does not leave behind."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from redelivery.workers.cli.reconcile import reconcile
from redelivery.workers.reconciliation.files import Files
from redelivery.workers.reconciliation.schema import EVENTS, INVENTORY
from redelivery.workers.tables import EVENTS as EXPORTED_EVENTS
from redelivery.workers.tables import INVENTORY as EXPORTED_INVENTORY
from redelivery.workers.tables import write_rows
from tests.spark_session import NOON, Histories, rows, spark, write_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["spark"]

pytestmark = pytest.mark.xdist_group("spark")

SUCCEEDED = ("succeeded", {"delivery": 1, "attempt": 1})


@pytest.fixture
def told(tmp_path: Path) -> Histories:
    """One task that succeeded, written for the job."""
    told = Histories()
    told.tell("a", "published", SUCCEEDED)
    told.hold("b", "queue")
    told.write(tmp_path)
    return told


def arguments(folder: Path, *more: str, **places: str) -> list[str]:
    """The command's arguments."""
    named = {name: str(folder / name) for name in ("outcomes", "inventory")} | {"output": str(folder / "books")} | places
    return [*(word for name, place in named.items() for word in (f"--{name}", place)), *more]


def run(folder: Path, *more: str, **places: str) -> Result:
    """Run the command in this process, where Spark is running already."""
    return CliRunner().invoke(reconcile, arguments(folder, *more, **places))


@pytest.mark.usefixtures("spark", "told")
def test_balanced_books_end_with_zero_and_one_json_object(tmp_path: Path) -> None:
    """What is printed is what is written; progress goes to standard error."""
    result = run(tmp_path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((tmp_path / "books" / "summary.json").read_text(encoding="utf-8"))
    assert "judging 2 lives" in result.stderr
    assert [row["verdict"] for row in rows(tmp_path, "verdicts")] == ["in_flight"]


@pytest.mark.usefixtures("spark")
def test_a_second_run_replaces_the_first_and_says_the_same(told: Histories, tmp_path: Path) -> None:
    """The same inputs give the same books, and nothing but them is left in the folder."""
    assert told.events
    first, second = run(tmp_path, "--json", "--all"), run(tmp_path, "--json", "--all")
    assert first.stdout == second.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == ["books", "inventory", "outcomes"]


@pytest.mark.usefixtures("spark", "told")
def test_a_gap_in_the_export_makes_the_books_not_balance(tmp_path: Path) -> None:
    """What left the outcome log unexported cannot be accounted for: it is listed, and the exit code is 1."""
    gap = {"count": 7, "first_id": "1-0", "last_id": "8-0"}
    write_lines(tmp_path / "outcomes" / "_gaps.jsonl", [gap])
    result = run(tmp_path, "--json")
    assert result.exit_code == 1
    summary = json.loads(result.stdout)
    assert (summary["balanced"], summary["gaps"]) == (False, [gap])


@pytest.mark.usefixtures("spark", "told")
def test_ages_are_counted_up_to_the_moment_that_is_given(tmp_path: Path) -> None:
    """A task without an end is in flight at first, and lost when the grace is over."""
    events = [{"event_id": "9-0", "task_id": "c", "outcome": "published", "queue": "orders", "at_ms": NOON}]
    write_lines(tmp_path / "outcomes" / "late.jsonl", events)
    young = run(tmp_path, "--json", "--as-of", "2026-01-31T12:00:59.999Z", "--grace", "60")
    old = run(tmp_path, "--json", "--as-of", "2026-01-31T12:01:00", "--grace", "60")
    assert (young.exit_code, json.loads(young.stdout)["verdicts"]["lost"]) == (0, 0)
    assert (old.exit_code, json.loads(old.stdout)["verdicts"]["lost"]) == (1, 1)


@pytest.mark.usefixtures("spark")
def test_parquet_and_json_lines_may_lie_side_by_side(told: Histories, tmp_path: Path) -> None:
    """Written by the export's own writer, in folders by date and hour; empty files do no harm."""
    told.tell("c", "published", SUCCEEDED)
    write_rows(told.events[2:], str(tmp_path / "outcomes" / "date=2026-02-01" / "hour=00"), EXPORTED_EVENTS, name="outcomes")
    write_rows([], str(tmp_path / "outcomes" / "date=2026-02-02" / "hour=00"), EXPORTED_EVENTS, name="outcomes")
    write_rows([], str(tmp_path / "empty"), EXPORTED_INVENTORY, name="inventory")
    result = run(tmp_path, "--json", inventory=str(tmp_path / "empty"))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["outcomes"]["succeeded"] == 2


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_counts_of_either_width_are_read(told: Histories, tmp_path: Path, kind: pa.DataType) -> None:
    """Whoever writes Parquet without a schema of its own writes 64 bits."""
    counts = {"generation": pa.array([0, 0], kind), "delivery": pa.array([0, 1], kind), "attempt": pa.array([0, 1], kind)}
    texts = {"event_id": ["x-1", "x-2"], "task_id": ["wide", "wide"], "outcome": ["published", "succeeded"], "queue": ["q", "q"]}
    (tmp_path / "outcomes").mkdir(exist_ok=True)
    parquet.write_table(pa.table({**texts, **counts, "at_ms": [NOON, NOON + 1]}), tmp_path / "outcomes" / "wide.parquet")
    result = run(tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["outcomes"]["succeeded"] == 1 + sum(event["outcome"] == "succeeded" for event in told.events)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("taken_ms", "verdict"),
    [(None, "in_flight"), (NOON - 1, "in_flight"), (NOON + 3_600_000, "lost")],
    ids=["nobody-knows-when", "before-the-last-event", "an-hour-later"],
)
def test_an_empty_inventory_counts_from_when_it_was_taken(tmp_path: Path, taken_ms: int | None, verdict: str) -> None:
    """The last task of a quiet system is lost when the broker was looked at later and did not have it."""
    quiet = Histories()
    quiet.tell("last", "published")
    quiet.write(tmp_path)
    if taken_ms is not None:
        (tmp_path / "inventory" / "_taken.json").write_text(json.dumps({"seen_ms": taken_ms}))
    result = run(tmp_path, "--json")
    assert json.loads(result.stdout)["verdicts"][verdict] == 1
    assert result.exit_code == (verdict == "lost")


@pytest.mark.parametrize(("ours", "exported"), [(EVENTS, EXPORTED_EVENTS), (INVENTORY, EXPORTED_INVENTORY)])
def test_the_export_writes_the_columns_that_the_books_read(ours: StructType, exported: pa.Schema) -> None:
    """By name and by type; only their order may differ."""
    kinds = {pa.string(): "string", pa.int64(): "bigint"}
    assert {each.name: each.dataType.simpleString() for each in ours} == {each.name: kinds[each.type] for each in exported}


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


def _cut_inventory(folder: Path) -> None:
    write_rows([], str(folder / "inventory"), EXPORTED_INVENTORY, name="inventory")
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
    """A copy that ended early, and looks whole."""
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


BAD_INPUTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated file": (_truncated, "cut-off.parquet"),
    "a Parquet file without a byte": (_without_bytes, "nothing.parquet is no whole Parquet file: it has no bytes"),
    "a truncated gzip": (_cut_gzip, "cut.jsonl.gz"),
    "lines that end early": (_cut_at_a_line, "it is cut off, or was changed"),
    "an inventory that ends early": (_cut_inventory_at_a_line, "inventory.jsonl has 75 bytes and was written with 1000000"),
    "a truncated inventory": (_cut_inventory, "inventory.parquet is no whole Parquet file"),
    "an inventory with other columns": (
        lambda folder: _parquet(folder / "inventory" / "x.parquet", {"a": [1]}),
        "it has no column task_id, queue, place",
    ),
    "another type": (_of_another_type, "column at_ms of the outcome events must be bigint, and is string"),
    "other columns": (lambda folder: _parquet(folder / "outcomes" / "x.parquet", {"a": [1]}), "it has no column event_id, task_id"),
    "another ending": (lambda folder: (folder / "outcomes" / "notes.csv").write_text("a,b"), "neither Parquet nor JSON lines"),
    "a broken line": (lambda folder: (folder / "outcomes" / "cut.jsonl").write_text('{"task_id": "a'), "is no JSON object of ours"),
    "no task id": (_event(task_id=None), "1 rows have no task_id, event_id or at_ms"),
    "an empty task id": (_event(task_id=""), "1 rows have no task_id, event_id or at_ms"),
    "an empty event id": (_event(event_id=""), "1 rows have no task_id, event_id or at_ms"),
    "a moment that is none": (lambda folder: (folder / "inventory" / "_taken.json").write_text("{}"), "does not say when"),
    "an unknown outcome": (_event(outcome="eaten"), "1 rows have an outcome of none of our words"),
    "a number that is none": (_event(at_ms="noon"), "is no JSON object of ours"),
    "an unknown place": (
        lambda folder: write_lines(
            folder / "inventory" / "x.jsonl", [{"task_id": "a", "queue": "q", "place": "moon", "seen_ms": 1}]
        ),
        "1 rows have no task_id, seen_ms or known place",
    ),
    "no events": (lambda folder: _emptied(folder, "outcomes"), "holds no file with outcome events"),
    "no inventory": (lambda folder: _emptied(folder, "inventory"), "holds no file with inventory"),
    "a missing day": (_committed, "1 files of 2026-01-30 were exported and are not there, the first is date=2026-01-30/hour=01/"),
    "a broken commit": (lambda folder: _commit(folder, "{"), "is no commit of an export"),
    "a broken gap": (lambda folder: (folder / "outcomes" / "_gaps.jsonl").write_text("{"), "holds a line that is no JSON"),
}


@pytest.mark.usefixtures("spark", "told")
@pytest.mark.parametrize("fault", BAD_INPUTS)
def test_an_input_that_cannot_be_used_is_one_clear_line_and_no_output(tmp_path: Path, fault: str) -> None:
    """Exit code 2, the fault and the file named in one line, and no trace of the output, whole or partial."""
    spoil, said = BAD_INPUTS[fault]
    spoil(tmp_path)
    result = run(tmp_path)
    assert result.exit_code == 2, result.output
    told = [line for line in result.stderr.splitlines() if " s  " not in line]
    assert len(told) == 1, result.stderr
    assert told[0].startswith("redelivery: ")
    assert said in told[0]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["inventory", "outcomes"]


@pytest.mark.usefixtures("spark", "told")
def test_an_empty_table_of_events_is_refused(tmp_path: Path) -> None:
    """Books without a single event prove nothing."""
    write_rows([], str(tmp_path / "empty"), EXPORTED_EVENTS, name="outcomes")
    result = run(tmp_path, outcomes=str(tmp_path / "empty"))
    assert result.exit_code == 2
    assert "holds no outcome events: export them first" in result.stderr


@pytest.mark.usefixtures("spark", "told")
def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Either input."""
    result = run(tmp_path, outcomes=str(tmp_path / "nothing"))
    assert result.exit_code == 2
    assert f"there is no outcome events at {tmp_path / 'nothing'}" in result.stderr


@pytest.mark.usefixtures("spark", "told")
def test_a_folder_of_somebody_elses_is_not_overwritten(tmp_path: Path) -> None:
    """Neither one with other files in it, nor one of the inputs, nor one within them."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("1")
    for output in ("thesis", "outcomes", "outcomes/books", "."):
        result = run(tmp_path, output=str(tmp_path / output))
        assert result.exit_code == 2
        assert "give" in result.stderr
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "1"


@pytest.mark.usefixtures("spark", "told")
def test_books_that_fail_leave_the_earlier_ones_alone(tmp_path: Path) -> None:
    """The output of yesterday stands until today's is complete."""
    assert run(tmp_path).exit_code == 0
    before = (tmp_path / "books" / "summary.json").read_text(encoding="utf-8")
    _truncated(tmp_path)
    assert run(tmp_path).exit_code == 2
    assert (tmp_path / "books" / "summary.json").read_text(encoding="utf-8") == before


@pytest.mark.usefixtures("spark", "told")
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


@pytest.mark.usefixtures("spark", "told")
def test_an_output_that_a_run_left_half_done_is_done_again(tmp_path: Path) -> None:
    """On an object store a rename is a copy, and may end in the middle: what lies beside the output tells that it was ours."""
    (tmp_path / "books" / "metrics").mkdir(parents=True)
    assert run(tmp_path).exit_code == 2, "somebody's folder of that name"
    (tmp_path / ".books.new-0123").mkdir()
    assert run(tmp_path).exit_code == 0
    assert (tmp_path / "books" / "summary.json").exists()


@pytest.mark.usefixtures("spark", "told")
def test_what_a_killed_run_left_goes_a_day_later(tmp_path: Path) -> None:
    """A run that goes on beside this one keeps what it has."""
    old, new = tmp_path / ".books.new-0123", tmp_path / ".books.old-4567"
    for each in (old, new):
        (each / "metrics").mkdir(parents=True)
    two_days_ago = time.time() - 2 * 86_400
    os.utime(old, (two_days_ago, two_days_ago))
    assert run(tmp_path).exit_code == 0
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("name", ["books", "books[1]", "books{a,b}", "books*?", "bo\\oks", "bücher 100%20"])
def test_what_lies_beside_an_output_is_known_by_its_whole_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Also by one that would be a pattern, in a folder that would be one."""
    folder = tmp_path / f"in {name}"
    for each in (f".{name}.new-1", f".{name}.new-2", f".{name}.old-3", ".books1.new-4", ".booksa.new-5", "else"):
        (folder / each).mkdir(parents=True)
    files = Files(spark)
    assert files.beginning(files.absolute(str(folder)), f".{name}.new-") == [f".{name}.new-1", f".{name}.new-2"]
    assert files.beginning(str(tmp_path / "nowhere"), f".{name}.new-") == []


@pytest.mark.parametrize("words", [["--as-of", "soon"], ["--grace", "-1"], ["--keep", "0"]])
def test_options_that_make_no_sense_are_usage_errors(tmp_path: Path, words: list[str]) -> None:
    """Exit code 2, before Spark is started."""
    result = run(tmp_path, *words)
    assert result.exit_code == 2
    assert "Usage" in result.stderr


def _without_java(folder: Path) -> dict[str, str]:
    """An environment whose only Java is one that does not work."""
    (folder / "bin").mkdir()
    (folder / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bin" / "java").chmod(0o700)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return kept | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


COMMAND = [sys.executable, "-m", "redelivery.workers.cli.reconcile"]


@pytest.mark.slow
def test_a_machine_without_java_uses_the_embedded_one_and_prints_nothing_of_sparks(told: Histories, tmp_path: Path) -> None:
    """The whole command in a process of its own: only our lines reach the terminal, and a lost task is exit code 1."""
    told.tell("lost", "published")
    told.write(tmp_path)
    environment = _without_java(tmp_path)
    done = subprocess.run(
        [*COMMAND, *arguments(tmp_path)], env=environment, capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.rstrip().endswith("The books DO NOT BALANCE.")
    assert all(" s  " in line for line in done.stderr.splitlines()), done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("told")
def test_an_interrupted_run_leaves_nothing_and_ends_with_130(tmp_path: Path) -> None:
    """SIGTERM while it works, as an orchestrator sends it."""
    with subprocess.Popen([*COMMAND, *arguments(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "folding" in line:
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert rest.splitlines()[-1] == "interrupted; nothing was written"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["inventory", "outcomes"]


@pytest.mark.slow
@pytest.mark.usefixtures("told")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    """Nobody has a right to it; where root runs the tests, root does without its own to read everything."""
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
