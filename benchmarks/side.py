"""A side of a comparison: one producer and one worker, on a fresh private broker. All sides have the same kind of broker.

A side can send a task, start a worker, and count the waiting messages. Measurements use nothing else of it, so the work is the same
on all sides.
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
#: In seconds: the timeouts of a worker's start and of its work, and the time between two counts of waiting messages.
READY, EMPTY, LOOK = 600.0, 1200.0, 0.01


@dataclass
class Side(ABC):
    """One side. `settings` are redelivery's. With `results` the tasks store results in the same broker."""

    name: str
    server: Server
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    results: bool = False

    def __post_init__(self) -> None:
        os.environ.update(self.environment)

    @functools.cached_property
    def client(self) -> Any:
        return self.server.client

    def broker_seconds(self) -> float:
        return broker_seconds(self.client)

    def spent(self, pid: int) -> Spent:
        """The processor seconds of the broker, and of the worker with this main process."""
        return Spent(self.broker_seconds(), used(pid), sum(used(each, with_ended=True) for each in below(pid)))

    @property
    def addresses(self) -> dict[str, str]:
        return {"BENCH_BROKER": self.server.url, "BENCH_SOCKET": self.server.socket}

    @property
    def environment(self) -> dict[str, str]:
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
        """A function that publishes a task with its arguments. Tasks: `noop`, `answer`, `failing`, `stamp`."""

    @abstractmethod
    def send_later(self, task: str, seconds: float, *args: Any) -> None:
        """Publish a task that is due in `seconds`."""

    @abstractmethod
    def command(self, pool: str, concurrency: int) -> list[str]:
        """The command of a worker with processes (pool `prefork`) or threads (`threads`)."""

    @abstractmethod
    def idle_command(self, count: int) -> list[str]:
        """The command of workers with one process each, below one main process."""

    @abstractmethod
    def waiting(self) -> int:
        """The number of messages that wait, are held, or are delayed."""

    def ready(self, pool: str, concurrency: int) -> int:
        """The number of processes that will report that they consume."""
        return concurrency if pool == "prefork" else 1

    def says_ready(self) -> int:
        """The number of processes that have reported that they consume."""
        return len(list(self.folder.glob("ready.*")))

    @contextmanager
    def worker(self, pool: str = "prefork", concurrency: int = 2) -> Iterator[subprocess.Popen[bytes]]:
        """A worker that consumes. It may already have begun earlier tasks."""
        with self.started(self.command(pool, concurrency), self.ready(pool, concurrency)) as process, profiled(process.pid):
            yield process

    @contextmanager
    def idle_workers(self, count: int) -> Iterator[subprocess.Popen[bytes]]:
        """Workers that consume. The process is their parent."""
        with self.started(self.idle_command(count), count) as process:
            yield process

    @contextmanager
    def started(self, command: list[str], ready: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """A process of this side. At the end it is killed with all processes that it has started."""
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
        return (self.folder / "worker.log").read_text(errors="replace")[-3000:]

    def wait_until_empty(self) -> float:
        """Wait until `waiting()` is 0 twice in a row. Returns the time of the first 0 (monotonic seconds).

        Raises `TimeoutError`, with the worker's output.
        """
        deadline, since = time.monotonic() + EMPTY, None
        while (now := time.monotonic()) < deadline:
            if self.waiting():
                since = None
            elif since is not None:
                return since
            else:
                since = now
            time.sleep(LOOK)
        msg = f"{self.name}: not empty after {EMPTY:g} s; the worker said: {self.log()}"
        raise TimeoutError(msg)


def _kill(pids: list[int]) -> None:
    """Kill all processes of a worker one by one, because some peers use several process groups."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
