"""`redelivery audit` after an export: records that the broker has dropped come from the files, and none is shown twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from redelivery.workers.operations.runs.audit import Act, Acted, acted
from tests.support.desk import LETTERS, Desk, copies, task_message

if TYPE_CHECKING:
    from pathlib import Path


def recorded(desk: Desk, *whys: str, **more: Any) -> None:
    """A record for each reason."""
    for why in whys:
        said = acted(Act.PURGE, Acted.DONE, LETTERS, actor="ana", why=why, **more)
        desk.client.xadd(desk.keys.audit, {"record": said})


def trimmed(desk: Desk, left: int) -> None:
    """Have the broker keep only so many records."""
    desk.client.xtrim(desk.keys.audit, maxlen=left, approximate=False)


def whys(desk: Desk, *words: str) -> list[str]:
    """The reasons that `audit` tells, the newest first."""
    return [each["why"] for each in desk.json("audit", *words)]


def test_what_the_broker_has_trimmed_is_told_from_the_export(desk: Desk, folder: Path) -> None:
    """In order, once each, also by actor and by operation; if the broker has enough records, no file is read."""
    uri = str(folder / "out")
    copies(desk, 1)
    begun = desk.json("dlq", "redrive", LETTERS, "--all", "--detach", "--as", "ben", "--why", "begun")
    desk.json("ops", "abort", begun["id"], "--as", "cat", "--why", "no")
    recorded(desk, "a", "b")
    desk.json("outcomes", "export", "--to", uri)
    recorded(desk, "c")
    trimmed(desk, 2)
    assert whys(desk) == ["c", "b"]
    assert whys(desk, "--outcomes", uri) == ["c", "b", "a", "no", "begun"]
    assert whys(desk, "--outcomes", uri, "--limit", "3") == ["c", "b", "a"]
    assert whys(desk, "--outcomes", uri, "--by", "ben") == ["begun"]
    assert whys(desk, "--outcomes", uri, "--operation", begun["id"][:8]) == ["no", "begun"]
    whole = desk.json("audit", "--outcomes", uri)
    assert (whole[-1]["operation"], whole[-1]["filter"], whole[-2]["result"]) == (begun["id"], {}, {"moved": 0})
    assert whys(desk, "--outcomes", str(folder / "nowhere"), "--limit", "2") == ["c", "b"]
    desk.json("outcomes", "export", "--to", uri)
    desk.client.delete(desk.keys.audit)
    assert whys(desk, "--outcomes", uri) == ["c", "b", "a", "no", "begun"]


def test_a_setting_names_the_place(desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same setting as for `task show`. If the place cannot be read, the broker's records are shown, and a note."""
    recorded(desk, "a", "b")
    monkeypatch.setenv("REDELIVERY_OUTCOME_ARCHIVE", str(folder / "out"))
    other = Desk(desk.server)
    first = other.run("audit")
    assert (first.exit_code, first.stderr.startswith("exported records were not read: there is nothing at ")) == (0, True)
    other.json("outcomes", "export")
    trimmed(desk, 1)
    assert whys(other) == ["b", "a"]
    assert other.run("audit").stderr == ""
    for file in (folder / "out").glob("_audit/*/*.jsonl"):
        file.write_text("no line of ours\n")
    broken = other.run("audit", "--json")
    assert (broken.exit_code, "is no file of the audit" in broken.stderr, '"why": "b"' in broken.stdout) == (0, True, True)
    other.transport.close()


def test_a_place_that_is_named_and_cannot_be_read_is_refused(desk: Desk, folder: Path) -> None:
    """One line says so; a place that has events but no audit is refused too."""
    done = desk.run("audit", "--outcomes", str(folder / "nowhere"))
    assert (done.exit_code, "there is nothing at" in done.stderr) == (2, True)
    desk.die()
    desk.json("outcomes", "export", "--to", str(folder / "out"))
    assert desk.run("audit", "--outcomes", str(folder / "out")).stdout.startswith("There are no records.")


def test_what_is_in_no_file_and_what_was_not_read_is_said(desk: Desk, folder: Path) -> None:
    """The note is on standard error, beside the records; a day is always read as a whole."""
    uri = str(folder / "out")
    recorded(desk, "a", "b", "c")
    trimmed(desk, 1)
    desk.json("outcomes", "export", "--to", uri)
    for day in (1_769_903_999_000, 1_769_990_399_000):
        desk.client.delete(desk.keys.audit)
        said = acted(Act.PURGE, Acted.DONE, LETTERS, actor="ana", why=str(day))
        desk.client.xadd(desk.keys.audit, {"record": said}, id=f"{day}-0")
        desk.json("outcomes", "export", "--to", uri)
    desk.client.delete(desk.keys.audit)
    done = desk.run("audit", "--outcomes", uri)
    assert "2 records had left the broker before they were exported (cap)" in done.stderr
    assert whys(desk, "--outcomes", uri) == ["c", "1769990399000", "1769903999000"]
    few = desk.run("audit", "--outcomes", uri, "--scan", "2")
    assert "exported records: only the newest 2 were looked at" in few.stderr
    assert whys(desk, "--outcomes", uri, "--scan", "2") == ["c", "1769990399000"]


def test_a_record_that_was_taken_out_of_the_broker_is_told_from_the_file(desk: Desk, folder: Path) -> None:
    """A user who may write to the broker can delete it there, but not in the file."""
    uri = str(folder / "out")
    recorded(desk, "a", "b", "c")
    desk.json("outcomes", "export", "--to", uri)
    [_, hidden, _] = desk.json("audit")
    desk.client.xdel(desk.keys.audit, hidden["record_id"])
    assert whys(desk) == ["c", "a"]
    assert whys(desk, "--outcomes", uri) == ["c", "b", "a"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_letters_are_told_from_exported_events(desk: Desk, folder: Path, kind: str) -> None:
    """The export removes events from the log: those with an actor are found in the files, once each, the newest first."""
    uri = str(folder / "out")
    for number in range(3):
        desk.die(task_message(f"task-{number}"))
    desk.json("dlq", "redrive", LETTERS, "--id", "task-0", "--as", "ana")
    desk.json("outcomes", "export", "--to", uri, "--format", kind)
    desk.json("dlq", "purge", LETTERS, "--id", "task-1", "--yes", "--as", "ben")
    desk.json("outcomes", "export", "--to", uri, "--format", kind)
    desk.json("dlq", "purge", LETTERS, "--id", "task-2", "--yes", "--as", "anastasia")

    def letters(*words: str) -> list[str]:
        return [each["task_id"] for each in desk.json("audit", "--letters", *words)]

    assert letters() == ["task-2"]
    assert letters("--outcomes", uri) == ["task-2", "task-1", "task-0"]
    assert letters("--outcomes", uri, "--by", "ana") == ["task-0"]
    assert letters("--outcomes", uri, "--limit", "2") == ["task-2", "task-1"]
    scanned = desk.run("audit", "--letters", "--outcomes", uri, "--scan", "1")
    assert "exported events: only the newest" in scanned.stderr
    done = desk.run("audit", "--letters", "--outcomes", str(folder / "nowhere"))
    assert (done.exit_code, "there are no exported events at" in done.stderr) == (2, True)
