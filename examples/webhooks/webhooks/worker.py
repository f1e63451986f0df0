"""The worker: Celery's own command with two pool children, in its own process group, so that it can be killed in part or whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from random import Random

__all__ = ["CHILDREN", "Worker"]

CHILDREN = 2
#: Seconds that a stopping worker has for its running tasks.
TIMEOUT = 60.0
HOME = Path(__file__).resolve().parent.parent


class Worker:
    """A prefork worker; use it in a `with` block."""

    def __init__(self, environment: dict[str, str], log: Path, *, random: Random) -> None:
        self._environment = environment
        self._log = log
        self._random = random
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the worker, or start it again."""
        command = [sys.executable, "-m", "celery", "-A", "webhooks.app", "worker", "--pool", "prefork"]
        command += ["--concurrency", str(CHILDREN), "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=HOME,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        """Whether its main process runs."""
        return self._process is not None and self._process.poll() is None

    def kill_child(self) -> int | None:
        """SIGKILL one pool child; returns its process id, or None if there is no child now."""
        children = self._children()
        if not children:
            return None
        child = self._random.choice(children)
        os.kill(child, signal.SIGKILL)
        return child

    def kill(self) -> None:
        """SIGKILL the whole process group, as after a lack of memory."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """Ask the worker to stop, and kill what is left of it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TIMEOUT)
        finally:
            self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def _children(self) -> list[int]:
        if self._process is None:
            return []
        pid = self._process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
