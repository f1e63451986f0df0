"""The two sides of a comparison: the same worker on the same kind of broker, plain and with redelivery."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

__all__ = ["Side", "side"]

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Side:
    """One side: its broker, its producer, its worker."""

    name: str
    server: Server
    folder: Path
    settings: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        """What its processes need."""
        return {
            **os.environ,
            "BENCH_BROKER": self.server.url,
            "BENCH_SIDE": self.name,
            "BENCH_READY": str(self.folder / "ready"),
            "BENCH_SETTINGS": json.dumps(self.settings),
            "PYTHONPATH": str(ROOT),
        }

    @property
    def app(self) -> Celery:
        """The app, as a producer."""
        os.environ.update(self.environment)
        sys.modules.pop("benchmarks.app", None)
        return importlib.import_module("benchmarks.app").app

    @contextmanager
    def worker(self, *words: str, pool: str = "prefork", concurrency: int = 2) -> Iterator[subprocess.Popen[bytes]]:
        """A worker that consumes."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "benchmarks.app",
            "worker",
            "-P",
            pool,
            "-c",
            str(concurrency),
            "-l",
            "WARNING",
        ]
        command += ["--without-gossip", "--without-mingle", *words]
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise RuntimeError((self.folder / "worker.log").read_text()[-2000:])
                time.sleep(0.005)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait_until_empty(self, seconds: float = 300) -> float:
        """Wait until nothing waits and nothing is held; when that was (monotonic seconds)."""
        client, deadline = self.server.client, time.monotonic() + seconds
        while time.monotonic() < deadline:
            with client.pipeline(transaction=False) as pipe:
                pipe.llen("celery")
                pipe.hlen("unacked")
                pipe.zcard("redelivery:delayed:due:celery")
                if not any(pipe.execute()):
                    return time.monotonic()
            time.sleep(0.002)
        message = f"{self.name}: not empty after {seconds} s"
        raise TimeoutError(message)


@contextmanager
def side(name: str, settings: dict[str, Any] | None = None, options: dict[str, str] | None = None) -> Iterator[Side]:
    """One side on a broker of its own."""
    with tempfile.TemporaryDirectory(prefix="rb-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder), binaries()["valkey"], options or {}).start()
        try:
            yield Side(name, server, Path(folder), settings or {})
        finally:
            server.stop()
