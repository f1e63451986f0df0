"""Every change is recorded with the person who made it, on every broker; a broker without operations says what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.ports import Capability
from redelivery.workers.operations.runs.operation import is_kept
from tests.conformance.brokers import letter
from tests.support.desk import LETTERS, task_message

if TYPE_CHECKING:
    from tests.conformance.brokers import Place

pytestmark = pytest.mark.needs(Capability.OUTCOME_LOG)


def test_whoever_changes_a_letter_stands_in_its_event_and_in_the_audit(place: Place) -> None:
    """A redrive, a move and a purge, by three people."""
    place.put(*(letter(task_message(f"task-{number}")) for number in range(3)))
    desk = place.desk()
    desk.json("dlq", "redrive", LETTERS, "--id", "task-0", "--as", "ana", "--why", "mended")
    desk.json("dlq", "move", LETTERS, "--id", "task-1", "--to", "DLQ.other", "--create", "--as", "ben")
    desk.json("dlq", "purge", LETTERS, "--id", "task-2", "--yes", "--as", "cat")
    acts = {(each["actor"], each["outcome"], each["task_id"]) for each in desk.json("audit", "--letters")}
    assert acts == {
        ("ana", "redriven", "task-0"),
        ("ben", "redriven", "task-1"),
        ("ben", "dead_lettered", "task-1"),
        ("cat", "purged", "task-2"),
    }
    assert [(each["actor"], each["act"], each["acted"], each["why"]) for each in desk.json("audit")[::-1]] == [
        ("ana", "redrive", "begun", "mended"),
        ("ana", "redrive", "done", ""),
        ("ben", "move", "begun", ""),
        ("ben", "move", "done", ""),
        ("cat", "purge", "begun", ""),
        ("cat", "purge", "done", ""),
    ]
    assert [each["actor"] for each in desk.json("audit", "--letters", "--by", "cat")] == ["cat"]


def test_where_no_operations_are_kept_every_command_says_what_to_do_instead(place: Place) -> None:
    """The error says what to do instead, and nothing changes."""
    place.put(letter(task_message("task-0")))
    desk = place.desk()
    for words in (
        ["dlq", "redrive", LETTERS, "--all", "--detach"],
        ["dlq", "purge", LETTERS, "--all", "--yes", "--detach"],
        ["dlq", "move", LETTERS, "--all", "--to", "DLQ.other", "--create", "--detach"],
        ["delayed", "cancel", "--all", "--yes", "--detach"],
        ["ops", "list"],
    ):
        done = desk.run(*words)
        if is_kept(desk.transport):
            assert done.exit_code == 0, done.output
        else:
            assert done.exit_code == 2
            assert "use `redelivery dlq redrive|move|purge` without --detach" in done.stderr
    assert place.ids(LETTERS) == ["task-0"]
