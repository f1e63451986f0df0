"""`redelivery reconcile` as its users see it: exit codes, output, and the files that it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet

from redelivery.workers.cli.main import redelivery
from redelivery.workers.cli.reconcile import Progress, _beginning, _local_size
from redelivery.workers.export.tables import EVENTS as EXPORTED_EVENTS
from redelivery.workers.export.tables import INVENTORY as EXPORTED_INVENTORY
from redelivery.workers.export.tables import write_rows
from redelivery.workers.reconciliation.schema import EVENTS, INVENTORY
from tests.support.books.books_command import COMMAND, SUCCEEDED, arguments, histories, run, run_mounted
from tests.support.books.spark_session import NOON, Histories, rows, spark, write_lines
from tests.support.lanes import first_quick
from tests.support.running import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

__all__ = ["histories", "spark"]

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.usefixtures("spark", "histories")
def test_balanced_books_end_with_zero_and_one_json_object(tmp_path: Path) -> None:
    """Standard output equals the written summary; progress goes to standard error."""
    result = run(tmp_path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((tmp_path / "books" / "summary.json").read_text(encoding="utf-8"))
    assert "judging 2 lives" in result.stderr
    assert [row["verdict"] for row in rows(tmp_path, "verdicts")] == ["in_flight"]


@pytest.mark.usefixtures("spark")
def test_books_that_do_not_balance_name_the_worst_lives_and_the_report(histories: Histories, tmp_path: Path) -> None:
    """At most ten of them, with the cause of each and what to do; nothing of the progress with `--quiet`."""
    for number in range(11):
        histories.add(f"lost-{number:02}", "published", start_ms=NOON + number)
    histories.write(tmp_path)
    result = run(tmp_path, "--quiet")
    assert (result.exit_code, result.stderr) == (1, "")
    _, _, after = result.stdout.partition("The books DO NOT BALANCE.\n")
    assert [word for word in after.split() if word.startswith("lost-")] == [f"lost-{number:02}" for number in range(10)]
    assert "The worst 10 of 11:" in after
    assert "last event: published at 2026-01-31 12:00:00.009 UTC; the broker does not have it; likely removed from" in after
    assert "  to do: publish the task again if it is idempotent or did not run;" in after
    assert after.endswith(f"\nreport: {tmp_path}/books/report.html\nmore:   redelivery books show {tmp_path}/books\n")


@pytest.mark.full
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_books_whose_reader_goes_early_do_not_balance_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """As in `redelivery reconcile … | head -1`: the exit code is that of the books."""
    histories = Histories()
    histories.add("lost", "published")
    histories.hold("b", "queue")
    histories.write(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stdout)
        with pytest.raises(SystemExit) as ended:
            redelivery.main(["reconcile", *arguments(tmp_path, *more)], prog_name="redelivery")
    assert ended.value.code == 1


@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_wrong_option_is_one_line_with_a_help_that_can_be_asked_for(tmp_path: Path, *, is_submitted: bool) -> None:
    """Also without the command `redelivery`: with `python -m`, or with `spark-submit`, which gets a file that is no program."""
    file = tmp_path / "books.py"
    file.write_text("from redelivery.workers.cli.reconcile import reconcile\nreconcile()\n")
    command = [COMMAND[0], str(file)] if is_submitted else COMMAND
    environment = os.environ | ({"PYSPARK_GATEWAY_PORT": "1", "PYTHONPATH": str(ROOT)} if is_submitted else {})
    named = "spark-submit books.py" if is_submitted else "python -m redelivery.workers.cli.reconcile"
    wrong, help_ = (
        subprocess.run([*command, option], env=environment, capture_output=True, text=True, check=False, timeout=120)
        for option in ("--outcmes", "--help")
    )
    said = f"redelivery: error: no such option '--outcmes'. Did you mean '--outcomes'? (see {named} --help)\n"
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", said)
    assert help_.stdout.startswith(f"Usage: {named} [OPTIONS]\n")


@pytest.mark.usefixtures("spark", "histories")
@pytest.mark.parametrize(
    ("option", "place", "why"),
    first_quick(
        [
            ("output", "/proc/nowhere/books", "/proc/nowhere/.books.new-"),
            (
                "state",
                "/proc/nowhere/state",
                "/proc/nowhere/state/v00000001/lives cannot be made: look at the rights of its folder",
            ),
            ("output", "/proc", "/proc is a mount point, which cannot be replaced: give a folder inside it"),
            ("output", "/dev/null/books/today", "Parent path is not a directory: file:/dev/null"),
            ("output", "hdfs://127.0.0.1:1/books", "Connection refused"),
            ("output", "s3a://bucket/books", "names a file system that this Spark does not know: add its connector"),
        ]
    ),
)
def test_a_place_that_cannot_be_used_is_one_line_that_says_why(tmp_path: Path, option: str, place: str, why: str) -> None:
    """Not which call of Java failed."""
    done = run(tmp_path, "--quiet", **{option: place})
    assert (done.exit_code, done.stdout) == (2, "")
    assert why in done.stderr
    assert "An error occurred while calling" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_first_word_comes_before_spark_and_says_what_is_read(tmp_path: Path) -> None:
    """It has the number and size of the files, if they are on this machine; a file that an export writes now does not count."""
    (tmp_path / "outcomes").mkdir()
    (tmp_path / "outcomes" / "a.jsonl").write_bytes(b"\n" * 200_000)
    (tmp_path / "outcomes" / ".b.jsonl.5d0e").write_bytes(b"\n")
    size = _local_size(str(tmp_path / "outcomes"), str(tmp_path / "inventory"))
    assert size == (1, 200_000)
    assert _beginning("books/outcomes", size) == "starting Spark to read 1 file (0.2 MB), events and inventory"
    assert _local_size("s3://bucket/outcomes") is None
    assert _beginning("s3://bucket/outcomes", None) == "starting Spark to read s3://bucket/outcomes"


def test_progress_is_one_line_on_a_terminal_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is overwritten, never wider than the terminal, and moves the cursor only to its own beginning."""
    reader, writer = os.openpty()
    monkeypatch.setenv("COLUMNS", "40")
    with os.fdopen(writer, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        with Progress() as progress:
            progress.say("judging \x1b[31m" + "x" * 80)
            said = b""
            while b"judging" not in said:
                said += os.read(reader, 1000)
        said += os.read(reader, 1000)
    os.close(reader)
    assert b"\n" not in said
    assert said.endswith(b"\r\x1b[K")
    lines = said.split(b"\r\x1b[K")
    assert {len(line) for line in lines if b"judging" in line} == {39}
    assert b"\x1b" not in b"".join(lines)


@pytest.mark.usefixtures("spark")
def test_a_second_run_replaces_the_first_and_says_the_same(histories: Histories, tmp_path: Path) -> None:
    """The same inputs give the same books, and nothing but them is left in the folder."""
    assert histories.events
    first, second = run(tmp_path, "--json", "--all"), run(tmp_path, "--json", "--all")
    assert first.stdout == second.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == ["books", "inventory", "outcomes"]


@pytest.mark.usefixtures("spark", "histories")
def test_a_gap_in_the_export_makes_the_books_not_balance(tmp_path: Path) -> None:
    """Events that left the outcome log before an export are missing: the gap is listed, and the exit code is 1."""
    gap = {"after": "1-0", "before": "9-0", "lost": 7, "why": "cap", "noticed_ms": 1}
    write_lines(tmp_path / "outcomes" / "_gaps.jsonl", [gap])
    result = run(tmp_path, "--json")
    assert result.exit_code == 1
    summary = json.loads(result.stdout)
    assert (summary["balanced"], summary["gaps"]) == (False, [gap])


@pytest.mark.usefixtures("spark", "histories")
def test_ages_are_counted_up_to_the_moment_that_is_given(tmp_path: Path) -> None:
    """A task without an end is first in flight, and lost after the grace period."""
    events = [{"event_id": "9-0", "task_id": "c", "outcome": "published", "queue": "orders", "at_ms": NOON}]
    write_lines(tmp_path / "outcomes" / "late.jsonl", events)
    young = run(tmp_path, "--json", "--as-of", "2026-01-31T12:00:59.999Z", "--grace", "60")
    old = run(tmp_path, "--json", "--as-of", "2026-01-31T12:01:00", "--grace", "60")
    assert (young.exit_code, json.loads(young.stdout)["verdicts"]["lost"]) == (0, 0)
    assert (old.exit_code, json.loads(old.stdout)["verdicts"]["lost"]) == (1, 1)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("is_noted", [True, False])
def test_an_event_from_a_clock_that_is_ahead_makes_no_life_old(tmp_path: Path, *, is_noted: bool) -> None:
    """Ages are counted up to when somebody looked at the broker: on RabbitMQ each worker's clock gives the time of its events."""
    histories, hour = Histories(), 3_600_000
    histories.add("young", "published", start_ms=NOON + hour - 60_000)
    histories.add("of a wrong clock", "published", SUCCEEDED, start_ms=NOON + 3 * hour)
    histories.hold("b", "queue")
    histories.write(tmp_path)
    if is_noted:
        (tmp_path / "inventory" / "_taken.json").write_text(json.dumps({"seen_ms": NOON + hour}))
    result = run(tmp_path, "--json")
    assert (result.exit_code, json.loads(result.stdout)["as_of_ms"]) == (0, NOON + hour)


@pytest.mark.usefixtures("spark")
def test_parquet_and_json_lines_may_lie_side_by_side(histories: Histories, tmp_path: Path) -> None:
    """Written by the export's own writer, in folders by date and hour; empty files do no harm."""
    histories.add("c", "published", SUCCEEDED)
    write_rows(histories.events[2:], str(tmp_path / "outcomes" / "date=2026-02-01" / "hour=00"), EXPORTED_EVENTS, name="outcomes")
    write_rows([], str(tmp_path / "outcomes" / "date=2026-02-02" / "hour=00"), EXPORTED_EVENTS, name="outcomes")
    write_rows([], str(tmp_path / "empty"), EXPORTED_INVENTORY, name="inventory")
    result = run(tmp_path, "--json", inventory=str(tmp_path / "empty"))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["outcomes"]["succeeded"] == 2


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_counts_of_either_width_are_read(histories: Histories, tmp_path: Path, kind: pa.DataType) -> None:
    """Whoever writes Parquet without a schema of its own writes 64 bits."""
    counts = {"generation": pa.array([0, 0], kind), "delivery": pa.array([0, 1], kind), "attempt": pa.array([0, 1], kind)}
    texts = {"event_id": ["x-1", "x-2"], "task_id": ["wide", "wide"], "outcome": ["published", "succeeded"], "queue": ["q", "q"]}
    (tmp_path / "outcomes").mkdir(exist_ok=True)
    parquet.write_table(pa.table({**texts, **counts, "at_ms": [NOON, NOON + 1]}), tmp_path / "outcomes" / "wide.parquet")
    result = run(tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["outcomes"]["succeeded"] == 1 + sum(
        event["outcome"] == "succeeded" for event in histories.events
    )


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("taken_ms", "verdict"),
    [(None, "in_flight"), (NOON - 1, "in_flight"), (NOON + 3_600_000, "lost")],
    ids=["nobody-knows-when", "before-the-last-event", "an-hour-later"],
)
def test_an_empty_inventory_counts_from_when_it_was_taken(tmp_path: Path, taken_ms: int | None, verdict: str) -> None:
    """The last task of a quiet system is lost if a later look at the broker did not find it."""
    quiet = Histories()
    quiet.add("last", "published")
    quiet.write(tmp_path)
    if taken_ms is not None:
        (tmp_path / "inventory" / "_taken.json").write_text(json.dumps({"seen_ms": taken_ms}))
    result = run(tmp_path, "--json")
    assert json.loads(result.stdout)["verdicts"][verdict] == 1
    assert result.exit_code == (verdict == "lost")


@pytest.mark.usefixtures("spark")
def test_books_of_an_inventory_that_is_not_whole_say_so(tmp_path: Path) -> None:
    """What the inventory counted and did not list (RabbitMQ) may be what the books call lost."""
    histories = Histories()
    histories.add("waits", "published")
    histories.write(tmp_path)
    noted = {"seen_ms": NOON + 3_600_000, "unlisted": {"orders": 2, "DLQ.<b>": 1}}
    (tmp_path / "inventory" / "_taken.json").write_text(json.dumps(noted))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert re.search(r"not listed +3   the inventory only counted them: lost lives may be among them", result.stdout)
    assert json.loads((tmp_path / "books" / "summary.json").read_text())["unlisted"] == noted["unlisted"]
    page = (tmp_path / "books" / "report.html").read_text()
    assert "counted 3 messages that it could not list\n(orders: 2, DLQ.<wbr>&lt;b&gt;: 1)" in page


@pytest.mark.parametrize(("ours", "exported"), [(EVENTS, EXPORTED_EVENTS), (INVENTORY, EXPORTED_INVENTORY)])
def test_the_export_writes_the_columns_that_the_books_read(ours: StructType, exported: pa.Schema) -> None:
    """By name and by type; only their order may differ."""
    kinds = {pa.string(): "string", pa.int64(): "bigint"}
    assert {each.name: each.dataType.simpleString() for each in ours} == {each.name: kinds[each.type] for each in exported}


@pytest.mark.usefixtures("spark", "histories")
def test_a_folder_of_somebody_elses_is_not_overwritten(tmp_path: Path) -> None:
    """A folder with other files, one of the inputs, or one within them."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("1")
    for output in ("thesis", "outcomes", "outcomes/books", "."):
        result = run(tmp_path, output=str(tmp_path / output))
        assert result.exit_code == 2
        assert "give" in result.stderr
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "1"


@pytest.mark.usefixtures("spark", "histories")
def test_an_output_that_is_a_link_is_written_where_it_leads(tmp_path: Path) -> None:
    """The link stays; one that leads to an input is refused."""
    (tmp_path / "today").mkdir()
    (tmp_path / "books").symlink_to("today")
    (tmp_path / "wrong").symlink_to("outcomes")
    assert run(tmp_path).exit_code == 0
    assert (tmp_path / "books").is_symlink()
    assert (tmp_path / "today" / "summary.json").exists()
    result = run(tmp_path, output=str(tmp_path / "wrong"))
    assert (result.exit_code, "lie within each other" in result.stderr) == (2, True)


@pytest.mark.full
@pytest.mark.usefixtures("histories")
def test_an_output_that_is_a_mount_point_is_not_emptied(tmp_path: Path) -> None:
    """A bind mount of the same disk is not known before the rename fails: then all is as it was."""
    for name in ("disk", "books"):
        (tmp_path / name).mkdir()
    (tmp_path / "disk" / "summary.json").write_text("{}")
    done = run_mounted("mount --bind disk books", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("/books could not be renamed: Device or resource busy")
    assert [each.name for each in (tmp_path / "disk").iterdir()] == ["summary.json"]
    assert {each.name for each in tmp_path.iterdir()} == {"disk", "books", "outcomes", "inventory"}


@pytest.mark.usefixtures("spark", "histories")
def test_an_output_that_a_run_left_half_done_is_done_again(tmp_path: Path) -> None:
    """On an object store a rename is a copy and may be interrupted: the files beside the output show that it was ours."""
    (tmp_path / "books" / "metrics").mkdir(parents=True)
    assert run(tmp_path).exit_code == 2, "somebody's folder of that name"
    (tmp_path / ".books.new-0123").mkdir()
    assert run(tmp_path).exit_code == 0
    assert (tmp_path / "books" / "summary.json").exists()


@pytest.mark.usefixtures("spark", "histories")
def test_what_a_killed_run_left_goes_a_day_later(tmp_path: Path) -> None:
    """A run at the same time keeps its files."""
    old, new = tmp_path / ".books.new-0123", tmp_path / ".books.old-4567"
    for each in (old, new):
        (each / "metrics").mkdir(parents=True)
    two_days_ago = time.time() - 2 * 86_400
    os.utime(old, (two_days_ago, two_days_ago))
    assert run(tmp_path).exit_code == 0
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("words", [["--as-of", "soon"], ["--grace", "-1"], ["--keep", "0"]])
def test_options_that_make_no_sense_are_usage_errors(tmp_path: Path, words: list[str]) -> None:
    """Exit code 2 and one line, before Spark is started."""
    result = run(tmp_path, *words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"redelivery: error: invalid value for '{words[0]}'")
    assert len(result.stderr.splitlines()) == 1


def _without_java(folder: Path) -> dict[str, str]:
    """An environment whose only Java is one that does not work."""
    (folder / "bin").mkdir()
    (folder / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bin" / "java").chmod(0o700)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return kept | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.full
def test_a_machine_without_java_uses_the_embedded_one_and_prints_nothing_of_sparks(histories: Histories, tmp_path: Path) -> None:
    """The whole command in its own process: only our lines are printed, and a lost task gives exit code 1."""
    histories.add("lost", "published")
    histories.write(tmp_path)
    environment = _without_java(tmp_path)
    done = subprocess.run(
        [*COMMAND, *arguments(tmp_path)], env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 1, done.stderr
    assert "The books DO NOT BALANCE.\n" in done.stdout
    assert done.stdout.rstrip().endswith(f"more:   redelivery books show {tmp_path / 'books'}")
    lines = done.stderr.splitlines()
    assert all(" s  " in line for line in lines), done.stderr
    assert "starting Spark to read" in lines[0]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("histories")
def test_an_interrupted_run_leaves_nothing_and_ends_with_130(tmp_path: Path) -> None:
    """SIGTERM while it works, as an orchestrator sends it. Besides the progress there is one line, and nothing of py4j's."""
    with subprocess.Popen([*COMMAND, *arguments(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "judging" in line:
                process.send_signal(signal.SIGTERM)
                break
        *others, last = process.stderr.read().splitlines()
    assert process.returncode == 130, (others, last)
    assert last == "interrupted; run it again"
    assert [line for line in others if " s  " not in line] == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["inventory", "outcomes"]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("histories")
def test_a_run_that_is_interrupted_while_java_starts_leaves_no_java(tmp_path: Path) -> None:
    """PySpark would leave a process that never ends."""
    with subprocess.Popen([*COMMAND, *arguments(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        java = until(lambda: next(_javas_of(process.pid), None))
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert output.splitlines()[-1] == "interrupted; run it again"
    until(lambda: not java.exists(), what="no Java is left")


def _javas_of(parent: int) -> Iterator[Path]:
    """The folders in /proc of this process's children that are a Java."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            is_child = f"PPid:\t{parent}\n" in (folder / "status").read_text()
            if is_child and (folder / "cmdline").read_bytes().partition(b"\0")[0].endswith(b"/java"):
                yield folder


@pytest.mark.slow
@pytest.mark.full
def test_names_that_are_not_ascii_are_found_in_any_locale(tmp_path: Path) -> None:
    """Java reads names as its locale says; cron and many containers have none."""
    folder, histories = tmp_path / "bücher", Histories()
    histories.add("lost", "published")
    histories.hold("b", "queue")
    histories.write(folder)
    (folder / "outcomes" / "date=2026-01-31").rename(folder / "outcomes" / "tägé")
    command = [*COMMAND, *arguments(folder, "--json")]
    done = subprocess.run(command, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["verdicts"]["lost"] == 1
    assert (folder / "books" / "report.html").exists()
