"""Private RabbitMQ nodes, each with its own epmd, ports, folder and cookie, ended by process id.

All processes of a test run share one node, on which each test has its own virtual host. Each process that uses the node holds a
shared lock on a file. A keeper process starts the node, waits for the exclusive lock, and then ends the node. So the node ends even
if test processes are killed. Tests that kill, restart or alarm the broker have their own node (`private_rabbit`).
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
from celery._state import _get_active_apps
from kombu import Connection
from webhooks.rabbit_node import TIMEOUT as NODE_PATIENCE
from webhooks.rabbit_node import USER, RabbitNode, is_installed

from redelivery.middleware.brokers.rabbitmq.events import events_of
from redelivery.middleware.brokers.rabbitmq.names import AUDIT, DELAY_PREFIX, JOURNAL, OUTCOMES, OUTCOMES_EXCHANGE
from redelivery.middleware.brokers.rabbitmq.peek import Look
from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
from redelivery.middleware.messages.steps import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.messages.events import Event

__all__ = ["Node", "Rabbit", "managed_node", "need_rabbit", "private_rabbit", "rabbit", "rabbit_node"]

#: The timeout of the keeper's start in seconds: that of its node, and a minute.
TIMEOUT = NODE_PATIENCE + 60
#: The tests' queue at the exchange of the outcome log.
TAP = "tests.tap"


def installed() -> bool:
    """Whether this machine has Debian's RabbitMQ, and Erlang's `erl_call`."""
    return is_installed() and shutil.which("erl_call") is not None


@dataclass
class Node(RabbitNode):
    """One node, with operations that only tests need."""

    def evaluate(self, code: str) -> str:
        """Evaluate Erlang on the node in 50 ms, where a command takes seconds. Raises `AssertionError` on a failure."""
        command = ["erl_call", "-sname", self.name, "-c", self.cookie, "-h", f"c{uuid.uuid4().hex[:12]}", "-e"]
        given: Any = {"input": f"{code}\n", "env": self.environment, "capture_output": True, "text": True}
        done = subprocess.run(command, **given, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("{ok,"), done.stdout + done.stderr
        return str(done.stdout).removeprefix("{ok, ").removesuffix("}")

    def vhost(self) -> Rabbit:
        rabbit = Rabbit(self, f"v{uuid.uuid4().hex[:12]}")
        rabbit.add()
        rabbit.tap()
        return rabbit


@dataclass
class Rabbit:
    """One virtual host of a node, with the interface that tests of any broker use."""

    node: Node
    name: str
    _events: dict[str, Event] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{USER}@127.0.0.1:{self.node.port}/{self.name}"

    def add(self) -> None:
        name = f'<<"{self.name}">>'
        everything = ", ".join(['<<".*">>'] * 3)
        self.node.evaluate(
            f'ok = rabbit_vhost:add({name}, <<"tests">>), '
            f'ok = rabbit_auth_backend_internal:set_permissions(<<"{USER}">>, {name}, {everything}, <<"tests">>).'
        )

    def remove(self) -> None:
        """Close this process's transports, which would wait for the virtual host and log that; delete it in the background."""
        for app in list(_get_active_apps()):
            transport = vars(getattr(app, "redelivery", app)).get("transport")
            if isinstance(transport, AmqpTransport) and self.name in str(app.conf.broker_url):
                transport.close()
        self.node.evaluate(f'spawn(fun() -> rabbit_vhost:delete(<<"{self.name}">>, <<"tests">>) end), ok.')

    def connection(self) -> Connection:
        """A new connection; the caller closes it."""
        return Connection(self.url)

    def ctl(self, command: str, *words: str) -> str:
        """`rabbitmqctl COMMAND -p <this virtual host> …`."""
        return self.node.ctl(command, "-p", self.name, *words)

    def depth(self, queue: str) -> int | None:
        """The number of ready messages in a queue; None if there is no such queue."""
        with self.connection() as connection:
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except amqp.NotFound:
                return None

    def depths(self) -> dict[str, tuple[int, int]]:
        """For every queue: the numbers of ready and of unacknowledged messages."""
        # A quorum queue updates its figures only every five seconds, so ask the queue itself.
        code = (
            "Unacked = fun(Q) -> case amqqueue:get_type(Q) of "
            "rabbit_quorum_queue -> {ok, {_, Out}, _} = "
            "ra:leader_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_checked_out/1), Out; "
            "_ -> proplists:get_value(messages_unacknowledged, rabbit_amqqueue:info(Q, [messages_unacknowledged])) end end, "
            "Ready = fun(Q) -> {ok, N, _} = rabbit_amqqueue:stat(Q), N end, "
            'Line = fun(Q) -> io_lib:format("~s\\t~p\\t~p\\n", [element(4, amqqueue:get_name(Q)), Ready(Q), Unacked(Q)]) end, '
            # A queue may be deleted meanwhile.
            "Told = fun(Q) -> try Line(Q) catch exit:{normal, _} -> []; exit:{noproc, _} -> [] end end, "
            f'lists:flatten([Told(Q) || Q <- rabbit_amqqueue:list(<<"{self.name}">>)]).'
        )
        lines = [line.split("\t") for line in json.loads(self.node.evaluate(code) or '""').splitlines()]
        return {name: (int(ready), int(unacked)) for name, ready, unacked in lines if name != TAP}

    def exchanges(self) -> set[str]:
        line = 'begin {resource, _, _, Name} = proplists:get_value(name, rabbit_exchange:info(X, [name])), [Name, "\\n"] end'
        code = f'lists:flatten([binary_to_list(iolist_to_binary({line})) || X <- rabbit_exchange:list(<<"{self.name}">>)]).'
        return set(json.loads(self.node.evaluate(code)).splitlines())

    # the interface of all brokers

    def tap(self) -> None:
        """Receive all events from now on, through a queue of the tests next to the outcome log."""
        with self.connection() as connection:
            channel = connection.default_channel
            channel.queue_declare(TAP, durable=True, auto_delete=False)
            channel.queue_bind(TAP, OUTCOMES_EXCHANGE, OUTCOMES)

    def events(self, prefix: str = "") -> list[Event]:  # noqa: ARG002 - a virtual host has no prefix
        """All recorded events, each once, in the order of their times."""
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
        """The numbers of waiting and held messages, without dead letters, the outcome log, the journal and the audit."""
        sizes: Counter[str] = Counter()
        for name, (ready, unacked) in self.depths().items():
            if name not in {OUTCOMES, JOURNAL, AUDIT} and not name.startswith("DLQ."):
                sizes["delayed" if name.startswith(DELAY_PREFIX) else name] += ready
                sizes["unacked"] += unacked
        return {name: size for name, size in sizes.items() if size}


# the shared node of a run


def _shared_folder() -> Path:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()}"
    return Path(tempfile.gettempdir()) / f"redelivery-rabbit-{run}"


@contextlib.contextmanager
def shared_node() -> Iterator[Node]:
    """The run's node. The first process starts it."""
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
    """Hold the shared lock of the folder. A folder that its keeper has just removed is created again."""
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
    """Start the keeper, and wait until its node is ready. The caller holds the lock, so there is only one."""
    command = [sys.executable, "-m", "tests.support.rabbit", str(folder)]
    log = os.open(folder / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    actions = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    keeper = os.posix_spawn(sys.executable, command, environment, file_actions=actions, setsid=True)
    os.close(log)
    deadline = time.monotonic() + TIMEOUT
    while not (folder / "ready.json").exists():
        ended, _ = os.waitpid(keeper, os.WNOHANG)
        said = (folder / "keeper.log").read_text("utf-8", "replace")[-3000:]
        assert not ended, f"the keeper of the node ended: {said}"
        assert time.monotonic() < deadline, f"the node is not ready: {said}"
        time.sleep(0.1)  # another process can only be polled


def keep(folder: Path) -> None:
    """Start the node, report it, and end it when no process uses it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and the keeper waits for their end
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


def need_rabbit() -> None:
    """Skip a test if the machine has no RabbitMQ; in CI, fail it."""
    if not installed():
        message = "there is no RabbitMQ on this machine: ./dev test installs it where it may (apt-get install rabbitmq-server)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)


@pytest.fixture(scope="session")
def rabbit_node() -> Iterator[Node]:
    need_rabbit()
    with shared_node() as node:
        yield node


@pytest.fixture
def rabbit(rabbit_node: Node) -> Iterator[Rabbit]:
    made = rabbit_node.vhost()
    yield made
    made.remove()


@pytest.fixture
def private_rabbit(folder: Path) -> Iterator[Rabbit]:
    """A virtual host on its own node (`.node`), which the test may kill and start again."""
    need_rabbit()
    node = Node(folder / "rabbit")
    try:
        yield node.start().vhost()
    finally:
        node.stop()


@pytest.fixture(scope="module")
def managed_node() -> Iterator[tuple[Node, str]]:
    """A node with the management plugin, and the address of the plugin."""
    need_rabbit()
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as folder:
        node = Node(Path(folder) / "node")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        node.prepare()
        (node.folder / "plugins").write_text("[rabbitmq_management].\n")
        with (node.folder / "rabbitmq.conf").open("a") as conf:
            conf.write(f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n")
        with node.running():
            yield node, f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
