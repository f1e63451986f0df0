"""The command line from outside: in processes of its own, by exit codes and by what is said in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from redelivery.middleware.outcomes import Outcome
from redelivery.workers.cli.main import COMMANDS, message_of, redelivery
from tests.desk import LETTERS, QUEUE, Desk, task_message
from tests.running import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.running import Shop
    from tests.servers import Server

APP = """
import os
from celery import Celery
from redelivery import Redelivery
app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.task_default_queue = "orders"
Redelivery(app)
plain = Celery("plain", broker=os.environ["SHOP_BROKER"])
"""


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    """A desk on a private broker."""
    desk = Desk(server)
    yield desk
    desk.transport.close()


class Command:
    """`python -m redelivery` in a folder that has an app `shopfront`."""

    def __init__(self, folder: Path, broker: str = "redis+socket:///nowhere/at/all") -> None:
        (folder / "shopfront.py").write_text(APP)
        (folder / "broken.py").write_text("def f():\n    import nosuch\nf()\n")
        self.folder, self.broker = folder, broker

    def environment(self, **more: str) -> dict[str, str]:
        """Nothing of this machine's settings."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("REDELIVERY_", "CELERY_"))}
        return {**kept, "PYTHONPATH": str(ROOT), "SHOP_BROKER": self.broker, "PYTHONDONTWRITEBYTECODE": "1", **more}

    def start(self, *words: str, module: str = "redelivery", **options: Any) -> subprocess.Popen[str]:
        """Start it."""
        command = [sys.executable, "-m", module, *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment(), stdout=-1, stderr=-1, stdin=subprocess.DEVNULL, text=True, **options
        )

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it."""
        command = [sys.executable, "-m", "redelivery", *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture
def command(server: Server, folder: Path) -> Command:
    """The command on a private broker."""
    return Command(folder, server.url)


def refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    """It ended with 2, said this in one line on stderr, and nothing else."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("redelivery: error: ")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dlq", "list"), "redelivery -A shop dlq list"),
        (("inventory", "export", "--to", "x"), "name the app"),
        (("dispatcher",), "name the app"),
        (("-A", "nosuch", "dlq", "list"), "'nosuch' cannot be imported: ModuleNotFoundError"),
        (("-A", "broken", "dlq", "list"), "No module named 'nosuch' (broken.py, line 2)"),
        (("-A", "shopfront:nothing", "dlq", "list"), "'shopfront:nothing' cannot be imported"),
        (("-A", "shopfront:os", "dlq", "list"), "is no Celery app but module"),
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
        ("redis://:secret@127.0.0.1:1/abc", "not abc"),
        ("redis://127.0.0.1:1/0", "does not answer"),
        ("redis://no.such.host.invalid/0", "does not answer"),
        ("amqp://guest:secret@127.0.0.1:1//", "amqp://guest:**@127.0.0.1:1// refused the connection"),
        ("memory://", "neither Redis nor RabbitMQ"),
        ("sqs://user:secret@", "install what kombu needs"),
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
    for words in (("show", "DLQ.nope"), ("redrive", "DLQ.nope", "--all")):
        refused(command.run("-A", "shopfront", "dlq", *words), "there is no dead-letter queue 'DLQ.nope'; there are: DLQ.orders")


def test_a_read_only_broker_is_one_line_and_keeps_the_letter(command: Command, desk: Desk) -> None:
    """Looking works, sending back does not."""
    task_id = desk.die()
    desk.client.replicaof("127.0.0.1", 1)
    refused(
        command.run("-A", "shopfront", "dlq", "redrive", LETTERS, "--all"), "the redrive of 'DLQ.orders' stopped when 0 letters"
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
    """`CELERY_APP`, as for Celery."""
    assert command.run("dlq", "list", CELERY_APP="shopfront").returncode == 0


def test_a_reader_that_goes_away_is_no_error(command: Command, desk: Desk) -> None:
    """`redelivery … | head`: quiet, exit code 0."""
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


def test_a_long_redrive_that_is_interrupted_says_how_far_it_came(command: Command, desk: Desk) -> None:
    """Exit code 130; each letter is in one place."""
    desk.die()
    raw: Any = desk.client.lindex(LETTERS, 0)
    desk.client.lpush(LETTERS, *[raw] * 99)
    process = command.start("-A", "shopfront", "dlq", "redrive", LETTERS, "--all", "--rate", "20")
    until(lambda: desk.client.llen(QUEUE) > 5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("interrupted: ")
    moved = int(desk.client.llen(QUEUE))
    assert moved + int(desk.client.llen(LETTERS)) == 100
    said = int(err.splitlines()[-1].split()[1])
    assert moved - 2 <= said <= moved  # the batch whose answer was under way


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_dispatcher_runs_alone_until_it_is_told_to_stop(command: Command, desk: Desk, number: int, code: int) -> None:
    """It moves what is due, hands the lead on, and ends with the code of its signal."""
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
    """The newest first batch in order, then each new event; Ctrl-C ends it with 130."""
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
    assert [line.split()[3] for line in done.output.splitlines()] == ["a", "b"][-limit:]
    assert "reason=exhausted" in done.output


def test_the_delay_store_is_listed_by_due_time(desk: Desk) -> None:
    """With totals for each queue."""
    desk.delay(task_message("later"), 7_200_000)
    desk.delay(task_message("sooner"), 3_600_000)
    done = desk.run("delayed", "list")
    lines = done.output.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["sooner", "later"]
    assert lines[-1].split() == [QUEUE, "2"]
    found = desk.json("delayed", "list", "--limit", "1")
    assert ([each["task_id"] for each in found["messages"]], found["totals"]) == (["sooner"], {QUEUE: 2})
    assert desk.run("delayed", "list", "--queue", "other").output == "Nothing waits for other.\n"


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
        "lies in DLQ.orders: died",
        "is in orders",
        "max_delivery_attempts",
    ):
        assert part in text


def test_what_was_not_looked_at_is_said(desk: Desk) -> None:
    """Events and lists beyond the bound."""
    desk.die(task_message("a"))
    for _ in range(300):
        desk.publish()
    for _ in range(3):
        desk.die(task_message("b"))
    done = desk.run("task", "show", "a", "--scan", "2")
    assert "outcome log: only the newest 2 of 4 events were looked at; more with --scan" in done.output
    assert "orders: only the newest 100 messages were looked at" in done.output


def test_a_task_that_nobody_knows_is_an_error(desk: Desk) -> None:
    """One line."""
    done = desk.run("task", "show", "nobody")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "nothing is known of task 'nobody'" in done.stderr


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_books_are_exported(desk: Desk, folder: Path, kind: str) -> None:
    """The outcome log and the inventory, in either format."""
    task_id = desk.die()
    assert desk.json("outcomes", "export", "--to", str(folder / "outcomes"), "--format", kind)["events"] == 1
    done = desk.json("inventory", "export", "--to", str(folder / "inventory"), "--format", kind)
    assert (done["messages"], done["places"]["dead_letter"]) == (1, 1)
    if kind == "jsonl":
        [row] = [json.loads(line) for line in (folder / "inventory" / "inventory.jsonl").read_text().splitlines()]
        assert (row["task_id"], row["place"], row["queue"]) == (task_id, "dead_letter", QUEUE)
    assert list((folder / "outcomes").rglob(f"*.{kind}"))


def test_a_command_that_does_not_need_the_books_does_not_load_them() -> None:
    """Nobody waits for Spark or pyarrow who does not ask for it."""
    code = (
        "import sys; from click.testing import CliRunner; from redelivery.workers.cli.main import redelivery\n"
        "for words in ('', 'dlq redrive', 'outcomes tail', 'outcomes export', 'inventory export', 'task show', 'delayed list'):\n"
        "    assert CliRunner().invoke(redelivery, [*words.split(), '--help']).exit_code == 0\n"
        "print([name for name in ('pyspark', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_without_the_books_their_commands_say_what_to_install(desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line."""
    for name in [
        each for each in sys.modules if each.partition(".")[0] == "pyarrow" or each.startswith("redelivery.workers.tables")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = desk.run("inventory", "export", "--to", str(folder))
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "pip install 'redelivery[books]'" in done.stderr


def test_every_command_is_there_and_helps() -> None:
    """The table of commands names what can be imported, and the help lists it."""
    root = CliRunner().invoke(redelivery, ["--help"])
    for name in COMMANDS:
        assert CliRunner().invoke(redelivery, [name, "--help"]).exit_code == 0
        assert f"  {name} " in root.output
    assert CliRunner().invoke(redelivery, ["nonsense"]).exit_code == 2


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    """Only what a user can meet is one line."""
    assert message_of(ValueError("ours")) is None
    assert message_of(ModuleNotFoundError("other", name="other")) is None


@pytest.mark.slow
def test_a_task_that_died_is_redriven_and_succeeds(shop: Callable[..., Shop]) -> None:
    """A real worker, the real command: the same id, one generation on, one outcome in each life."""
    here = shop(conf={"worker_lost_wait": 0.5})
    here.start()
    task_id = here.send("kills", 3)
    here.ended(task_id, "dead_lettered", 40)
    line = [sys.executable, "-m", "redelivery", "-A", "tests.shop", "dlq", "redrive", "DLQ.celery", "--id", task_id]
    done = subprocess.run(line, env=here.environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "1 letter of DLQ.celery went back: celery 1.\n"), done.stderr
    assert here.ended(task_id, "succeeded").generation == 1
    assert here.leftovers() == {}
