"""The fleet: a private broker behind a proxy, and the processes of a run, which the fork server (`fork_server.py`) starts.

Each process has a slot (`worker-0`, `dispatcher`, ...) and its order. The fleet also counts the kills that no order asked for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from redis.exceptions import RedisError

from redelivery.middleware.brokers.redis.keys import SEPARATOR
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.running import ROOT, until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.faults.chaos.boundary import Order

__all__ = ["QUEUES", "Fleet", "Process"]

#: The queues of the fleet's app; the last is the dead-letter queue that a handler consumes.
QUEUES = ("celery", "counted", "capped", "aside", "judged", "DLQ.judged")


@dataclass
class Process:
    """One process of a run, forked by the fork server."""

    role: str
    order: Order | None
    log: Path
    since: float = field(default_factory=time.monotonic)
    pid: int = 0
    ended: int | None = None
    loaded_at: float | None = None
    name: str = ""
    #: The delayed task that it must revoke, once that task waits.
    revoked: str = ""
    is_asked_to_stop: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or is being started."""
        return self.ended is None

    @property
    def age(self) -> float:
        """Seconds since its start was ordered."""
        return time.monotonic() - self.since

    def has_said(self, words: bytes) -> bool:
        """Whether its log contains this text."""
        return self.log.exists() and words in self.log.read_bytes()

    def signal(self, number: int, *, group: bool = True) -> None:
        """Send a signal to the process, or to it and its children."""
        if self.pid and self.ended is None:
            with suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self.pid, number)

    def children(self) -> list[int]:
        """The processes of its pool."""
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as file:  # noqa: PTH123 - no path of a disk
                return [int(word) for word in file.read().split()]
        except OSError:
            return []


class Fleet:
    """The broker, the proxy and the processes. `build` names a deliberately broken build."""

    #: The package with the app and the boundaries of its processes, and further configuration of the app.
    PACKAGE = "tests.faults.chaos"
    CONF: ClassVar[dict[str, Any]] = {}
    #: Bytes that mark a request whose reply may be swallowed.
    NEEDLE = b"EVALSHA"

    def __init__(self, folder: Path, settings: dict[str, Any], build: str = "") -> None:
        self.folder = folder
        self.archive = folder / "archive"
        self.slots: dict[str, Process] = {}
        self.kills: Counter[str] = Counter()
        self._settings = {"dead_letter_archive": str(self.archive), **settings}
        self._build = build
        self._processes: dict[int, Process] = {}

    def open(self) -> None:
        """Start the broker, the proxy and the fork server."""
        self._open_broker()
        with (self.folder / "fork_server.log").open("wb") as log:
            self._fork_server = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.chaos.processes.fork_server"],
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="chaos-fork-server", daemon=True)
        self._listener.start()
        until(lambda: self._ready.is_set() or self._fork_server.poll() is not None, 120, "the fork server")
        assert self._fork_server.poll() is None, (self.folder / "fork_server.log").read_text()

    def _open_broker(self) -> None:
        options = {"appendonly": "yes", "appendfsync": "always"}
        self.server = Server(self.folder, binaries()["valkey"], options).start()
        self.client = self.server.client
        self.proxy = Proxy(self.server.socket).start()

    def _close_broker(self) -> None:
        self.proxy.stop()
        self.server.stop(9)

    def restart(self) -> None:
        """Kill the broker, and start it again."""
        self.server.kill()
        self.server.start()

    @property
    def _url(self) -> str:
        """Where the fleet finds its broker."""
        return self.proxy.url

    def _environment(self) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SHOP_", "REDELIVERY_", "CHAOS_"))}
        environment.update(
            SHOP_BROKER=self._url,
            SHOP_SETTINGS=json.dumps(self._settings),
            SHOP_CONF=json.dumps({"worker_hijack_root_logger": True, "broker_connection_retry_on_startup": True, **self.CONF}),
            SHOP_RUNS=str(self.folder / "runs"),
            SHOP_READY=str(self.folder / "ready"),
            CHAOS_KILLS=str(self.folder / "kills"),
            CHAOS_BUILD=self._build,
            CHAOS_PACKAGE=self.PACKAGE,
            CHAOS_LEDGER=str(self.folder / "ledger"),
            PYTHONPATH=str(ROOT),
            PYTHONDONTWRITEBYTECODE="1",
        )
        return environment

    def close(self) -> None:
        """End everything."""
        for process in self._processes.values():
            process.signal(signal.SIGKILL)
        assert self._fork_server.stdin is not None
        self._fork_server.stdin.close()
        self._fork_server.wait(60)
        self._listener.join(60)
        self._close_broker()

    def _listen(self) -> None:
        assert self._fork_server.stdout is not None
        with self._fork_server.stdout as lines:
            for line in lines:
                said = json.loads(line)
                if "ready" in said:
                    self._ready.set()
                elif "pid" in said:
                    self._processes[said["number"]].pid = said["pid"]
                else:
                    process = self._processes[said["number"]]
                    if process.pid:
                        with suppress(ProcessLookupError, PermissionError):
                            os.killpg(process.pid, signal.SIGKILL)  # what is left of its pool
                    process.ended = said["ended"]

    # processes

    def start(
        self,
        role: str,
        argv: list[str],
        order: Order | None = None,
        *,
        children: str = "",
        slot: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a process, with its order; in this slot, if any."""
        number = len(self._processes)
        process = Process(role, order, self.folder / f"{role}-{number}.log")
        self._processes[number] = process
        variables = {"CHAOS_ORDER": str(order or ""), "CHAOS_ROLE": role, "CHAOS_CHILDREN": children, **(environment or {})}
        line = json.dumps({"number": number, "argv": argv, "env": variables, "log": str(process.log)}) + "\n"
        assert self._fork_server.stdin is not None
        self._fork_server.stdin.write(line.encode())
        self._fork_server.stdin.flush()
        if slot:
            self.slots[slot] = process
        return process

    def start_worker(self, pool: str, queues: str, order: Order | None, *, children: str = "", slot: str = "") -> Process:
        """Start a worker of two."""
        name = f"w{len(self._processes)}@chaos"
        argv = ["worker", "-P", pool, "-c", "2", "-n", name, "-Q", queues, "-l", "INFO", "--without-gossip", "--without-mingle"]
        children = children if pool == "prefork" else ""
        process = self.start("worker", argv, order, children=children, slot=slot, environment=self._more_variables(queues))
        process.name = name
        return process

    def _more_variables(self, queues: str) -> Mapping[str, str]:  # noqa: ARG002 - another broker's workers are told more
        """Further environment variables of a worker of these queues."""
        return {}

    def ask(self, *words: str) -> Process:
        """Run one command to its end. Raises `AssertionError` where it fails."""
        process = self.start("asked", ["redelivery", *words])
        until(lambda: not process.is_alive, 120, " ".join(words))
        assert process.ended == 0, process.log.read_text()
        return process

    def alive(self, slot: str) -> Process | None:
        """The live process in this slot, if any."""
        process = self.slots.get(slot)
        return process if process is not None and process.is_alive else None

    def workers(self) -> list[Process]:
        """The workers that are alive."""
        return [each for slot, each in self.slots.items() if slot.startswith("worker") and each.is_alive]

    def slay(self, process: Process, why: str, *, group: bool = True) -> None:
        """Kill a process wherever it is."""
        if process.is_alive and process.pid:
            self.kills[f"{process.role}:{why}"] += 1
            process.signal(signal.SIGKILL, group=group)

    # what is on the broker

    def waiting(self) -> int | None:
        """How many messages wait in a queue or in the delay store, or are held; None if the broker does not answer."""
        try:
            with self.client.pipeline(transaction=False) as pipe:
                for queue in QUEUES:
                    for step in ("", *(f"{SEPARATOR}{step}" for step in (3, 6, 9))):
                        pipe.llen(f"{queue}{step}")
                        pipe.zcard(f"redelivery:delayed:due:{queue}{step}")
                pipe.hlen("unacked")
                return sum(map(int, pipe.execute()))
        except RedisError:
            return None

    def delayed(self, seconds: float) -> int:
        """How many messages wait in the delay store for longer than this."""
        now = self.client.time()[0] + seconds
        lists = [name.decode() for name in self.client.zrange("redelivery:delayed", 0, -1)]
        return sum(int(self.client.zcount(f"redelivery:delayed:due:{name}", now * 1000, "+inf")) for name in lists)

    def is_delayed(self, task_id: str) -> bool:
        """Whether a task waits in the delay store."""
        return bool(self.client.zrangebylex("redelivery:delayed:tasks", f"[{task_id}", f"({task_id}\xff", 0, 1))

    def letter_queues(self) -> list[str]:
        """The dead-letter queues."""
        return [name.decode() for name in self.client.hkeys("redelivery:dead_letter_queues")]
