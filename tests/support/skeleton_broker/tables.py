"""The broker itself: a table of messages and one of events, in one file. Here stands what a server would do."""

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


#: All tables of this process. A forked child gives each a new lock: the thread that held the old one may not exist there.
ALL: WeakSet[Tables] = WeakSet()


def _begin_anew() -> None:
    for each in ALL:
        each._lock, each._pid = threading.RLock(), 0


os.register_at_fork(after_in_child=_begin_anew)


class Tables:
    """The tables of one file; safe to use from any thread, and in a forked process."""

    def __init__(self, path: Path | str) -> None:
        self._path, self._lock, self._pid = path, threading.RLock(), 0
        self._connection: Any = None
        ALL.add(self)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of this block happens, or nothing. Raises `sqlite3.OperationalError` where the file is away, or locked."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self._connection = sqlite3.connect(self._path, timeout=30, check_same_thread=False)
                self._connection.executescript(SCHEMA)
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection

    def put(self, queue: str, raw: bytes) -> None:
        """One more message, behind all others of its queue."""
        with self.transaction() as rows:
            rows.execute("INSERT INTO messages (queue, raw) VALUES (?, ?)", (queue, raw))

    def take(self, queue: str) -> tuple[int, bytes] | None:
        """The oldest message that nobody holds, and its number: it is held from now on."""
        with self.transaction() as rows:
            found: tuple[int, bytes] | None = rows.execute(
                "SELECT id, raw FROM messages WHERE queue = ? AND NOT held ORDER BY id LIMIT 1", (queue,)
            ).fetchone()
            if found is not None:
                rows.execute("UPDATE messages SET held = 1 WHERE id = ?", found[:1])
            return found

    def give_back(self, number: int) -> None:
        """Nobody holds this message any more."""
        with self.transaction() as rows:
            rows.execute("UPDATE messages SET held = 0 WHERE id = ?", (number,))

    def move(self, number: int | None, event: Event | None, queue: str = "", message: bytes | None = None) -> bool:
        """End a message, put another one in its place, and record it, in one transaction; False where it has ended already."""
        with self.transaction() as rows:
            if number is not None and not rows.execute("DELETE FROM messages WHERE id = ?", (number,)).rowcount:
                return False
            if message is not None:
                rows.execute("INSERT INTO messages (queue, raw) VALUES (?, ?)", (queue, message))
            if event is not None:
                rows.execute("INSERT INTO events (event) VALUES (?)", (json.dumps(event.to_dict()),))
            return True

    def close(self) -> None:
        """Close the file; it is opened again when it is used."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._pid = 0
