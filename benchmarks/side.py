"""A side of a comparison: one producer and one worker, on a fresh private broker of the same kind as every other side's.

A side's name and its app's settings give a way to send a task, to start a worker, and to count the waiting messages. The measures
use nothing else of a side, so that each of them is the same work for all sides.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processor import Spent, below, broker_seconds, used
from benchmarks.profiling import profiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import Server

__all__ = ["LOOK", "ROOT", "Side"]

ROOT = Path(__file__).resolve().parent.parent
#: How long a worker may take to be ready, and the time between two looks at the waiting messages (seconds).
READY, LOOK = 600.0, 0.01


@dataclass
class Side(ABC):
    """One side. `settings` are redelivery's; with `results` its tasks keep their results in the same broker."""

    name: str
    server: Server
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    results: bool = False

    def __post_init__(self) -> None:
        os.environ.update(self.environment)

    @functools.cached_property
    def client(self) -> Any:
        """A client of the broker, if that is a Valkey."""
        return self.server.client

    def broker_seconds(self) -> float:
        """Seconds of processor that the broker has used."""
        return broker_seconds(self.client)

    def spent(self, pid: int) -> Spent:
        """Seconds of processor so far: of the broker, and of the worker whose main process this is."""
        return Spent(self.broker_seconds(), used(pid), sum(used(each, with_ended=True) for each in below(pid)))

    @property
    def addresses(self) -> dict[str, str]:
        """The address of the broker."""
        return {"BENCH_BROKER": self.server.url, "BENCH_SOCKET": self.server.socket}

    @property
    def environment(self) -> dict[str, str]:
        """The environment that the modules of its tasks read."""
        return {
            **self.addresses,
            "BENCH_SIDE": self.name,
            "BENCH_READY": str(self.folder / "ready"),
            "BENCH_SETTINGS": json.dumps(self.settings),
            "BENCH_RESULTS": "1" if self.results else "",
            "PYTHONPATH": str(ROOT),
        }

    @abstractmethod
    def sender(self, task: str) -> Callable[..., Any]:
        """A function that publishes one task, with the task's arguments. Tasks: `noop`, `answer`, `failing`, `stamp`."""

    @abstractmethod
    def send_later(self, task: str, seconds: float, *args: Any) -> None:
        """Publish one task that is due so many seconds from now."""

    @abstractmethod
    def command(self, pool: str, concurrency: int) -> list[str]:
        """A worker with so many processes (pool `prefork`) or threads (`threads`)."""

    @abstractmethod
    def idle_command(self, count: int) -> list[str]:
        """So many workers of one process each, below one main process."""

    @abstractmethod
    def waiting(self) -> int:
        """How many messages wait, are held, or are delayed."""

    def ready(self, pool: str, concurrency: int) -> int:
        """How many processes will report that they consume."""
        return concurrency if pool == "prefork" else 1

    def says_ready(self) -> int:
        """How many processes have reported so by now."""
        return len(list(self.folder.glob("ready.*")))

    @contextmanager
    def worker(self, pool: str = "prefork", concurrency: int = 2) -> Iterator[subprocess.Popen[bytes]]:
        """A worker that consumes; it may already have begun tasks that were published before."""
        with self.started(self.command(pool, concurrency), self.ready(pool, concurrency)) as process, profiled(process.pid):
            yield process

    @contextmanager
    def idle_workers(self, count: int) -> Iterator[subprocess.Popen[bytes]]:
        """So many workers; the process is the parent of all of them."""
        with self.started(self.idle_command(count), count) as process:
            yield process

    @contextmanager
    def started(self, command: list[str], ready: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """A process of this side; it is killed at the end, with all processes that it has started."""
        for each in self.folder.glob("ready.*"):
            each.unlink()
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **self.environment}, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait_until_ready(process, ready)
            yield process
        finally:
            _kill([process.pid, *below(process.pid)])
            process.wait()

    def _wait_until_ready(self, process: subprocess.Popen[bytes], ready: int) -> None:
        deadline = time.monotonic() + READY
        while self.says_ready() < ready:
            if process.poll() is not None or time.monotonic() > deadline:
                msg = f"{self.name}: the worker is not ready; it said: {self.log()}"
                raise RuntimeError(msg)
            time.sleep(0.005)

    def log(self) -> str:
        """The end of the worker's output."""
        return (self.folder / "worker.log").read_text(errors="replace")[-3000:]

    def wait_until_empty(self, seconds: float = 1200) -> float:
        """Wait until no message waits, is held or is delayed at two looks in a row; returns when the first was (monotonic seconds).

        Raises `TimeoutError`, with the worker's output.
        """
        deadline, since = time.monotonic() + seconds, None
        while (now := time.monotonic()) < deadline:
            if self.waiting():
                since = None
            elif since is not None:
                return since
            else:
                since = now
            time.sleep(LOOK)
        msg = f"{self.name}: not empty after {seconds} s; the worker said: {self.log()}"
        raise TimeoutError(msg)


def _kill(pids: list[int]) -> None:
    """Kill all of a worker's processes: some peers put theirs into groups of their own."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
