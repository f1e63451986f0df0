"""The columns of the books' files, and the writer, which leaves complete files or none."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import fs, parquet

from redelivery.errors import InputError
from redelivery.middleware.messages.events import Event
from redelivery.workers.export.tables import EVENTS, INVENTORY, below, names, read_lines, write_rows
from redelivery.workers.reconciliation import schema as spark
from tests.support.books.object_store import SCHEME, ObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = pa.schema({"name": pa.string(), "count": pa.int32()})
ROWS: list[dict[str, Any]] = [{"name": "a", "count": 1}, {"name": "b"}, {"count": 3, "unknown": "left out"}]


def test_the_columns_are_the_event_s_fields() -> None:
    """A field that is only in the event would silently be lost."""
    assert EVENTS.names == [each.name for each in fields(Event)]


@pytest.mark.parametrize(("ours", "theirs"), [(EVENTS, spark.EVENTS), (INVENTORY, spark.INVENTORY)], ids=["events", "inventory"])
def test_the_books_read_the_same_columns(ours: pa.Schema, theirs: Any) -> None:
    """The writer's schema and Spark's agree in names, order and types."""
    names = {"string": "string", "int32": "int", "int64": "bigint"}
    assert [(each.name, names[str(each.type)]) for each in ours] == [(each.name, each.dataType.simpleString()) for each in theirs]


def test_rows_come_back_from_parquet(tmp_path: Path) -> None:
    """Missing values are null, unknown keys are left out, folders are made."""
    assert write_rows(ROWS, str(tmp_path / "new" / "folder"), SMALL, name="rows") == 3
    table = parquet.read_table(tmp_path / "new" / "folder" / "rows.parquet")
    assert table.schema.equals(SMALL)
    assert table.to_pylist() == [{"name": "a", "count": 1}, {"name": "b", "count": None}, {"name": None, "count": 3}]


def test_rows_come_back_from_json_lines(tmp_path: Path) -> None:
    """A null value is no key."""
    assert write_rows(iter(ROWS), tmp_path.as_uri(), SMALL, name="rows", format="jsonl") == 3
    assert read_lines(str(tmp_path), "rows.jsonl") == [{"name": "a", "count": 1}, {"name": "b"}, {"count": 3}]


@pytest.mark.parametrize("count", [19_999, 20_000, 20_001])
def test_each_row_group_is_written(tmp_path: Path, count: int) -> None:
    """One less, as many, and one more than a row group holds."""
    assert write_rows(({"name": "n", "count": each} for each in range(count)), str(tmp_path), SMALL, name="rows") == count
    assert parquet.read_table(tmp_path / "rows.parquet")["count"].to_pylist() == list(range(count))


def test_no_rows_make_a_file_without_rows(tmp_path: Path) -> None:
    """The inventory of an empty broker is an empty table, and not a missing one."""
    assert write_rows([], str(tmp_path), SMALL, name="rows") == 0
    assert parquet.read_table(tmp_path / "rows.parquet").schema.equals(SMALL)


def test_rows_that_fail_leave_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    """If the broker goes away during an inventory, half an inventory must not remain."""

    def failing() -> Iterator[dict[str, Any]]:
        yield from ROWS
        raise ZeroDivisionError

    write_rows(ROWS, str(tmp_path), SMALL, name="rows")
    with pytest.raises(ZeroDivisionError):
        write_rows(failing(), str(tmp_path), SMALL, name="rows")
    assert [each.name for each in tmp_path.iterdir()] == ["rows.parquet"]
    assert parquet.read_table(tmp_path / "rows.parquet").num_rows == 3


def test_a_destination_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    """The message names the file and says what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/rows\.parquet cannot be written: .*another destination"):
        write_rows(ROWS, str(tmp_path / "file"), SMALL, name="rows")


@pytest.mark.parametrize("uri", ["nowhere://bucket/x", "s3:/", "hdfs://"])
def test_an_unknown_kind_of_destination_is_refused(uri: str) -> None:
    """The message shows what a destination looks like, and no folder of that name appears."""
    with pytest.raises(InputError, match="s3://bucket/prefix"):
        write_rows(ROWS, uri, SMALL, name="rows")


def test_other_filesystems_get_whole_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """On file systems that are not local, too, a file is first written under another name."""
    memory, _ = fs.FileSystem.from_uri("mock:///")
    memory.create_dir("bucket")
    monkeypatch.setattr("redelivery.workers.export.tables.resolve", lambda uri: (memory, uri.removeprefix("mock:///")))
    assert write_rows(ROWS, "mock:///bucket/out", SMALL, name="rows") == 3
    assert [each.path for each in memory.get_file_info(fs.FileSelector("bucket", recursive=True)) if each.is_file] == [
        "bucket/out/rows.parquet",
    ]
    assert parquet.read_table("bucket/out/rows.parquet", filesystem=memory).num_rows == 3


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("/books/out/", "/books/out/a/b"),
        ("/books/what?", "/books/what?/a/b"),
        ("s3://books/out", "s3://books/out/a/b"),
        ("s3://books/out/?region=eu-west-1&scheme=http", "s3://books/out/a/b?region=eu-west-1&scheme=http"),
    ],
)
def test_a_place_below_a_destination_keeps_the_options_of_its_uri(uri: str, file: str) -> None:
    """They name an endpoint that is not Amazon's, for instance."""
    assert below(uri, "a/b") == file


def test_a_store_without_a_rename_gets_whole_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rows fail, the earlier object stays, and no reader sees a part of the new one."""

    def failing() -> Iterator[dict[str, Any]]:
        yield from ROWS
        raise ZeroDivisionError

    store = ObjectStore(tmp_path)
    monkeypatch.setattr("redelivery.workers.export.tables.resolve", store.resolve)
    to = f"{SCHEME}books/out?region=here"
    for rows in (ROWS[:1], ROWS):
        assert write_rows(rows, to, SMALL, name="rows") == len(rows)
    with pytest.raises(ZeroDivisionError):
        write_rows(failing(), to, SMALL, name="rows")
    assert (names(to), store.copied) == (["rows.parquet"], 2)
    assert parquet.read_table(tmp_path / "objects" / "books" / "out" / "rows.parquet").num_rows == 3


def test_text_that_is_no_unicode_is_written_all_the_same(tmp_path: Path) -> None:
    """A hostile task id must not stop an inventory."""
    write_rows([{"name": "a\ud800b"}, {"name": "plain"}, {}], str(tmp_path), SMALL, name="rows")
    assert parquet.read_table(tmp_path / "rows.parquet")["name"].to_pylist() == ["a?b", "plain", None]
    assert write_rows([{"name": "a\ud800b"}], str(tmp_path), SMALL, name="rows", format="jsonl") == 1


@pytest.mark.parametrize("line", ["{", "[1]", "null", "{}", '{"count": "1"}', '{"count": true}', "[" * 100_000])
def test_lines_of_a_file_that_is_none_of_ours_are_refused(tmp_path: Path, line: str) -> None:
    """The error names the file."""
    (tmp_path / "rows.jsonl").write_text(line)
    with pytest.raises(InputError, match=r"rows\.jsonl cannot be read: .* Move it away"):
        read_lines(str(tmp_path), "rows.jsonl", {"count": int})
    assert read_lines(str(tmp_path), "missing.jsonl") == []
