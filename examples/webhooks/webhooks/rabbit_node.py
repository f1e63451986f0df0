"""A private RabbitMQ node from Debian's package, for the demo and for the project's tests.

It listens on the loopback, with its own ports, epmd, cookie and data. It does not touch the machine's own RabbitMQ. After an end
it can be started again with its data. Node and epmd end with the process that started them, even if that is killed. A start takes
6 s on an idle machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import amqp

from redelivery.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Debian's programs. The commands on the path are wrappers, which switch to another user.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
#: Erlang's name service.
EPMD = "epmd"
MISSING = "there is no RabbitMQ on this machine: install it (as root: apt-get install --no-install-recommends rabbitmq-server)"
#: Seconds that a node may take to start, and a command to answer.
TIMEOUT, COMMAND_TIMEOUT = 240.0, 120.0
#: Runs a program, and kills its group when its standard input is closed, because the starting process has ended.
LIFELINE = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -KILL 0) & exec 3<&-; exec "$@"'
#: The default user, which RabbitMQ accepts only from the loopback.
USER = "guest"
#: The last characters of the node's output in an error.
MAX_SAID = 3000
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


def is_installed() -> bool:
    """Whether this machine has Debian's RabbitMQ."""
    return (PROGRAMS / "rabbitmq-server").exists() and shutil.which(EPMD) is not None


@dataclass
class RabbitNode:
    """One node. `ports` are those of AMQP, epmd and Erlang's distribution."""

    folder: Path
    ports: tuple[int, int, int] = (0, 0, 0)
    cookie: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[bytes] | None = None
    epmd: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port of AMQP."""
        return self.ports[0]

    @property
    def name(self) -> str:
        """The Erlang node's name."""
        return f"rd{self.port}@localhost"

    @property
    def url(self) -> str:
        """The broker URL for Celery, of the first virtual host."""
        return f"amqp://{USER}:{USER}@127.0.0.1:{self.port}//"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the node and its commands."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return kept | {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self.ports[1]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Otherwise a program of Erlang that finds no epmd starts one that never ends.
            "ERL_ZFLAGS": "-start_epmd false",
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

    def start(self) -> Self:
        """Start the node, or start it again, and wait until it answers. Raises `BrokerError` if it does not."""
        if not is_installed():
            raise BrokerError(MISSING)
        if not self.port:
            self.prepare()
        if self.epmd is None:
            self.epmd = self._run(EPMD, "-port", str(self.ports[1]), "-address", "127.0.0.1")
        self._wait(self.epmd, self._resolves, "epmd")
        self.process = self._run(str(PROGRAMS / "rabbitmq-server"))
        self._wait(self.process, self._answers, "RabbitMQ node")
        return self

    def kill(self) -> None:
        """SIGKILL the node and its helpers."""
        if self.process is not None:
            _end(self.process)
            self.process = None

    def stop(self) -> None:
        """End the node and its epmd."""
        self.kill()
        if self.epmd is not None:
            _end(self.epmd)
            self.epmd = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Start the node, and end it with the block. Raises as `start`."""
        try:
            yield self.start()
        finally:
            self.stop()

    def ctl(self, *words: str) -> str:
        """Run `rabbitmqctl`, which takes a second or two of CPU; returns its output. Raises `BrokerError` if it fails."""
        command = [str(PROGRAMS / "rabbitmqctl"), "-n", self.name, "--quiet", *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False)
        if done.returncode:
            msg = f"rabbitmqctl {' '.join(words)} failed: {(done.stdout + done.stderr)[-MAX_SAID:].strip()}"
            raise BrokerError(msg)
        return done.stdout

    def prepare(self) -> None:
        """Write the files of the node: `rabbitmq.conf`, and `plugins`, to which a caller may add before the start."""
        self.ports = _free_ports()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "rabbitmq.conf").write_text(CONF.format(port=self.port))
        (self.folder / "plugins").write_text("[].\n")
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(self.cookie)
        cookie.chmod(0o400)

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "node.log").open("ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", LIFELINE, "sh", *command],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait(self, process: subprocess.Popen[bytes], ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "node.log").read_text("utf-8", "replace")[-MAX_SAID:].strip()
                how = "ended" if process.poll() is not None else "does not answer"
                msg = f"the private {what} {how}: {log or 'it said nothing'}"
                raise BrokerError(msg)
            time.sleep(0.1)  # a starting node gives no signal

    def _resolves(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[1]), 5):
            return True
        return False

    def _answers(self) -> bool:
        connection = amqp.Connection(f"127.0.0.1:{self.port}", USER, USER, connect_timeout=5)
        try:
            connection.connect()
            connection.close()
        except (OSError, amqp.AMQPError):
            return False
        return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    if process.stdin is not None:
        process.stdin.close()


def _free_ports() -> tuple[int, int, int]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(3):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(int(listener.getsockname()[1]))
    return found[0], found[1], found[2]
