"""The command line from outside: in processes of its own, by exit codes and one-line messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from redelivery.middleware.messages.events import Outcome
from redelivery.workers.cli.main import COMMANDS, redelivery
from tests.support.desk import LETTERS, QUEUE, Desk, task_message
from tests.support.operators.command import Command, command, refused
from tests.support.running import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.running import Shop

__all__ = ["command"]


def test_celery_runs_it_as_a_command_of_its_own(command: Command, desk: Desk) -> None:
    """With Celery's `-A`, and with its own exit codes."""
    desk.die()
    entry = (
        "import celery.bin.celery as celery; from redelivery.workers.cli.main import redelivery\n"
        "celery.celery.add_command(redelivery); celery.main()"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", entry, "-A", "shopfront", "redelivery", *words]
        return subprocess.run(
            line, cwd=command.folder, env=command.environment(), capture_output=True, text=True, timeout=120, check=False
        )

    assert json.loads(run("--json", "dlq", "list").stdout)[0]["letters"] == 1
    refused(run("dlq", "show", "nope"), "there is no dead-letter queue")


def test_the_app_may_come_from_the_environment(command: Command) -> None:
    """`CELERY_APP` works as for Celery."""
    assert command.run("dlq", "list", CELERY_APP="shopfront").returncode == 0


def test_a_reader_that_goes_away_is_no_error(command: Command, desk: Desk) -> None:
    """`redelivery … | head` writes no error, and the exit code is 0."""
    raw: Any = None
    desk.die()
    raw = desk.client.lindex(LETTERS, 0)
    desk.client.lpush(LETTERS, *[raw] * 2000)
    process = command.start("-A", "shopfront", "dlq", "show", LETTERS, "--full", "--limit", "2000")
    assert process.stdout is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait(30)) == ("", 0)
    process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_long_redrive_that_is_interrupted_says_how_far_it_came(command: Command, desk: Desk, number: int) -> None:
    """The exit code is 130, and each dead letter is in exactly one place."""
    desk.die()
    raw: Any = desk.client.lindex(LETTERS, 0)
    desk.client.lpush(LETTERS, *[raw] * 99)
    process = command.start("-A", "shopfront", "dlq", "redrive", LETTERS, "--all", "--rate", "20")
    until(lambda: desk.client.llen(QUEUE) > 5)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("interrupted: ")
    moved = int(desk.client.llen(QUEUE))
    assert moved + int(desk.client.llen(LETTERS)) == 100
    said = int(err.splitlines()[-1].split()[1])
    assert moved - 2 <= said <= moved  # the batch that had been sent


def test_a_long_cancel_that_is_interrupted_says_how_far_it_came(command: Command, desk: Desk) -> None:
    """Each task is either delayed or recorded as cancelled, and the text has their number."""
    for number in range(3000):
        desk.delay(task_message(f"task-{number}"), 3_600_000)
    process = command.start("-A", "shopfront", "delayed", "cancel", "--all", "--yes")

    while desk.client.zcard(desk.keys.due(QUEUE)) == 3000:
        assert process.poll() is None
    desk.client.client_pause(60_000, all=False)  # the next cancel waits for its answer
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    words = next(line for line in process.stderr if line.startswith("interrupted: ")).split()
    desk.client.client_unpause()  # the audit's record waits for it
    assert process.communicate(timeout=120) == ("", "")
    assert (process.returncode, words[2], words[-4:]) == (130, "cancelled,", ["of", "3000", "looked", "at"])
    cancelled = sum(event.outcome == "cancelled" for event in desk.events)
    assert cancelled + int(desk.client.zcard(desk.keys.due(QUEUE))) == 3000
    assert cancelled - 1 <= int(words[1]) <= cancelled < 3000


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_dispatcher_runs_alone_until_it_is_told_to_stop(command: Command, desk: Desk, number: int, code: int) -> None:
    """It moves what is due, passes its lead on, and ends with the exit code of the signal."""
    process = command.start("-A", "shopfront", "dispatcher")
    until(lambda: desk.client.exists(desk.keys.dispatcher))
    task_id = desk.delay(task_message("soon"), 100)
    until(lambda: desk.ids() == [task_id])
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (code, ""), err
    assert "dispatcher: running" in err
    assert desk.client.exists(desk.keys.dispatcher) == 0


def test_outcomes_are_followed_as_they_come(command: Command, desk: Desk) -> None:
    """First the newest events in order, then each new event; Ctrl-C ends it with 130."""
    desk.die(task_message("before"))
    process = command.start("-A", "shopfront", "outcomes", "tail", "--follow", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["task_id"] == "before"
    desk.die(task_message("after"))
    assert json.loads(process.stdout.readline())["task_id"] == "after"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_tail_is_the_newest_events_in_order(desk: Desk, limit: int) -> None:
    """At most so many, the oldest of them first."""
    for name in ("a", "b"):
        desk.die(task_message(name))
    done = desk.run("outcomes", "tail", "--limit", str(limit))
    assert [line.split("\t")[2] for line in done.output.splitlines()[1:]] == ["a", "b"][-limit:]
    assert "reason=exhausted" in done.output


def test_a_log_without_events_is_said_to_be_empty(desk: Desk) -> None:
    """On standard error, and as JSON lines nothing."""
    done = desk.run("outcomes", "tail")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "The outcome log has no events.\n")
    assert desk.run("--json", "outcomes", "tail").output == ""


def test_the_delay_store_is_listed_by_due_time(desk: Desk) -> None:
    """With totals for each queue."""
    desk.delay(task_message("later"), 7_200_000)
    desk.delay(task_message("sooner"), 3_600_000)
    done = desk.run("delayed", "list")
    lines = done.output.splitlines()
    assert [line.split("\t")[0] for line in lines[1:3]] == ["sooner", "later"]
    assert lines[-1].split() == [QUEUE, "2"]
    found = desk.json("delayed", "list", "--limit", "1")
    assert ([each["task_id"] for each in found["messages"]], found["totals"]) == (["sooner"], {QUEUE: 2})
    assert "there is no queue 'other'" in desk.run("delayed", "list", "--queue", "other").stderr


def test_the_whole_life_of_a_task_is_in_one_place(desk: Desk) -> None:
    """Its events, where its messages are, its policy."""
    desk.delay(task_message("a"))
    desk.die(task_message("a"))
    desk.publish(task_message("a"))
    desk.hold()
    desk.publish(task_message("a"), priority=3)
    found = desk.json("task", "show", "a")
    assert [event["outcome"] for event in found["events"]] == [Outcome.DEFERRED, Outcome.DEAD_LETTERED]
    assert {(place["place"], place["name"]) for place in found["places"]} == {
        ("delayed", QUEUE),
        ("dead_letter", LETTERS),
        ("unacked", QUEUE),
        ("queue", QUEUE),
    }
    assert (found["task"], found["policy"]["max_delivery_attempts"], found["cut"]) == ("desk.pack", 3, [])
    text = desk.run("task", "show", "a").output
    for part in (
        "waits for orders until",
        "is held by w@desk",
        "is in DLQ.orders: died",
        "is in orders",
        "max_delivery_attempts",
    ):
        assert part in text


def test_what_was_not_looked_at_is_said(desk: Desk) -> None:
    """There are more events and messages than the bound on a look."""
    desk.die(task_message("a"))
    for _ in range(300):
        desk.publish()
    for _ in range(3):
        desk.die(task_message("b"))
    done = desk.run("task", "show", "a", "--scan", "2")
    assert "outcome log: only the newest 2 of 4 events were looked at; more with --scan" in done.output
    assert "orders: only the newest 100 messages were looked at" in done.output


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_books_are_exported(desk: Desk, folder: Path, kind: str) -> None:
    """The outcome log and the inventory, in either format."""
    task_id = desk.die()
    assert desk.json("outcomes", "export", "--to", str(folder / "outcomes"), "--format", kind)["events"] == 1
    done = desk.json("inventory", "export", "--to", str(folder / "inventory"), "--format", kind)
    assert (done["messages"], done["places"]["dead_letter"]) == (1, 1)
    if kind == "jsonl":
        [row] = [json.loads(line) for line in (folder / "inventory" / "inventory.jsonl").read_text().splitlines()]
        assert (row["task_id"], row["place"], row["queue"], row["message"]) == (task_id, "dead_letter", QUEUE, "no")
    noted = json.loads((folder / "inventory" / "_taken.json").read_text())
    assert (noted["app"], noted["ending"]) == (desk.app.main, "")
    assert noted["broker"].startswith("redis+socket://" if "socket" in str(desk.app.conf.broker_url) else "redis://")
    assert list((folder / "outcomes").rglob(f"*.{kind}"))


def test_a_command_that_does_not_need_the_books_does_not_load_them() -> None:
    """Only the commands that need Spark or pyarrow wait for their import."""
    code = (
        "import sys; from click.testing import CliRunner; from redelivery.workers.cli.main import redelivery\n"
        "for words in ('', 'dlq redrive', 'outcomes tail', 'outcomes export', 'inventory export', 'task show', 'delayed list'):\n"
        "    assert CliRunner().invoke(redelivery, [*words.split(), '--help']).exit_code == 0\n"
        "print([name for name in ('pyspark', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_a_reader_that_goes_early_is_no_error() -> None:
    """As in `redelivery policy --help | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "redelivery", "policy", "--help"]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_is_there_and_helps() -> None:
    """The table of commands names what can be imported, and the help lists it."""
    root = CliRunner().invoke(redelivery, ["--help"])
    for name in COMMANDS:
        assert CliRunner().invoke(redelivery, [name, "--help"]).exit_code == 0
        assert f"  {name} " in root.output
    assert CliRunner().invoke(redelivery, ["nonsense"]).exit_code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_cuts_no_sentence_and_is_not_wider_than_80_columns(name: str) -> None:
    """That of each command and of its subcommands. Click cuts a long line of a list with `...`."""
    root = click.Context(redelivery)
    found = redelivery.get_command(root, name)
    below = found.list_commands(root) if isinstance(found, click.Group) else []
    for words in ([name], *([name, each] for each in below)):
        said = CliRunner().invoke(redelivery, [*words, "--help"]).output.splitlines()
        assert [line for line in said[1:] if line.endswith("...") or len(line) > 80] == []


@pytest.mark.slow
def test_a_task_that_died_is_redriven_and_succeeds(shop: Callable[..., Shop]) -> None:
    """With a real worker and the real command: the same id, the next generation, one outcome in each life."""
    here = shop(conf={"worker_lost_wait": 0.5})
    here.start()
    task_id = here.send("kills", 3)
    here.ended(task_id, "dead_lettered", 40)
    line = [sys.executable, "-m", "redelivery", "-A", "tests.support.shop", "dlq", "redrive", "DLQ.celery", "--id", task_id]
    done = subprocess.run(line, env=here.environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "1 dead letter of DLQ.celery went back: celery 1.\n"), done.stderr
    assert here.ended(task_id, "succeeded").generation == 1
    assert here.leftovers() == {}
