"""The broker itself, in place of a server: a table of messages and a table of events in one file."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redelivery.middleware.messages.events import Event

__all__ = ["Tables"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT, raw BLOB, held INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT);
CREATE TABLE IF NOT EXISTS bindings (exchange TEXT, key TEXT, pattern TEXT, queue TEXT, UNIQUE (exchange, key, queue));
"""


#: All tables of this process. A forked child needs new locks: the thread that held a lock may not exist there.
ALL: WeakSet[Tables] = WeakSet()


def _reset_after_fork() -> None:
    for each in ALL:
        each._lock, each._pid = threading.RLock(), 0


os.register_at_fork(after_in_child=_reset_after_fork)


class Tables:
    """The tables of one file, for any thread and for forked processes."""

    def __init__(self, path: Path | str) -> None:
        self._path, self._lock, self._pid = path, threading.RLock(), 0
        self._connection: Any = None
        ALL.add(self)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction. Raises `sqlite3.OperationalError` if the file is missing or locked."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self._connection = sqlite3.connect(self._path, timeout=30, check_same_thread=False)
                self._connection.executescript(SCHEMA)
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection

    def put(self, queue: str, raw: bytes) -> None:
        with self.transaction() as rows:
            rows.execute("INSERT INTO messages (queue, raw) VALUES (?, ?)", (queue, raw))

    def take(self, queue: str) -> tuple[int, bytes] | None:
        """Hold the oldest free message of a queue. Returns its number and bytes."""
        with self.transaction() as rows:
            found: tuple[int, bytes] | None = rows.execute(
                "SELECT id, raw FROM messages WHERE queue = ? AND NOT held ORDER BY id LIMIT 1", (queue,)
            ).fetchone()
            if found is not None:
                rows.execute("UPDATE messages SET held = 1 WHERE id = ?", found[:1])
            return found

    def give_back(self, number: int) -> None:
        """Free a message that was held."""
        with self.transaction() as rows:
            rows.execute("UPDATE messages SET held = 0 WHERE id = ?", (number,))

    def move(self, number: int | None, event: Event | None, queue: str = "", message: bytes | None = None) -> bool:
        """In one transaction: end a message, put another in its place, and record the event. False if it has already ended."""
        with self.transaction() as rows:
            if number is not None and not rows.execute("DELETE FROM messages WHERE id = ?", (number,)).rowcount:
                return False
            if message is not None:
                rows.execute("INSERT INTO messages (queue, raw) VALUES (?, ?)", (queue, message))
            if event is not None:
                rows.execute("INSERT INTO events (event) VALUES (?)", (json.dumps(event.to_dict()),))
            return True

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._pid = 0
