"""Private RabbitMQ nodes, each with its own epmd, ports, folder and cookie; ended by their process ids.

The tests of one run share one node, whatever process of pytest-xdist they run in, and each test has a virtual host of its own on
it. Whoever uses the node holds a shared lock on a file; a keeper process, which has started the node, waits for the exclusive lock
and ends the node when it has it: a test process that is killed holds no lock either. Tests that kill, restart or alarm the broker
take a node of their own (`private_rabbit`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import amqp
import pytest
from kombu import Connection

from redelivery.middleware.envelope import opened
from redelivery.middleware.transports.amqp_events import events_of
from redelivery.middleware.transports.amqp_names import DELAY_PREFIX, OUTCOMES, OUTCOMES_EXCHANGE
from redelivery.workers.amqp_look import Look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.outcomes import Event

__all__ = ["Node", "Rabbit", "private_rabbit", "rabbit", "rabbit_node"]

ROOT = Path(__file__).resolve().parent.parent
#: Debian's own places; the commands on the path are wrappers, which insist on a user that they switch to.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
#: Seconds that a node may take to start: it takes 6 s on an idle machine.
PATIENCE = 240.0
USER = "guest"
#: The tests' own queue at the exchange of the outcome log.
TAP = "tests.tap"
#: No busy waiting of the schedulers, and nothing beyond the loopback.
ERLANG = "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
CONF = """\
listeners.tcp.1 = 127.0.0.1:{port}
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.absolute = 2GB
raft.wal_max_size_bytes = 16000000
log.file.level = warning
log.console = false
"""


def installed() -> bool:
    """Whether this machine has Debian's RabbitMQ."""
    return (PROGRAMS / "rabbitmq-server").exists() and all(shutil.which(each) for each in ("epmd", "erl_call"))


@dataclass
class Node:
    """One node. `ports` are those of AMQP, epmd and Erlang's distribution."""

    folder: Path
    ports: tuple[int, int, int] = (0, 0, 0)
    cookie: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[bytes] | None = None
    epmd: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Where AMQP is spoken."""
        return self.ports[0]

    @property
    def name(self) -> str:
        """The Erlang node's name."""
        return f"rd{self.port}@localhost"

    @property
    def environment(self) -> dict[str, str]:
        """What the node and its commands need."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return kept | {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self.ports[1]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.ports[2]),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "generated"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG,
        }

    def start(self) -> Node:
        """Start it, again where it was ended, and wait until it answers. Raises `AssertionError` where it does not."""
        if not self.port:
            self.ports = _free_ports()
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "rabbitmq.conf").write_text(CONF.format(port=self.port))
            (self.folder / "plugins").write_text("[].\n")
            cookie = self.folder / ".erlang.cookie"
            cookie.write_text(self.cookie)
            cookie.chmod(0o400)
        if self.epmd is None:
            self.epmd = self._run("epmd", "-port", str(self.ports[1]), "-address", "127.0.0.1")
        self.process = self._run(str(PROGRAMS / "rabbitmq-server"))
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            log = (self.folder / "node.log").read_text("utf-8", "replace")[-3000:]
            assert self.process.poll() is None, f"the node ended: {log}"
            assert time.monotonic() < deadline, f"the node does not answer: {log}"
            time.sleep(0.1)  # a starting node says nothing that one could wait for
        return self

    def kill(self) -> None:
        """SIGKILL it, with the helpers that it started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    def stop(self) -> None:
        """End it for good, and its epmd."""
        self.kill()
        if self.epmd is not None:
            self.epmd.kill()
            self.epmd.wait(30)
            self.epmd = None

    def evaluate(self, code: str) -> str:
        """Evaluate Erlang on the node: 50 ms, where a command takes seconds. Raises `AssertionError` where it fails."""
        command = ["erl_call", "-sname", self.name, "-c", self.cookie, "-h", f"c{uuid.uuid4().hex[:12]}", "-e"]
        given: Any = {"input": f"{code}\n", "env": self.environment, "capture_output": True, "text": True}
        done = subprocess.run(command, **given, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("{ok,"), done.stdout + done.stderr
        return str(done.stdout).removeprefix("{ok, ").removesuffix("}")

    def ctl(self, *words: str) -> str:
        """Run `rabbitmqctl`: a second or two of CPU. Raises `AssertionError` where it fails."""
        command = [str(PROGRAMS / "rabbitmqctl"), "-n", self.name, "--quiet", *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def vhost(self) -> Rabbit:
        """A new virtual host."""
        rabbit = Rabbit(self, f"v{uuid.uuid4().hex[:12]}")
        rabbit.add()
        rabbit.tap()
        return rabbit

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "node.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        try:
            amqp.Connection(f"127.0.0.1:{self.port}", USER, USER, connect_timeout=5).connect()
        except (OSError, amqp.AMQPError):
            return False
        return True


@dataclass
class Rabbit:
    """One virtual host of a node, with the little that tests of either broker ask for: its URL, events, letters and leftovers."""

    node: Node
    name: str
    _events: dict[str, Event] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its address, as Celery takes it."""
        return f"amqp://{USER}:{USER}@127.0.0.1:{self.node.port}/{self.name}"

    def add(self) -> None:
        """Make it."""
        name = f'<<"{self.name}">>'
        everything = ", ".join(['<<".*">>'] * 3)
        self.node.evaluate(
            f'ok = rabbit_vhost:add({name}, <<"tests">>), '
            f'ok = rabbit_auth_backend_internal:set_permissions(<<"{USER}">>, {name}, {everything}, <<"tests">>).'
        )

    def remove(self) -> None:
        """Remove it, behind the test's back: nobody waits for it."""
        self.node.evaluate(f'spawn(fun() -> rabbit_vhost:delete(<<"{self.name}">>, <<"tests">>) end), ok.')

    def connection(self) -> Connection:
        """A new connection; the caller closes it."""
        return Connection(self.url)

    def ctl(self, command: str, *words: str) -> str:
        """`rabbitmqctl COMMAND -p <this virtual host> …`."""
        return self.node.ctl(command, "-p", self.name, *words)

    def depth(self, queue: str) -> int | None:
        """How many messages are ready in a queue; None where there is no such queue."""
        with self.connection() as connection:
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except amqp.NotFound:
                return None

    def depths(self) -> dict[str, tuple[int, int]]:
        """Every queue of the virtual host: how many messages are ready, and how many unacknowledged."""
        # A quorum queue writes its figures every five seconds only: it is asked.
        code = (
            "Unacked = fun(Q) -> case amqqueue:get_type(Q) of "
            "rabbit_quorum_queue -> {ok, {_, Out}, _} = "
            "ra:leader_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_checked_out/1), Out; "
            "_ -> proplists:get_value(messages_unacknowledged, rabbit_amqqueue:info(Q, [messages_unacknowledged])) end end, "
            "Ready = fun(Q) -> {ok, N, _} = rabbit_amqqueue:stat(Q), N end, "
            'lists:flatten([io_lib:format("~s\\t~p\\t~p\\n", [element(4, amqqueue:get_name(Q)), Ready(Q), Unacked(Q)]) '
            f'|| Q <- rabbit_amqqueue:list(<<"{self.name}">>)]).'
        )
        lines = [line.split("\t") for line in json.loads(self.node.evaluate(code) or '""').splitlines()]
        return {name: (int(ready), int(unacked)) for name, ready, unacked in lines if name != TAP}

    # what tests of either broker ask for

    def tap(self) -> None:
        """Hear whatever is recorded from now on, through a queue of the tests' own beside the outcome log."""
        with self.connection() as connection:
            channel = connection.default_channel
            channel.queue_declare(TAP, durable=True, auto_delete=False)
            channel.queue_bind(TAP, OUTCOMES_EXCHANGE, OUTCOMES)

    def events(self, prefix: str = "") -> list[Event]:  # noqa: ARG002 - a virtual host has no prefix
        """Everything that was recorded, each event once, in the order of their times."""
        with self.connection() as connection:
            channel = connection.default_channel
            while (message := channel.basic_get(TAP, no_ack=True)) is not None:
                for event in events_of(message.body):
                    self._events.setdefault(event.event_id, event)
        return sorted(self._events.values(), key=lambda event: event.at_ms)

    def letters(self, queue: str = "DLQ.celery") -> list[dict[str, Any]]:
        """The letters in a dead-letter queue, the newest first."""
        with self.connection() as connection, Look(connection, queue) as look:
            return [opened(raw) for raw in reversed([found.raw for found in look])]

    def leftovers(self) -> dict[str, int]:
        """What waits or is held on the broker, dead letters and the outcome log aside."""
        sizes: Counter[str] = Counter()
        for name, (ready, unacked) in self.depths().items():
            if name != OUTCOMES and not name.startswith("DLQ."):
                sizes["delayed" if name.startswith(DELAY_PREFIX) else name] += ready
                sizes["unacked"] += unacked
        return {name: size for name, size in sizes.items() if size}


def _free_ports() -> tuple[int, int, int]:
    """Three ports that nobody listens at."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(3):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(int(listener.getsockname()[1]))
    return found[0], found[1], found[2]


# the node that a run shares


def _shared_folder() -> Path:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()}"
    return Path(tempfile.gettempdir()) / f"redelivery-rabbit-{run}"


@contextlib.contextmanager
def shared_node() -> Iterator[Node]:
    """The run's node, started by whoever comes first."""
    folder = _shared_folder()
    with _used(folder):
        with (folder / "starting").open("a") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if not (folder / "ready.json").exists():
                _start_keeper(folder)
        ready = json.loads((folder / "ready.json").read_text())
        yield Node(folder / "node", tuple(ready["ports"]), ready["cookie"])


@contextlib.contextmanager
def _used(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, shared; a folder that its keeper has just removed is made anew."""
    while (users := _locked(folder)) is None:
        pass
    with users:
        yield


def _locked(folder: Path) -> IO[str] | None:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
        users = stack.enter_context((folder / "users").open("a"))
        fcntl.flock(users, fcntl.LOCK_SH)
        if os.fstat(users.fileno()).st_ino == (folder / "users").stat().st_ino:
            stack.pop_all()
            return users
    return None


def _start_keeper(folder: Path) -> None:
    """Start the keeper, and wait until its node is ready: under the lock, so that there is one."""
    command = [sys.executable, "-m", "tests.rabbit", str(folder)]
    log = os.open(folder / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    actions = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    keeper = os.posix_spawn(sys.executable, command, environment, file_actions=actions, setsid=True)
    os.close(log)
    deadline = time.monotonic() + PATIENCE + 60
    while not (folder / "ready.json").exists():
        ended, _ = os.waitpid(keeper, os.WNOHANG)
        said = (folder / "keeper.log").read_text("utf-8", "replace")[-3000:]
        assert not ended, f"the keeper of the node ended: {said}"
        assert time.monotonic() < deadline, f"the node is not ready: {said}"
        time.sleep(0.1)  # another process's doing can only be looked for


def keep(folder: Path) -> None:
    """Start the node, say so, and end it when nobody uses it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, whose end this waits for
    node = Node(folder / "node")
    with (folder / "users").open("a") as users:
        try:
            node.start()
            unfinished = folder / "ready"
            unfinished.write_text(json.dumps({"ports": node.ports, "cookie": node.cookie}))
            unfinished.rename(folder / "ready.json")
            fcntl.flock(users, fcntl.LOCK_EX)
        finally:
            node.stop()
            shutil.rmtree(folder, ignore_errors=True)


# fixtures


def _need_rabbit() -> None:
    if not installed():
        message = "there is no RabbitMQ on this machine: ./dev test installs it where it may (apt-get install rabbitmq-server)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)


@pytest.fixture(scope="session")
def rabbit_node() -> Iterator[Node]:
    """The run's node; a machine without RabbitMQ skips, but not in CI."""
    _need_rabbit()
    with shared_node() as node:
        yield node


@pytest.fixture
def rabbit(rabbit_node: Node) -> Iterator[Rabbit]:
    """A virtual host of the test's own."""
    made = rabbit_node.vhost()
    yield made
    made.remove()


@pytest.fixture
def private_rabbit(folder: Path) -> Iterator[Rabbit]:
    """A virtual host on a node of its own, which the test may kill and start again (`.node`)."""
    _need_rabbit()
    node = Node(folder / "rabbit")
    try:
        yield node.start().vhost()
    finally:
        node.stop()


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
