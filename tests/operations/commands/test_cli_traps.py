"""Traps of the command line: mistakes that could pass unnoticed are refused, with one line that says what to do."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

import pytest
from celery import Celery
from click.testing import CliRunner

from redelivery.errors import InputError
from redelivery.workers.cli.main import redelivery
from redelivery.workers.operations.words.short_ids import begins, meant
from tests.support.desk import LETTERS, QUEUE, Desk, task_message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Server

FIRST, SECOND = "3f2a9c1e-0000-4000-8000-000000000001", "3f2a9c77-0000-4000-8000-000000000002"


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    """A desk on a private broker, whose app has one task."""
    desk = Desk(server)

    @desk.app.task(name="desk.pack", shared=False)
    def pack() -> None:
        """Do nothing."""

    yield desk
    desk.transport.close()


def refused(desk: Desk, *words: str) -> str:
    """The line with which a command is refused; also checks that nothing is changed."""
    before = desk.ids(LETTERS)
    done = desk.run(*words)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.output
    assert done.stderr.startswith("redelivery: error: ")
    assert desk.ids(LETTERS) == before
    return done.stderr


def test_a_redrive_to_a_queue_that_nobody_knows_is_refused(desk: Desk) -> None:
    """The error has the most similar name; `--create` creates the queue, and it is known from then on."""
    desk.die()
    assert "no queue 'ordres'; did you mean 'orders'?" in refused(desk, "dlq", "redrive", LETTERS, "--all", "--to", "ordres")
    assert "there is no queue 'night'; to make a new one, say --create" in refused(
        desk, "dlq", "redrive", LETTERS, "--all", "--to", "night", "--dry-run"
    )
    assert desk.run("dlq", "redrive", LETTERS, "--all", "--to", "night", "--create").exit_code == 0
    assert len(desk.ids("night")) == 1
    desk.client.delete("night")
    desk.die()
    assert desk.run("dlq", "redrive", LETTERS, "--all", "--to", "night").exit_code == 0


def test_a_task_in_a_queue_that_a_redrive_made_is_found(desk: Desk, tmp_path: Path) -> None:
    """The app does not know the queue, but the task's events name it, in the log and in exported files."""
    task_id = desk.die()
    assert desk.run("dlq", "redrive", LETTERS, "--all", "--to", "night", "--create").exit_code == 0
    assert "is in night" in desk.run("task", "show", task_id).output
    assert desk.run("outcomes", "export", "--to", str(tmp_path)).exit_code == 0
    assert desk.client.xlen(desk.keys.outcomes) == 0
    shown = desk.json("task", "show", task_id, "--outcomes", str(tmp_path))
    assert [(each["place"], each["name"]) for each in shown["places"]] == [("queue", "night")]


def test_what_is_misspelt_gets_the_nearest_name(desk: Desk) -> None:
    """A reason, a task, a queue, a dead-letter queue, a finding, a verdict, a command, an option."""
    desk.die()
    for words, said in {
        ("dlq", "redrive", LETTERS, "--reason", "exausted"): "there is no reason 'exausted'; did you mean 'exhausted'?",
        ("dlq", "redrive", LETTERS, "--reason", "xyz"): "reasons are: exhausted, max_age",
        ("dlq", "redrive", LETTERS, "--task", "desk.pakc"): "the app has no such task; did you mean 'desk.pack'?",
        ("dlq", "purge", LETTERS, "--yes", "--task", "desk.pakc"): "the app has no such task; did you mean 'desk.pack'?",
        ("dlq", "move", LETTERS, "--all", "--to", "DLQ.oders"): "there is no queue 'DLQ.oders'; did you mean 'DLQ.orders'?",
        ("dlq", "show", "DLQ.ordres"): "there is no dead-letter queue 'DLQ.ordres'; did you mean 'DLQ.orders'?",
        ("dlq", "show", QUEUE): "did you mean 'DLQ.orders', which holds its dead letters?",
        ("delayed", "cancel", "--task", "desk.pakc", "--yes"): "the app has no such task; did you mean 'desk.pack'?",
        ("books", "show", "nowhere", "--verdict", "lots"): "there is no verdict 'lots'; did you mean 'lost'?",
        ("doctor", "--ignore", "queue.unconsumd"): "there is no finding 'queue.unconsumd'; did you mean 'queue.unconsumed'?",
        ("books", "show", "nowhere", "--verdict", "xyz"): "there is no verdict 'xyz'; known are orphaned, ",
        ("delayed", "list", "--queue", "oders"): "there is no queue 'oders'; did you mean 'orders'?",
        ("dlq", "lst"): "no such command 'lst'. Did you mean 'list'? (see redelivery dlq --help)",
        ("dlq", "list", "--jsno"): "no such option '--jsno'. Did you mean '--json'? (see redelivery dlq list --help)",
        ("--jsno", "dlq", "list"): "no such option '--jsno'",
        ("dql", "list"): "no such command 'dql'",
        ("dlq", "show"): "missing argument 'NAME' (see redelivery dlq show --help)",
    }.items():
        assert said in refused(desk, *words)


def test_a_pattern_and_a_task_that_the_app_has_choose_nothing_in_peace(desk: Desk) -> None:
    """These names are not misspelt, so there is no warning."""
    desk.die(task_message(task="desk.gone"))
    for task in ("desk.pack", "desk.p*", "desk.?"):
        done = desk.run("dlq", "redrive", LETTERS, "--task", task)
        assert (done.exit_code, done.stdout) == (0, f"No dead letter of {LETTERS} was chosen; 1 was looked at.\n")


def test_a_policy_of_a_name_that_nobody_has_is_explained_with_a_hint(desk: Desk) -> None:
    """The queue or the task may be created later."""
    done = desk.run("policy", "explain", "--queue", "oders", "--task", "desk.pcak")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "the app has no queue oders; did you mean 'orders'?",
        "the app has no task desk.pcak; did you mean 'desk.pack'?",
    ]


def test_leave_and_purge_without_a_terminal_need_yes(desk: Desk) -> None:
    """A dry run does not need it, nor does a purge by id."""
    desk.die(task_message(FIRST))
    assert "say --yes" in refused(desk, "leave")
    assert "say --yes" in refused(desk, "dlq", "purge", LETTERS, "--all")
    assert desk.run("leave", "--dry-run").exit_code == 0
    assert desk.run("dlq", "purge", LETTERS, "--all", "--dry-run").exit_code == 0
    assert desk.run("dlq", "purge", LETTERS, "--id", FIRST).exit_code == 0


@pytest.mark.parametrize("words", [("redrive",), ("purge",), ("move", "--to", "DLQ.new", "--create")])
def test_a_dry_run_without_a_choice_means_all(desk: Desk, words: tuple[str, ...]) -> None:
    """For every such command; without `--dry-run` a choice must be made."""
    desk.die()
    done = desk.run("dlq", words[0], LETTERS, *words[1:], "--dry-run")
    assert (done.exit_code, done.stdout.startswith(f"1 dead letter of {LETTERS} would ")) == (0, True), done.output
    assert "which dead letters?" in refused(desk, "dlq", words[0], LETTERS, *words[1:], *(["--yes"] if words[0] == "purge" else []))


def test_the_app_is_named_before_or_after_the_command(desk: Desk) -> None:
    """If both are given, the one after the command wins."""
    name = desk.module.__name__
    desk.run("dlq", "list")
    sys.modules[name] = desk.module
    try:
        for words in (["-A", name, "dlq", "list"], ["dlq", "list", "-A", name], ["-A", "nothing", "dlq", "list", "--app", name]):
            done = CliRunner().invoke(redelivery, words)
            assert (done.exit_code, done.stdout.splitlines()[0].split("\t")[0]) == (0, "dead-letter queue"), done.output
    finally:
        del sys.modules[name]


# short ids


def test_a_beginning_of_six_characters_names_a_task() -> None:
    """A whole id always names its own task; an ambiguous beginning lists at most ten tasks."""
    assert [begins(FIRST, each) for each in (FIRST, "3f2a9c", "3f2a9", "f2a9c1", FIRST + "0")] == [True, True, False, False, False]
    assert meant("3f2a9c1", [FIRST, FIRST, SECOND]) == FIRST
    assert meant("order-1", ["order-1", "order-12"]) == "order-1"
    assert meant("order-", []) is None
    with pytest.raises(InputError, match="3f2a9c may mean more than one task") as refusal:
        meant("3f2a9c", [FIRST, SECOND])
    assert FIRST in str(refusal.value)
    with pytest.raises(InputError, match="and others; give more of the id"):
        meant("order-", [f"order-{number}" for number in range(11)])


def test_an_id_that_is_too_short_is_answered_with_how_long_it_must_be(desk: Desk) -> None:
    """For each kind of id; a long enough id that names nothing gets no such hint."""
    desk.die(task_message(FIRST))
    desk.delay(task_message(SECOND))
    hint = "give at least 6 characters of an id"
    for words in (("task", "show"), ("delayed", "show"), ("ops", "show"), ("dlq", "show", LETTERS, "--id")):
        assert hint in refused(desk, *words, "3f2a9")
        assert hint not in refused(desk, *words, "ffffff")


def test_adoption_needs_no_edit() -> None:
    """For an app without `Redelivery(app)` the command says what the two lines would change; equal tasks share a line."""

    def nothing() -> None:
        pass

    app = Celery("unedited", broker="redis://localhost:1/0", set_as_current=False)
    for name in ("shop.a", "shop.b", "shop.c"):
        app.task(name=name, shared=False)(nothing)
    app.task(name="shop.late", shared=False, acks_late=True)(nothing)
    module = types.ModuleType("unedited_shop")
    module.app = app  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        done = CliRunner().invoke(redelivery, ["adopt", "-A", "unedited_shop:app"])
    finally:
        del sys.modules[module.__name__]
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "The app has no Redelivery(app) yet: this is what those two lines would change."
    assert [line.split("\t")[0] + line.split("\t")[-1] for line in lines[3:5]] == ["3shop.a, shop.b, shop.c", "1shop.late"]
    assert sum("it runs again if a worker dies" in line for line in lines) == 1
    assert lines[-1] == "4 tasks."
