"""Celery workers that are forked from a process which has imported Celery: a start costs a third of the processor time.

`python -m tests.support.forked` is that process. With the argument `ours` it has imported the project, too. It reads orders (JSON
lines), and answers with the id of each process that it forks, and id and exit code of each process that ends. It reaps a process
only after an order says that the exit code is known, so that no signal reaches a new process with the same id. It ends with its
input.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
#: Modules that nearly each worker imports.
IMPORTED = (
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.apps.worker",
    "celery.worker.consumer",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.consumer.delayed_delivery",
    "billiard.popen_fork",
    "billiard.sharedctypes",
    "kombu.transport.redis",
    "kombu.transport.pyamqp",
    "structlog",
    "tenacity",
)
#: The project's modules that nearly each worker imports, on each broker.
OURS = (
    "redelivery.middleware.install",
    "redelivery.middleware.worker.bootstep",
    "redelivery.middleware.brokers.rabbitmq.transport",
    "redelivery.workers.duties.bootstep",
    "redelivery.workers.duties.remote_control",
    "redelivery.workers.brokers.redis.checkup",
    "redelivery.workers.brokers.redis.inventory",
    "redelivery.workers.brokers.redis.operations",
    "redelivery.workers.brokers.redis.task_life",
    "redelivery.workers.brokers.rabbitmq.checkup",
    "redelivery.workers.brokers.rabbitmq.inventory",
    "redelivery.workers.brokers.rabbitmq.letters",
)
#: Variables that may differ between processes that are forked from the same process.
OWN = ("SHOP_", "REDELIVERY_", "CHAOS_", "PYTEST_CURRENT_TEST")


class ForkedProcess:
    """A forked process, with the interface of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None
        self.ended_with = 0
        self.has_ended = threading.Event()

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal; None while it runs."""
        return self.wait(0) if self.has_ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code. Raises `subprocess.TimeoutExpired`."""
        if not self.has_ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self._server.note(self)
        return self.ended_with

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The forking process and its forked processes, for any thread."""

    def __init__(self, environment: Mapping[str, str], *more: str) -> None:
        self._starting, self._writing = threading.Lock(), threading.Lock()
        self._answers = threading.Condition()
        self._begun: list[ForkedProcess] = []
        self._living: dict[int, ForkedProcess] = {}
        command = [sys.executable, "-m", "tests.support.forked", *more]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, text=True, **pipes)  # type: ignore[call-overload]
        threading.Thread(target=self._listen, args=(self._process.stdout,), name="forked", daemon=True).start()
        atexit.register(self.close)

    def close(self) -> None:
        """End the forking process. Its forked processes go on."""
        self._process.stdin.close()
        self._process.wait()

    def start(self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> ForkedProcess:
        """Run `celery` with these words in a new session."""
        log.write_bytes(b"")
        order = {"words": list(words), "env": dict(env), "cwd": str(cwd), "log": str(log)}
        with self._starting:
            self._tell(order)
            with self._answers:
                self._answers.wait_for(lambda: self._begun or self._process.poll() is not None, 60)
                return self._begun.pop()

    def note(self, process: ForkedProcess) -> None:
        """Report that the exit code of a process is known, so that the forking process can reap it."""
        with self._answers:
            if process.returncode is None:
                process.returncode = process.ended_with
                self._tell({"known": process.pid})

    def _tell(self, order: dict[str, Any]) -> None:
        with self._writing:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def _listen(self, answers: IO[str]) -> None:
        for line in answers:
            answer = json.loads(line)
            with self._answers:
                if "ended" in answer:
                    process = self._living.pop(answer["pid"])
                    process.ended_with = answer["ended"]
                    process.has_ended.set()
                else:
                    begun = self._living[answer["pid"]] = ForkedProcess(self, answer["pid"])
                    self._begun.append(begun)
                self._answers.notify_all()


_FORK_SERVERS: dict[tuple[tuple[str, ...], ...], ForkServer] = {}


def forked_worker(words: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, ours: bool = False) -> ForkedProcess:
    """Run `celery` with these words, forked from the process for this environment.

    `ours`: the process may have imported the project. It has not if another version may come first on the path.
    """
    shared = {name: value for name, value in env.items() if not name.startswith(OWN)}
    more = ("ours",) if ours and env.get("PYTHONPATH") == str(ROOT) else ()
    key = (more, *sorted(shared.items()))
    if key not in _FORK_SERVERS:
        _FORK_SERVERS[key] = ForkServer(shared, *more)
    return _FORK_SERVERS[key].start(words, env=env, cwd=cwd, log=log)


# the process that forks


def serve() -> dict[str, Any] | None:
    """Fork as ordered. Returns the order in each forked process, and None at the end of the input."""
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    living: set[int] = set()
    buffer = b""
    while True:
        ready = select.select([0, wakes], [], [])[0]
        if wakes in ready:
            os.read(wakes, 4096)
        if 0 in ready:
            chunk = os.read(0, 65536)
            if not chunk:
                return None
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                order: dict[str, Any] = json.loads(line)
                if "known" in order:
                    os.waitpid(order["known"], 0)
                    continue
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wakes)
                    os.close(woken)
                    return order
                living.add(pid)
        for pid in list(living):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None:
                living.discard(pid)
                _answer(pid=pid, ended=ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)


def _answer(**answer: int) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def become(order: dict[str, Any]) -> None:
    """Run `python -m celery` as ordered, in this process."""
    os.setsid()
    _answer(pid=os.getpid())
    null, log = os.open(os.devnull, os.O_RDONLY), os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, target in enumerate((null, log, log)):
        os.dup2(target, number)
    os.close(null)
    os.close(log)
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # for `Worker.dump_stacks`
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    main = importlib.import_module("celery.__main__")
    sys.path[0], sys.argv = order["cwd"], [str(main.__file__), *order["words"]]
    main.main()


if __name__ == "__main__":
    for each in (*IMPORTED, *(OURS if "ours" in sys.argv else ())):
        importlib.import_module(each)
    gc.freeze()  # forked processes need not look at what is here
    if (ordered := serve()) is not None:
        become(ordered)
