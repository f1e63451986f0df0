"""What the reconciliation reads of an export: the files that its commits name, and files that are not the export's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from redelivery.errors import InputError
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.workers.export.export import export_outcomes
from redelivery.workers.export.gaps import note, noted
from redelivery.workers.export.tables import EVENTS, write_rows
from redelivery.workers.ports import Gap
from redelivery.workers.reconciliation.inputs.reading import key_of, listing, not_noted, read_events, read_gaps, root_of
from redelivery.workers.reconciliation.spark.files import Files
from tests.support.books.recorded import KEYS, record
from tests.support.books.spark_session import spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from redelivery.workers.reconciliation.inputs.reading import Listing
    from tests.support.servers import Server

__all__ = ["spark"]

pytestmark = pytest.mark.xdist_group("spark-days")

#: Two days, a second before midnight and at midnight (UTC).
EVENING, MORNING = 1_769_903_999_000, 1_769_904_000_000


def listed(spark: SparkSession, uri: Path, **known: object) -> Listing:
    """The input files at a path."""
    files = Files(spark)
    return listing(files, str(uri), list(files.walk(str(uri))), **known)  # type: ignore[arg-type]


@pytest.fixture
def out(server: Server, folder: Path) -> Path:
    """A real export of two days, in one batch."""
    for ms in (EVENING, MORNING):
        record(server.client, 2, entry_id=f"{ms}-*")
    export_outcomes(server.client, KEYS, str(folder / "out"))
    return folder / "out"


def test_all_that_was_exported_is_read_and_what_is_known_is_not_read_again(spark: SparkSession, out: Path) -> None:
    """A file is known by its path from the date on, so an export may be moved; a commit is known once its files are listed."""
    first = listed(spark, out)
    assert sorted(key.split("/")[0] for key in first.files) == ["date=2026-01-31", "date=2026-02-01"]
    assert (len(first.commits), first.uncommitted, first.events) == (1, 0, 4)
    moved = out.rename(out.parent / "moved")
    again = listed(spark, moved, known={*first.files, *first.commits})
    assert (again.files, again.commits) == ({}, set())
    assert [key.split("/")[0] for key in listed(spark, moved, since="2026-02-01").files] == ["date=2026-02-01"]


def test_a_day_s_folder_is_read_with_the_commits_of_the_whole_export(spark: SparkSession, out: Path) -> None:
    """Its files are committed; the batch stays open until its other day is read too."""
    day = listed(spark, out / "date=2026-01-31")
    assert [key.split("/")[0] for key in day.files] == ["date=2026-01-31"]
    assert day.commits == set()


def test_what_an_export_that_died_left_behind_is_left_aside(spark: SparkSession, out: Path) -> None:
    """A file without a commit may lack rows, and its events are written again; files of other programs are read."""
    hour = next(out.glob("date=2026-01-31/*"))
    (hour / "outcomes-1769903999000-9-1769903999000-9.parquet").write_bytes(b"PAR1")
    (hour / "mine.jsonl").write_text("{}\n")
    found = listed(spark, out)
    assert (found.uncommitted, found.events) == (1, None)
    assert len([key for key in found.files if key.endswith(".jsonl")]) == 1
    assert len(found.files) == 3


def test_two_apps_share_a_destination_though_their_events_have_the_same_ids(spark: SparkSession, server: Server, out: Path) -> None:
    """No file and no commit is overwritten; an export that died left a file of its own."""
    other = Keys(prefix="other:")
    for ms in (EVENING, MORNING):
        record(server.client, 2, entry_id=f"{ms}-*", keys=other, first=10)
    server.client.xadd(KEYS.outcomes, {"hello": "there"}, id=f"{MORNING}-7")
    server.client.xadd(other.outcomes, {"hello": "there"}, id=f"{MORNING}-7")
    assert export_outcomes(server.client, other, str(out)).events == 4
    assert export_outcomes(server.client, KEYS, str(out)).refused == 1
    assert len(list(out.glob("_refused/*"))) == 2
    both = listed(spark, out)
    assert (len(both.files), len(both.commits), both.uncommitted) == (4, 3, 0)
    [commit] = [each for each in out.glob("_commits/*/*.json") if json.loads(each.read_text())["log"] == other.outcomes]
    commit.unlink()
    left = listed(spark, out)
    assert (len(left.files), len(left.commits), left.uncommitted) == (2, 2, 2)


def test_a_day_that_was_removed_is_refused_by_name(spark: SparkSession, out: Path) -> None:
    """Books without that day would call its tasks orphans."""
    for file in out.glob("date=2026-01-31/*/*.parquet"):
        file.unlink()
    with pytest.raises(InputError, match=r"1 files of 2026-01-31 were exported and are not there"):
        listed(spark, out)


def test_what_is_exported_while_the_books_look_is_left_to_the_next_run(spark: SparkSession, server: Server, out: Path) -> None:
    """A commit that came after the files were listed names a file that is there: nothing is missing."""
    before, files = [*Files(spark).walk(str(out))], Files(spark)
    record(server.client, 2, entry_id=f"{MORNING + 1}-*")
    export_outcomes(server.client, KEYS, str(out))
    found = listing(files, str(out), before)
    assert (found.events, len(found.commits), found.uncommitted) == (4, 1, 0)
    assert listed(spark, out, known={*found.files, *found.commits}).events == 2


def test_spark_reads_no_file_that_was_exported_after_the_files_were_listed(spark: SparkSession, out: Path) -> None:
    """Else the next run counts its events a second time."""
    known = [*out.glob("date=*/*/*.parquet")]
    write_rows([{"event_id": "9-0", "task_id": "late"}], str(known[0].parent), EVENTS, name="late")
    assert read_events(spark, [str(path) for path in known], str(out)).where("task_id = 'late'").count() == 0


def test_the_gaps_of_a_commit_are_read_with_it(spark: SparkSession, out: Path) -> None:
    """Two exports at the same time may overwrite each other's list of gaps."""
    [commit] = out.glob("_commits/*/*.json")
    contents = json.loads(commit.read_text())
    commit.write_text(json.dumps({**contents, "gaps": [{"after": "1-0", "lost": 3}]}))
    assert listed(spark, out).gaps == [(KEYS.outcomes, {"after": "1-0", "lost": 3})]


def test_two_apps_have_a_gap_each_behind_the_same_entry(spark: SparkSession, out: Path) -> None:
    """Each notes its own gap in its own file; if the file lost one, the commit of that app still has it."""
    last = f"{MORNING}-1"
    for keys in (KEYS, Keys(prefix="other:")):
        note([Gap(last, f"{MORNING}-9", 7, "cap", MORNING)], str(out), keys.outcomes)
    files = Files(spark)
    gaps = read_gaps(files, str(out))
    assert ([each["after"] for each in gaps], len({*out.glob("_gaps*.jsonl")})) == ([last, last], 2)
    assert [each.lost for each in noted(str(out))] == [7, 7]
    of_commits = [(name, {"after": last, "lost": 7}) for name in ("a", "b", "b")]
    assert [len(not_noted(gaps[:many], of_commits)) for many in range(3)] == [2, 1, 0]


def test_a_folder_and_a_file_have_a_root_and_a_key() -> None:
    """The path is split at the date, if it has one."""
    assert root_of("s3://b/out/date=2026-01-31/hour=12") == "s3://b/out"
    assert root_of("s3://b/out/") == "s3://b/out"
    assert [root_of(day) for day in ("date=2026-01-31", "./date=2026-01-31/", "/date=2026-01-31")] == [".", ".", "/"]
    assert key_of("s3://b/out/date=2026-01-31/hour=12/x.parquet", "s3://b/out") == "date=2026-01-31/hour=12/x.parquet"
    assert key_of("file:/out/x.parquet", "file:/out") == "x.parquet"
