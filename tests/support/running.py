"""Real workers in their own processes, and what they leave on the broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Celery

from redelivery import Redelivery
from tests.support.forked import ForkedProcess, forked_worker
from tests.support.signals import is_handled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redelivery.middleware.messages.events import Event
    from tests.support.servers import Server

__all__ = ["Shop", "Worker", "until"]

ROOT = Path(__file__).resolve().parents[2]
#: The pools whose workers may be forked. gevent and eventlet must patch modules before they are imported.
FORKED = ("prefork", "threads", "solo")
#: The workers that were started last. A failed test shows their logs.
LAST_STARTED: deque[Worker] = deque(maxlen=4)


def until(condition: Callable[[], Any], seconds: float = 60, what: str = "") -> Any:
    """Wait for a condition of another process, and return its value. Raises `AssertionError` after `seconds`."""
    began, pause = time.monotonic(), 0.02
    while True:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > began + seconds:
            message = f"waited {seconds} s in vain for {what or condition}"
            raise AssertionError(message)
        # Another process can only be polled. The pause leaves it most of the processor time.
        time.sleep(max(pause, min(2 * (now - asked), 1)))
        pause = min(pause * 1.25, 0.1)


@dataclass
class Worker:
    """One worker process, in its own process group."""

    process: subprocess.Popen[bytes] | ForkedProcess
    log: Path

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        """Send a signal, and wait for the end. Returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def dump_stacks(self) -> None:
        """Let a forked worker and its children log the stacks of all their threads."""
        if not isinstance(self.process, ForkedProcess) or self.process.poll() is not None:
            return
        for pid in (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()):
            with suppress(ProcessLookupError, AssertionError):  # the process has ended or is stopped
                if os.getpgid(pid) == self.process.pid:
                    os.kill(pid, signal.SIGUSR2)
                    until(partial(is_handled, pid, signal.SIGUSR2), 2)

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")


@dataclass
class Shop:
    """The tests' app on one private broker: its producers here, its workers in processes.

    `server` may also be a `tests.support.rabbit.Rabbit`, for tests that use only its URL, events, letters and leftovers. `backend`
    is the address of a result backend, or whether the broker is the backend. `versions` are the versions that libraries report in a
    worker. `sociable` workers use mingle and gossip, Celery's default, which takes a second at each start. `imports_early`: workers
    are forked from a process that has imported the project before their app.
    """

    imports_early: ClassVar[bool] = True

    server: Server
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    conf: dict[str, Any] = field(default_factory=dict)
    backend: bool | str = False
    plain: bool = False
    module: str = "tests.support.shop"
    versions: dict[str, str] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    broker: str = ""
    sociable: bool = False
    _app: Celery | None = None

    @property
    def environment(self) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SHOP_", "REDELIVERY_"))}
        environment.update(
            SHOP_BROKER=self.broker or self.server.url,
            SHOP_SETTINGS=json.dumps(self.settings),
            SHOP_CONF=json.dumps(self.conf),
            SHOP_VERSIONS=json.dumps(self.versions),
            SHOP_RUNS=str(self.folder / "runs"),
            SHOP_READY=str(self.folder / "ready"),
            PYTHONPATH=str(ROOT),
            PYTHONDONTWRITEBYTECODE="1",
        )
        if self.backend:
            environment["SHOP_BACKEND"] = self._backend_url
        if self.plain:
            environment["SHOP_PLAIN"] = "1"
        return environment

    @property
    def _backend_url(self) -> str:
        return self.backend if isinstance(self.backend, str) else self.server.url

    @property
    def app(self) -> Celery:
        """The app of a producer, which knows only the names of tasks."""
        if self._app is None:
            self._app = Celery("producer", broker=self.broker or self.server.url, set_as_current=False)
            self._app.conf.update(self.conf, redelivery=self.settings)
            if self.backend:
                self._app.conf.result_backend = self._backend_url
            if not self.plain:
                Redelivery(self._app)
        return self._app

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Publish a task. Returns its id."""
        return str(self.app.send_task(f"{self.module}.{task}", args, options.pop("kwargs", None), **options).id)

    def start(self, *words: str, pool: str = "prefork", concurrency: int = 2, wait: bool = True, out: int | None = None) -> Worker:
        """Start a worker, and wait until it consumes. Its output goes to its log, or to `out`."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        log = self.folder / f"worker-{len(self.workers)}.log"
        given = ("-P", pool, "-c", str(concurrency), "-n", f"w{len(self.workers)}@shop", "-l", "INFO")
        alone = () if self.sociable else ("--without-gossip", "--without-mingle")
        words = ("-A", self.module, "worker", *given, *alone, *words)
        if out is None and pool in FORKED:
            process: Any = forked_worker(words, env=self.environment, cwd=self.folder, log=log, ours=self.imports_early)
        else:
            process = self._spawned(words, log, out)
        worker = Worker(process, log)
        self.workers.append(worker)
        LAST_STARTED.append(worker)
        if wait:
            until(lambda: ready.exists() or process.poll() is not None, 60, "the worker to be ready")
            assert ready.exists(), worker.text[-3000:]  # it may already have ended, as in tests of a death
        return worker

    def _spawned(self, words: Sequence[str], log: Path, out: int | None) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "celery", *words],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file if out is None else out,
                stderr=file if out is None else out,
                start_new_session=True,
            )

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        consumer = getattr(self._app.backend, "result_consumer", None) if self._app is not None and self.backend else None
        if consumer is not None:
            consumer.stop()
            consumer._pubsub = None  # Celery 5.6 would try to connect in each result's `__del__`, for 20 s

    # look at the broker and the notes

    @property
    def events(self) -> list[Event]:
        return self.server.events(self.conf.get("prefix", ""))

    def events_of(self, task_id: str) -> list[Event]:
        return [event for event in self.events if event.task_id == task_id]

    def outcomes_of(self, task_id: str) -> list[str]:
        return [str(event.outcome) for event in self.events_of(task_id)]

    def runs(self, task_id: str | None = None) -> list[dict[str, Any]]:
        """The notes of the tasks, or of one task."""
        path = self.folder / "runs"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if task_id is None or line["id"] == task_id]

    def ended(self, task_id: str, outcome: str, seconds: float = 60) -> Event:
        """Wait until a task has this outcome. Returns its event."""
        found: list[Event] = until(
            lambda: [event for event in self.events_of(task_id) if event.outcome == outcome],
            seconds,
            f"{task_id} to be {outcome}, not {self.outcomes_of(task_id)}",
        )
        return found[-1]

    def letters(self, queue: str = "DLQ.celery") -> list[dict[str, Any]]:
        """The letters in a dead-letter queue, the newest first."""
        return self.server.letters(queue)

    def leftovers(self) -> dict[str, int]:
        """The numbers of waiting and held messages."""
        return self.server.leftovers()
