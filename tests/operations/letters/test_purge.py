"""Purge, move and export: each removal is recorded, an archive is written first, and other dead letters stay."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

from redelivery.errors import BrokerError, InputError
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.middleware.messages.envelope import HEADER
from redelivery.workers.letters import Letter
from redelivery.workers.operations.letters.archive import COLUMNS, archive, export_letters
from redelivery.workers.operations.letters.dead_letters import newest
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.move import move
from redelivery.workers.operations.letters.purge import purge
from redelivery.workers.operations.letters.reading.causes import causes
from redelivery.workers.operations.letters.walk import BATCH, WalkOptions
from tests.support.desk import LETTERS, QUEUE, Desk, copies, each_desk, task_message

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["each_desk"]

EVERYTHING = Filter()


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """All rows of an archive."""
    return [row for file in sorted(folder.rglob("*.parquet")) for row in parquet.read_table(file).to_pylist()]


@pytest.mark.parametrize("count", [BATCH - 1, BATCH, BATCH + 1])
def test_a_purge_removes_and_records_each_letter_once(desk: Desk, count: int) -> None:
    """Its last event is `purged`, by an operator, in the generation that had died."""
    ids = copies(desk, count)
    done = purge(desk.transport, LETTERS, EVERYTHING)
    assert (done.moved, done.total, desk.ids(LETTERS)) == (count, count, [])
    events = [event for event in desk.events if event.outcome == "purged"]
    assert [(event.task_id, event.reason, event.generation, event.queue) for event in events] == [
        (each, "operator", 0, QUEUE) for each in ids
    ]
    assert done.to_dict()["purged"] == count


def test_a_purge_takes_what_the_filter_means_and_no_more_than_the_limit(desk: Desk) -> None:
    """The oldest go first; a dry run changes nothing."""
    for task_id, reason in (("a", "expired"), ("b", "exhausted"), ("c", "expired"), ("d", "expired")):
        desk.die(task_message(task_id), reason=reason)
    chosen = Filter(reasons=frozenset({"expired"}))
    before = len(desk.events)
    assert purge(desk.transport, LETTERS, chosen, WalkOptions(dry_run=True, limit=2)).moved == 2
    assert (desk.ids(LETTERS), len(desk.events)) == (["a", "b", "c", "d"], before)
    assert purge(desk.transport, LETTERS, chosen, WalkOptions(limit=2)).moved == 2
    assert desk.ids(LETTERS) == ["b", "d"]


def test_what_is_purged_is_in_the_archive_first(desk: Desk, tmp_path: Path) -> None:
    """Whole dead letters, byte for byte, text or not."""
    ids = copies(desk, BATCH + 1)
    desk.client.lpush(LETTERS, b"\x00\xffgarbage")
    raws: Any = desk.client.lrange(LETTERS, 0, -1)
    done = purge(desk.transport, LETTERS, EVERYTHING, archive_to=str(tmp_path))
    rows = rows_in(tmp_path)
    assert len(done.files) == 2
    assert sorted(row["task_id"] for row in rows if row["task"]) == ids
    kept = [row["letter"].encode() if row["encoding"] == "utf-8" else base64.b64decode(row["letter"]) for row in rows]
    assert sorted(kept) == sorted(raws)
    assert {(row["why"], row["dead_letter_queue"], row["archived_ms"] > 0) for row in rows} == {("operator", LETTERS, True)}


def test_where_the_archive_cannot_be_written_nothing_is_purged(desk: Desk, tmp_path: Path) -> None:
    """All of them stay."""
    ids = copies(desk, 3)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError):
        purge(desk.transport, LETTERS, EVERYTHING, archive_to=str(tmp_path / "file"))
    assert desk.ids(LETTERS) == ids
    assert not [event for event in desk.events if event.outcome == "purged"]


def test_a_crash_between_archive_and_purge_is_harmless(desk: Desk, tmp_path: Path) -> None:
    """The same dead letters give the same file again, and the next purge finishes."""
    ids = copies(desk, 5)
    outcomes = desk.keys.outcomes
    desk.client.rename(outcomes, "aside")
    desk.client.set(outcomes, "of another type: the purge's script refuses before it takes a letter")
    with pytest.raises(BrokerError, match="stopped when 0 dead letters had gone"):
        purge(desk.transport, LETTERS, EVERYTHING, archive_to=str(tmp_path))
    assert desk.ids(LETTERS) == ids
    desk.client.rename("aside", outcomes)
    assert purge(desk.transport, LETTERS, EVERYTHING, archive_to=str(tmp_path)).moved == 5
    assert [row["task_id"] for row in rows_in(tmp_path)] == ids


def test_without_pyarrow_an_archive_is_json_lines_below_a_path(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the same columns; for a URI the error says what is missing."""
    ids = copies(desk, 2)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    purge(desk.transport, LETTERS, EVERYTHING, archive_to=str(tmp_path))
    [file] = tmp_path.rglob("*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["task_id"] for row in rows] == ids
    assert list(rows[0]) == list(COLUMNS)
    copies(desk, 1)
    with pytest.raises(InputError, match="needs pyarrow"):
        purge(desk.transport, LETTERS, EVERYTHING, archive_to="s3://bucket/letters")
    assert desk.client.llen(LETTERS) == 1


def test_an_export_leaves_everything_where_it_is(desk: Desk, tmp_path: Path) -> None:
    """Files with all dead letters, or those of a filter; a second export writes the same files."""
    ids = copies(desk, 7)
    before = len(desk.events)
    done = export_letters(desk.transport, LETTERS, str(tmp_path))
    assert (done.letters, len(done.files), desk.ids(LETTERS), len(desk.events)) == (7, 1, ids, before)
    assert export_letters(desk.transport, LETTERS, str(tmp_path)).files == done.files
    assert [row["task_id"] for row in rows_in(tmp_path)] == ids
    some = export_letters(desk.transport, LETTERS, str(tmp_path / "some"), Filter(task_ids=frozenset(ids[2:4])))
    assert (some.letters, [row["task_id"] for row in rows_in(tmp_path / "some")]) == (2, ids[2:4])
    assert export_letters(desk.transport, LETTERS, str(tmp_path / "none"), Filter(task_ids=frozenset({"x"}))).files == []


def test_a_move_is_the_next_generation_dead_by_the_operators_hand(desk: Desk) -> None:
    """The dead letter is unchanged in another, known dead-letter queue; the books have both lives."""
    task_id = desk.die(task_message("a"))
    was = newest(desk.transport, LETTERS, 1)[0]
    done = move(desk.transport, LETTERS, "DLQ.later", EVERYTHING)
    assert (done.moved, desk.ids(LETTERS), desk.ids("DLQ.later")) == (1, [], ["a"])
    [letter] = newest(desk.transport, "DLQ.later", 1)
    assert [(each["queue"], each["reason"]) for each in letter.envelope.deaths] == [
        (LETTERS, "operator"),
        (QUEUE, "exhausted"),
    ]
    assert letter.failure == was.failure
    assert (letter.generation, letter.envelope.attempt, letter.envelope.is_letter) == (1, 1, True)
    assert [(event.outcome, event.generation, event.reason) for event in desk.events if event.task_id == task_id][-2:] == [
        ("redriven", 1, ""),
        ("dead_lettered", 1, "operator"),
    ]
    assert desk.client.hget(desk.keys.dead_letter_queues, "DLQ.later") == b"orders"


def test_what_is_no_letter_of_ours_is_not_moved(desk: Desk) -> None:
    """It stays, and is counted by its reason."""
    desk.client.lpush(LETTERS, b"garbage")
    desk.die(task_message("a"))
    done = move(desk.transport, LETTERS, "DLQ.later", EVERYTHING)
    assert (done.moved, sum(done.left.values()), desk.client.llen(LETTERS)) == (1, 1, 1)


@pytest.mark.parametrize("key", ["outcomes", "dead_letter_queues"])
def test_a_move_that_the_broker_refuses_leaves_the_letter(desk: Desk, key: str) -> None:
    """If a key has another type, nothing is changed."""
    desk.die(task_message("a"))
    name = getattr(Keys(), key)
    desk.client.delete(name)
    desk.client.set(name, "x")
    with pytest.raises(BrokerError, match="stopped when 0 dead letters"):
        move(desk.transport, LETTERS, "DLQ.later", EVERYTHING)
    assert (desk.ids(LETTERS), desk.client.llen("DLQ.later")) == (["a"], 0)


def test_causes_group_letters_by_what_they_died_of(desk: Desk) -> None:
    """By fingerprint or else by reason, the most frequent first, with first and last time and the newest as the example."""
    for number in range(3):
        desk.die(task_message(f"v{number}"), said=f"no {number}", ago_ms=(3 - number) * 60_000)
    desk.die(task_message("t", "desk.send"), exception="TimeoutError")
    desk.client.lpush(LETTERS, b"garbage")
    first, *others = causes(desk.transport, [LETTERS])
    assert (first.count, first.exception, first.task_id, first.message) == (3, "ValueError", "v2", "no 2")
    assert first.first_ms is not None
    assert first.last_ms is not None
    assert 119_000 <= first.last_ms - first.first_ms <= 121_000 + 60_000
    assert sorted((each.count, each.fingerprint, each.reason) for each in others) == [
        (1, "", "unknown"),
        (1, "f-TimeoutError", "exhausted"),
    ]
    assert first.to_dict()["tasks"] == {"desk.pack": 3}


def test_an_archive_of_the_same_letters_is_the_same_file(desk: Desk, tmp_path: Path) -> None:
    """The file is named after its content; other dead letters give another file."""
    copies(desk, 2)
    raws: Any = desk.client.lrange(LETTERS, 0, -1)
    both = [Letter.of(raw) for raw in raws]
    assert archive(both, str(tmp_path), LETTERS, now_ms=1, why="x") == archive(both, str(tmp_path), LETTERS, now_ms=2, why="x")
    assert archive(both[:1], str(tmp_path), LETTERS, now_ms=1, why="x") != archive(both, str(tmp_path), LETTERS, now_ms=1, why="x")
    assert archive(both, str(tmp_path), "a/../b", now_ms=1, why="x").startswith("dead_letter_queue=a%2F..%2Fb/")
    assert HEADER in both[0].headers
