"""`redelivery task show` after an export: events come from the files, and none is shown twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from redelivery.errors import InputError
from redelivery.middleware.messages.envelope import HEADER
from redelivery.middleware.messages.events import ENTRY, Outcome
from redelivery.middleware.messages.recording import about
from redelivery.workers.export.history import exported
from tests.support.desk import Desk, task_message

if TYPE_CHECKING:
    from pathlib import Path


FIRST, SECOND = "3f2a9c1e-6d0b-4f7e-9a51-0c2f6b8e4d01", "3f2a9c77-11aa-4c1e-8b62-5d3e7c9f1a02"


def outcomes_of(desk: Desk, *words: str) -> list[str]:
    """The outcomes that `task show` prints for the task."""
    return [event["outcome"] for event in desk.json("task", "show", *words)["events"]]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_exported_events_are_read_beside_the_log(desk: Desk, folder: Path, kind: str) -> None:
    """In the order of their times, by an id or its beginning; an event in both the files and the log is shown once."""
    desk.delay(task_message(FIRST))
    desk.die(task_message(SECOND))
    uri = str(folder / "books")
    desk.json("outcomes", "export", "--to", uri, "--format", kind)
    desk.die(task_message(FIRST))
    assert outcomes_of(desk, FIRST) == ["dead_lettered"]
    assert outcomes_of(desk, FIRST, "--outcomes", uri) == ["deferred", "dead_lettered"]
    assert outcomes_of(desk, "3f2a9c1", "--outcomes", uri) == ["deferred", "dead_lettered"]
    assert "may mean more than one task" in desk.run("task", "show", "3f2a9c", "--outcomes", uri).stderr
    assert exported(uri, "3f2a9c", 10).looked_at == 2


def test_a_setting_names_the_place_once(desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`outcome_archive` is where `outcomes export` writes and `task show` reads; without it, `outcome_export` is."""
    desk.delay(task_message(FIRST))
    assert "where to? say --to" in desk.run("outcomes", "export").stderr
    for name in ("ARCHIVE", "EXPORT"):
        monkeypatch.setenv(f"REDELIVERY_OUTCOME_{name}", str(folder / name))
    other = Desk(desk.server)
    assert other.run("outcomes", "export").stdout.startswith("1 event written to ")
    assert outcomes_of(other, FIRST) == ["deferred"]
    assert (folder / "ARCHIVE").exists()
    assert not (folder / "EXPORT").exists()
    (folder / "ARCHIVE").rename(folder / "EXPORT")
    monkeypatch.delenv("REDELIVERY_OUTCOME_ARCHIVE")
    assert outcomes_of(Desk(desk.server), FIRST) == ["deferred"]
    monkeypatch.delenv("REDELIVERY_OUTCOME_EXPORT")
    monkeypatch.setenv("REDELIVERY_OUTCOME_ARCHIVE", str(folder / "nothing yet"))
    desk.die(task_message(FIRST))
    done = Desk(desk.server).run("task", "show", FIRST)
    assert (done.exit_code, done.stderr.startswith("exported events were not read: there are no exported events at")) == (0, True)
    other.transport.close()


def test_a_place_without_events_is_refused(desk: Desk, folder: Path) -> None:
    """One line says so; for an unknown task it also says where else its events may be."""
    done = desk.run("task", "show", FIRST, "--outcomes", str(folder / "nowhere"))
    assert (done.exit_code, "there are no exported events at" in done.stderr) == (2, True)
    assert "say where with --outcomes, or set outcome_archive" in desk.run("task", "show", FIRST).stderr


def test_the_newest_files_are_read_until_enough_was_looked_at(folder: Path) -> None:
    """The search stops at a bound and counts the files that are left; hidden folders are skipped, a broken file is refused."""
    for hour in range(3):
        place = folder / "date=2026-01-31" / f"hour={hour:02}"
        place.mkdir(parents=True)
        rows = [{"task_id": FIRST, "outcome": "received", "event_id": f"{hour}-{number}", "at_ms": hour} for number in range(2)]
        (place / "outcomes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "_refused").mkdir()
    (folder / "_refused" / "refused.jsonl").write_text("{}\n")
    for most, hours, left in ((1, {2}, 2), (2, {2}, 2), (3, {1, 2}, 1), (100, {0, 1, 2}, 0)):
        found = exported(str(folder), FIRST, most)
        assert ({event.at_ms for event in found.events}, found.left) == (hours, left)
    (folder / "broken.parquet").write_text("no Parquet")
    with pytest.raises(InputError, match="cannot be read"):
        exported(str(folder), FIRST, 100)


@pytest.mark.parametrize("queue", ["redelivery:outcomes", "unacked", "cache", ""])
def test_a_queue_that_a_forged_header_names_is_not_looked_into(desk: Desk, queue: str) -> None:
    """Its events name that queue, but a key of another type would end the command."""
    desk.client.set("cache", "1")
    desk.client.hset("unacked", "other", "1")
    said = about({"id": FIRST, "task": "t", HEADER: {"origin": {"queue": queue}}}, "celery", b"", Outcome.RECEIVED)
    desk.client.xadd(desk.keys.outcomes, dict(zip(ENTRY, said.to_entry(), strict=True)))
    assert outcomes_of(desk, FIRST) == ["received"]
