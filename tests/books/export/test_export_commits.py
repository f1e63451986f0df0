"""Commits of the export: named files are complete, a replaced log is noticed, and kills lose nothing."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import dataset
from redis.exceptions import ConnectionError as RedisConnectionError

from redelivery.errors import BrokerError, InputError
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.workers.brokers.redis.outcome_log import bound
from redelivery.workers.export import batch as outcome_batch
from redelivery.workers.export import export
from redelivery.workers.export.commits import Commit, newest
from redelivery.workers.export.export import export_outcomes
from redelivery.workers.export.tables import read_lines
from tests.faults.storm.export_storm import Storm
from tests.support.books.recorded import KEYS, record
from tests.support.books.spark_session import NOON

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import Server


def commits(out: Path) -> list[dict[str, Any]]:
    """All commits, in the order of their positions."""
    return [json.loads(file.read_text()) for file in sorted(out.glob("_commits/*/*.json"), key=lambda each: each.name)]


def test_each_batch_has_a_commit_that_names_its_files_and_its_part_of_the_log(server: Server, folder: Path) -> None:
    """The parts of the log are contiguous, and the newest commit of a destination is at the cursor."""
    recorded, out = record(server.client, 25), folder / "out"
    result = export_outcomes(server.client, KEYS, str(out), batch=10)
    found = commits(out)
    assert [(each["began"][1], each["position"]) for each in found] == [(0, 10), (10, 20), (20, 25)]
    assert [each["last"] for each in found] == [recorded[9], recorded[19], recorded[24]]
    assert [file["file"] for each in found for file in each["files"]] == result.files
    assert sum(file["rows"] for each in found for file in each["files"]) == 25
    assert all((out / file["file"]).is_file() for each in found for file in each["files"])
    newest_commit = newest(str(out), KEYS.outcomes)
    assert newest_commit is not None
    assert (newest_commit.last, newest_commit.position) == (recorded[-1], 25)


def test_the_log_lets_go_of_nothing_before_its_commit_is_written(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the destination fails at the very last file, the batch stays in the log."""

    def fail(*_: Any) -> None:
        message = "no room"
        raise OSError(message)

    recorded = record(server.client, 5)
    with monkeypatch.context() as patch:
        patch.setattr(Commit, "write", fail)
        with pytest.raises(OSError, match="no room"):
            export_outcomes(server.client, KEYS, str(folder / "out"))
    assert server.client.xlen(KEYS.outcomes) == 5
    assert export_outcomes(server.client, KEYS, str(folder / "out")).gaps == []
    assert commits(folder / "out")[-1]["last"] == recorded[-1]


def test_a_broker_that_was_flushed_is_a_gap_although_its_cursor_is_gone_too(any_server: Server, folder: Path) -> None:
    """Events between the last export and the flush are lost; only the files show that, and their number is unknown."""
    client, out = any_server.client, str(folder / "out")
    exported = record(client, 10)
    export_outcomes(client, KEYS, out)
    record(client, 5)
    client.flushall()
    new = record(client, 20)
    [gap] = export_outcomes(client, KEYS, out).gaps
    assert (gap.after, gap.before, gap.lost, gap.why) == (exported[-1], new[0], None, "replaced")
    record(client, 1)
    assert export_outcomes(client, KEYS, out).gaps == []
    assert [row["after"] for row in read_lines(out, "_gaps.jsonl")] == [exported[-1]]
    assert [gap["after"] for each in commits(folder / "out") for gap in each["gaps"]] == [exported[-1]]


def test_a_log_that_the_broker_has_evicted_is_a_gap(any_server: Server, folder: Path) -> None:
    """A full server with another `maxmemory-policy` evicts the log, and perhaps its cursor; the files show it."""
    client, out = any_server.client, str(folder / "out")
    exported = record(client, 10)
    export_outcomes(client, KEYS, out)
    record(client, 5)
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 2_000_000)
    deadline = time.monotonic() + 60
    while client.exists(KEYS.outcomes) and time.monotonic() < deadline:
        client.set(f"other-{client.dbsize()}-{time.monotonic_ns()}", "x" * 10_000)
    assert not client.exists(KEYS.outcomes), "the server evicts at random, and has not met the log"
    assert client.info("stats")["evicted_keys"] > 0
    client.config_set("maxmemory", 0)
    new = record(client, 20)
    [gap] = export_outcomes(client, KEYS, out).gaps
    assert (gap.after, gap.before, gap.why) == (exported[-1], new[0], "replaced")


def test_a_broker_that_was_restored_from_an_older_copy_is_a_gap(server: Server, folder: Path) -> None:
    """Log and cursor agree with each other, and not with the files."""
    client, out = server.client, str(folder / "out")
    first = record(client, 3)
    export_outcomes(client, KEYS, out)
    copies = {key: client.dump(key) for key in (KEYS.outcomes, KEYS.exported)}
    second = record(client, 4)
    export_outcomes(client, KEYS, out)
    for key, copy in copies.items():
        client.restore(key, 0, copy, replace=True)
    third = record(client, 5)
    [gap] = export_outcomes(client, KEYS, out).gaps
    assert (gap.after, gap.before, gap.why) == (second[-1], third[0], "replaced")
    assert first[-1] != gap.after


def test_an_idle_app_notices_a_flush_after_days_of_another_app_s_commits(server: Server, folder: Path) -> None:
    """Both export to one destination; an app looks at its own commits, however old they are."""
    client, out, idle = server.client, str(folder / "out"), Keys(prefix="idle:")
    exported = record(client, 1, keys=idle, entry_id=f"{NOON}-*")
    export_outcomes(client, idle, out)
    for day in (1, 2, 3):
        record(client, 1, entry_id=f"{NOON + day * 86_400_000}-*")
        export_outcomes(client, KEYS, out)
    client.flushall()
    record(client, 1, keys=idle)
    assert [(gap.after, gap.why) for gap in export_outcomes(client, idle, out).gaps] == [(exported[-1], "replaced")]


@pytest.mark.parametrize("name", [".DS_Store", "README", "2026-01-31/README.txt", "2026-01-31/.nfs01", "2099-01-01/notes-1.json"])
def test_a_strange_file_among_the_commits_does_not_stop_the_export(server: Server, folder: Path, name: str) -> None:
    """Else the log would fill until its oldest events go."""
    record(server.client, 1, entry_id=f"{NOON}-*")
    export_outcomes(server.client, KEYS, str(folder / "out"))
    strange = folder / "out" / "_commits" / name
    strange.parent.mkdir(exist_ok=True)
    strange.write_text("hello")
    record(server.client, 2)
    assert export_outcomes(server.client, KEYS, str(folder / "out")).events == 2


@pytest.mark.parametrize("text", ['{"log": "redel', "[]", '{"log": "x", "began": ["", 0], "last": 5, "position": 1, "files": [1]}'])
def test_a_broken_commit_is_named(server: Server, folder: Path, text: str) -> None:
    """The export cannot tell from it whether the log is the same."""
    record(server.client, 1)
    export_outcomes(server.client, KEYS, str(folder / "out"))
    [commit] = folder.glob("out/_commits/*/*.json")
    commit.write_text(text)
    with pytest.raises(InputError, match=rf"{commit.name} is not a commit of an export .*: restore it, or move it away"):
        export_outcomes(server.client, KEYS, str(folder / "out"))


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut by the cap meanwhile"])
def test_an_export_that_died_between_commit_and_cursor_makes_up_no_second_gap(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, *, cut: bool
) -> None:
    """Its commit is ahead of the cursor, so its events are written again; events that the cap removed since are reported once."""
    client, out = server.client, str(folder / "out")
    record(client, 4000)

    def die(*_: Any) -> None:
        message = "killed"
        raise RedisConnectionError(message)

    with monkeypatch.context() as patch:
        patch.setattr(export, "_finish", die)
        with pytest.raises(RedisConnectionError):
            export_outcomes(client, KEYS, out, batch=1000)
    if cut:
        assert bound(client, KEYS, 200_000).removed > 1000
    gaps = export_outcomes(client, KEYS, out).gaps
    assert [gap.why for gap in gaps] == (["cap"] if cut else [])


def test_an_export_that_ends_while_another_one_reads_makes_up_no_gap(
    any_server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has died between commit and cursor. Then one export reads the log, and another one ends before the first checks it."""
    client, out = any_server.client, str(folder / "out")
    recorded, take, finish = record(client, 10), outcome_batch.take, export._finish

    def die(*_: Any) -> None:
        message = "killed"
        raise RedisConnectionError(message)

    monkeypatch.setattr(export, "_finish", die)
    with pytest.raises(RedisConnectionError):
        export_outcomes(client, KEYS, out)
    monkeypatch.setattr(export, "_finish", finish)

    def overtaken(*args: Any) -> Any:
        taken = take(*args)
        monkeypatch.setattr(export, "take", take)
        recorded.extend(record(client, 5))
        export_outcomes(any_server.client, KEYS, out)
        return taken

    monkeypatch.setattr(export, "take", overtaken)
    with pytest.raises(BrokerError, match="run one export at a time"):
        export_outcomes(client, KEYS, out)
    assert not (folder / "out" / "_gaps.jsonl").exists()
    assert [gap for each in commits(folder / "out") for gap in each["gaps"]] == []
    assert {row["event_id"] for row in dataset.dataset(out, format="parquet").to_table().to_pylist()} == set(recorded)


def test_two_exports_at_once_lose_nothing_and_make_up_no_gap(server: Server, folder: Path) -> None:
    """Repeated while events are recorded: an export that is overtaken says so, and every event is in a file."""
    out, recorded, failures = folder / "out", record(server.client, 3000), []
    storm = Storm(server, str(out), events=0)

    def run() -> None:
        client = server.client
        for _ in range(30):
            try:
                export_outcomes(client, KEYS, str(out), batch=50)
            except BrokerError:
                continue
            except Exception as exc:  # noqa: BLE001 - it must not be lost in its thread
                failures.append(exc)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        recorded += record(server.client, 100)
    for thread in threads:
        thread.join()
    assert failures == []
    storm.recorded, storm.events = recorded, len(recorded)
    storm.finish()
