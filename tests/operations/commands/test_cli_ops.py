"""`redelivery ops`, `redelivery audit`, `--detach`, `--as` and `--why`, as an operator uses them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.duties.operation_runner import OperationRunner
from redelivery.workers.operations.runs import operation
from redelivery.workers.operations.runs.audit import os_user
from tests.support.desk import LETTERS, Desk, copies, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from pathlib import Path


def actors(desk: Desk) -> list[tuple[str, str | None]]:
    """The recorded events that have an actor, with the actor."""
    return [(str(event.outcome), event.actor) for event in desk.events if event.actor]


def test_a_redrive_is_handed_over_shown_paused_and_ended(desk: Desk) -> None:
    """Nothing moves before a process carries it out; ids may be shortened."""
    copies(desk, 5)
    begun = desk.json("dlq", "redrive", LETTERS, "--all", "--rate", "50/s", "--detach", "--as", "ana", "--why", "fixed in 4.2")
    assert (begun["kind"], begun["state"], begun["actor"], begun["why"]) == ("redrive", "waiting", "ana", "fixed in 4.2")
    assert begun["options"] == {"rate": 50.0}
    assert len(desk.ids(LETTERS)) == 5
    short = begun["id"][:8]
    assert [each["id"] for each in desk.json("ops", "list", "--open")] == [begun["id"]]
    assert "fixed in 4.2" in desk.run("ops", "list").stdout
    assert desk.json("ops", "pause", short, "--as", "ben")["state"] == "paused"
    assert "paused by ben" in desk.run("ops", "show", short).stdout
    assert desk.json("ops", "resume", short)["state"] == "waiting"
    ended = desk.run("ops", "abort", short, "--why", "wrong queue")
    assert "is aborted: 0 messages have moved" in ended.stdout
    assert desk.json("ops", "show", short)["message"] == f"aborted by {os_user()}: wrong queue"
    assert desk.run("ops", "list", "--open").stdout == "No operation is under way.\n"
    again = desk.run("ops", "resume", short)
    assert again.exit_code == 2
    assert "is aborted, and cannot be resumed" in again.stderr


def test_an_id_of_two_operations_lists_both(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is changed; one more character makes the id unique."""
    copies(desk, 2)
    ids = [f"3f2a9c{last}0-0000-4000-8000-000000000001" for last in "ab"]
    made = iter(ids)
    monkeypatch.setattr(operation, "uuid", SimpleNamespace(uuid4=lambda: next(made)))
    for _ in ids:
        desk.json("dlq", "redrive", LETTERS, "--all", "--detach")
    refused = desk.run("ops", "abort", "3f2a9c")
    assert refused.exit_code == 2
    assert "'3f2a9c' may mean more than one operation: " in refused.stderr
    assert all(each in refused.stderr for each in ids)
    assert {each["state"] for each in desk.json("ops", "list")} == {"waiting"}
    assert desk.json("ops", "abort", "3f2a9ca")["state"] == "aborted"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("dlq", "purge", LETTERS, "--all", "--yes"), "purge"),
        (("dlq", "move", LETTERS, "--all", "--to", "DLQ.kept", "--create"), "move"),
        (("delayed", "cancel", "--task", "desk.*", "--yes"), "cancel"),
    ],
)
def test_each_change_can_be_handed_over(desk: Desk, words: tuple[str, ...], kind: str) -> None:
    """The process that leads carries it out."""
    copies(desk, 3)
    desk.delay(task_message())
    begun = desk.json(*words, "--detach")
    assert (begun["kind"], begun["actor"]) == (kind, os_user())
    runner = OperationRunner(desk.install)
    runner.start()
    until(lambda: operation.found(desk.install, begun["id"]).has_ended, 30)
    runner.stop()
    done = desk.json("ops", "show", begun["id"])
    assert (done["state"], done["moved"]) == ("done", 1 if kind == "cancel" else 3)
    assert {actor for _, actor in actors(desk)} == {os_user()}


def test_a_dry_run_hands_nothing_over_and_leaves_no_record(desk: Desk) -> None:
    """This holds with any other options."""
    copies(desk, 2)
    desk.json("dlq", "redrive", LETTERS, "--all", "--dry-run", "--detach")
    desk.json("dlq", "purge", LETTERS, "--all", "--dry-run")
    assert desk.json("ops", "list") == desk.json("audit") == []


def test_who_changed_what_by_a_command_is_recorded(desk: Desk) -> None:
    """In the event of each message, and in the audit: its begin, and its end or the reason why not."""
    copies(desk, 4)
    waits = [desk.delay(task_message()) for _ in range(3)]
    desk.json("dlq", "redrive", LETTERS, "--all", "--limit", "1", "--as", "ana", "--why", "one first")
    desk.json("dlq", "purge", LETTERS, "--all", "--limit", "1", "--yes", "--as", "ben")
    desk.json("dlq", "move", LETTERS, "--all", "--limit", "1", "--to", "DLQ.kept", "--create", "--as", "cat")
    desk.json("delayed", "cancel", waits[0], "--as", "dan")
    desk.json("delayed", "promote", waits[1], "--as", "eva")
    desk.json("delayed", "reschedule", waits[2], "--in", "5m", "--as", "fay")
    assert actors(desk) == [
        ("redriven", "ana"),
        ("purged", "ben"),
        ("redriven", "cat"),
        ("dead_lettered", "cat"),
        ("cancelled", "dan"),
        ("deferred", "eva"),
        ("deferred", "fay"),
    ]
    records = desk.json("audit")[::-1]
    assert [(each["actor"], each["act"], each["acted"]) for each in records] == [
        ("ana", "redrive", "begun"),
        ("ana", "redrive", "done"),
        ("ben", "purge", "begun"),
        ("ben", "purge", "done"),
        ("cat", "move", "begun"),
        ("cat", "move", "done"),
        ("dan", "cancel", "done"),
        ("eva", "promote", "done"),
        ("fay", "reschedule", "done"),
    ]
    assert records[0]["why"] == "one first"
    assert records[1]["result"] == {"matched": 1, "moved": 1}
    assert records[6]["tasks"] == [waits[0]]
    assert [each["actor"] for each in desk.json("audit", "--by", "eva")] == ["eva"]
    assert [each["actor"] for each in desk.json("audit", "--letters", "--by", "ana")] == ["ana"]
    assert "one first" in desk.run("audit").stdout


def test_the_audit_of_one_operation_tells_its_whole_story(desk: Desk) -> None:
    """The beginning of its id is enough; records that strangers wrote are left out."""
    copies(desk, 2)
    begun = desk.json("dlq", "redrive", LETTERS, "--all", "--detach", "--as", "ana")
    desk.json("dlq", "redrive", LETTERS, "--all", "--detach", "--as", "ben")
    desk.client.xadd(desk.keys.audit, {"record": "{"})
    desk.client.xadd(desk.keys.audit, {"other": b"\xff"})
    desk.client.xadd(desk.keys.audit, {"record": json.dumps({"actor": 1, "act": "redrive", "acted": "done", "queue": ""})})
    desk.json("ops", "abort", begun["id"], "--as", "cat")
    records = desk.json("audit", "--operation", begun["id"][:8])
    assert [(each["actor"], each["acted"]) for each in records] == [("cat", "aborted"), ("ana", "begun")]
    assert len(desk.json("audit")) == 3


def test_the_audit_names_the_fields_of_a_dead_letter_that_were_changed(desk: Desk, tmp_path: Path) -> None:
    """It names neither the unchanged fields of the file, nor any value."""
    task_id = desk.die()
    whole = json.loads(desk.run("dlq", "export", LETTERS, "--id", task_id).stdout)
    file = tmp_path / "changed.json"
    file.write_text(json.dumps({**whole, "args": ["a secret"]}))
    desk.json("dlq", "redrive", LETTERS, "--id", task_id, "--with", str(file), "--as", "ana", "--yes")
    done, begun = desk.json("audit")
    assert (done["acted"], begun["acted"], begun["options"]["edited"]) == ("done", "begun", ["args"])
    assert "secret" not in json.dumps([done, begun])
    assert "edited args" in " ".join(desk.run("audit").output.split())


def test_a_command_that_fails_is_recorded_as_failed(desk: Desk) -> None:
    """The record has the reason."""
    copies(desk, 2)
    done = desk.run("dlq", "purge", LETTERS, "--all", "--yes", "--archive", "/dev/null/below", "--as", "ana")
    assert done.exit_code == 2
    assert [each["acted"] for each in desk.json("audit")] == ["failed", "begun"]
    assert desk.json("audit")[0]["message"]


def test_the_password_of_an_archive_is_shown_nowhere(desk: Desk) -> None:
    """It is stored for the worker that carries out the purge, but never displayed."""
    place = "s3://key:hushhush@bucket/letters"
    desk = Desk(desk.server, settings={"dead_letter_archive": "s3://key:hushhush@bucket"})
    copies(desk, 1)
    desk.json("dlq", "purge", LETTERS, "--all", "--yes", "--detach", "--archive", place)
    (begun,) = operation.listed(desk.install)
    assert begun.options.archive == place
    for words in (("ops", "list"), ("ops", "show", begun.id), ("audit",)):
        for shown in (desk.run(*words).stdout, str(desk.json(*words))):
            assert "hushhush" not in shown


@pytest.mark.parametrize("place", ["/var/other", "/var/kept/../other", "/var/keptother", "s3://bucket/letters"])
def test_a_purge_that_is_handed_over_writes_only_below_the_apps_archive(desk: Desk, place: str) -> None:
    """Otherwise a user of the page, or a writer to the broker, could choose where a worker writes; the command line may choose."""
    copies(desk, 1)
    refused = desk.run("dlq", "purge", LETTERS, "--all", "--yes", "--detach", "--archive", place)
    assert refused.exit_code == 2
    assert "below dead_letter_archive, which is not set" in " ".join(refused.stderr.split())
    kept = Desk(desk.server, settings={"dead_letter_archive": "/var/kept"})
    assert kept.run("dlq", "purge", LETTERS, "--all", "--yes", "--detach", "--archive", place).exit_code == 2
    assert kept.json("dlq", "purge", LETTERS, "--all", "--yes", "--detach", "--archive", "/var/kept/in/it")["kind"] == "purge"
    assert len(desk.ids(LETTERS)) == 1


def test_many_delayed_messages_are_cancelled_by_their_task(desk: Desk) -> None:
    """It works at once and without a worker; a script must give `--yes`."""
    for number in range(6):
        desk.delay(task_message(task="desk.pack" if number % 2 else "desk.send"))
    refused = desk.run("delayed", "cancel", "--task", "*.pack")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert desk.json("delayed", "cancel", "--task", "*.pack", "--dry-run")["moved"] == 3
    done = desk.json("delayed", "cancel", "--task", "*.pack", "--yes", "--as", "ana")
    assert (done["total"], done["matched"], done["moved"]) == (6, 3, 3)
    assert desk.json("delayed", "list")["totals"] == {"orders": 3}
    assert desk.json("delayed", "cancel", "--all", "--yes", "--limit", "2")["moved"] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("delayed", "cancel"),
        ("delayed", "cancel", "abcdefgh", "--all"),
        ("delayed", "cancel", "--all", "--task", "x"),
        ("delayed", "cancel", "abcdefgh", "--detach"),
        ("dlq", "redrive", LETTERS, "--all", "--detach", "--abort-after", "3"),
        ("ops", "show", "abcdefgh"),
        ("ops", "pause", "abcdefgh"),
    ],
)
def test_what_makes_no_sense_is_refused(desk: Desk, words: tuple[str, ...]) -> None:
    """The exit code is 2, and no operation begins."""
    copies(desk, 1)
    assert desk.run(*words).exit_code == 2
    assert desk.json("ops", "list") == []


@pytest.mark.parametrize("said", ["\x1b[2Jana", "<script>", "ana\nben", "a" * 10_000])
def test_a_hostile_name_moves_no_cursor(desk: Desk, said: str) -> None:
    """It is stored as text, cut to the longest allowed name, and its control characters are shown as escapes."""
    copies(desk, 1)
    begun = desk.json("dlq", "redrive", LETTERS, "--all", "--detach", "--as", said, "--why", said)
    assert begun["actor"] == said[:200]
    for words in (("ops", "list"), ("ops", "show", begun["id"]), ("audit",)):
        shown = desk.run(*words)
        assert shown.exit_code == 0
        assert "\x1b" not in shown.stdout
