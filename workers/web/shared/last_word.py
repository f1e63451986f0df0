"""The last result of the books, for the overview: whether they balance, and as of when. A thread reads it again twice a minute."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from redelivery.display import harmless
from redelivery.errors import RedeliveryError
from redelivery.middleware.logs import log

#: Seconds that a result holds, and that the first request waits for it.
FRESH, TIMEOUT = 30.0, 0.5


@dataclass(frozen=True, slots=True)
class Word:
    """A result of the books; `why` says why they cannot be read."""

    is_balanced: bool = False
    as_of_ms: int = 0
    wrong: int = 0
    why: str = ""


class LastWord:
    """The last result of the books in one folder; `said` gives None if the page was started without books."""

    def __init__(self, books: str | None) -> None:
        self._books = books
        self._lock = threading.Lock()
        self._asked = -FRESH
        self._word: Word | None = None
        self._has_read = threading.Event()

    def said(self) -> Word | None:
        """The newest result that was read; None if none was read yet."""
        if self._books is None:
            return None
        with self._lock:
            is_due = time.monotonic() - self._asked >= FRESH
            if is_due:
                self._asked = time.monotonic()
        if is_due:
            threading.Thread(target=self._read, args=(self._books,), name="redelivery-web-books", daemon=True).start()
        self._has_read.wait(TIMEOUT)
        return self._word

    def _read(self, books: str) -> None:
        try:
            from ...reconciliation.outputs.written import written  # noqa: PLC0415 - pyarrow is an optional dependency

            found = written(books)
            self._word = Word(bool(found.summary["balanced"]), int(found.summary["as_of_ms"]), sum(found.wrong.values()))
        except RedeliveryError as exc:
            self._word = Word(why=harmless(str(exc)))
        except Exception as exc:  # noqa: BLE001 - anybody may have written the file
            log.warning("web.books_not_read", error=str(exc))
            self._word = Word(why="The books cannot be read: the page's log says why.")
        finally:
            self._has_read.set()
