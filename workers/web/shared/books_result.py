"""The last result of the books, for the overview: whether they balance, and as of when."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from redelivery.display import harmless
from redelivery.errors import RedeliveryError
from redelivery.middleware.logs import log

#: The maximum seconds that a result is kept, and that the first request waits for it.
FRESH, TIMEOUT = 30.0, 0.5


@dataclass(frozen=True, slots=True)
class BooksResult:
    """A result of the books. `why` says why they cannot be read."""

    is_balanced: bool = False
    as_of_ms: int = 0
    wrong: int = 0
    why: str = ""


class BooksReader:
    """Reads the last result of the books in one folder, in a thread."""

    def __init__(self, books: str | None) -> None:
        self._books = books
        self._lock = threading.Lock()
        self._asked = -FRESH
        self._result: BooksResult | None = None
        self._has_read = threading.Event()

    def newest(self) -> BooksResult | None:
        """The newest result that was read; None if the page has no books, or none was read yet."""
        if self._books is None:
            return None
        with self._lock:
            is_due = time.monotonic() - self._asked >= FRESH
            if is_due:
                self._asked = time.monotonic()
        if is_due:
            threading.Thread(target=self._read, args=(self._books,), name="redelivery-web-books", daemon=True).start()
        self._has_read.wait(TIMEOUT)
        return self._result

    def _read(self, books: str) -> None:
        try:
            from ...reconciliation.outputs.written import written  # noqa: PLC0415 - pyarrow is an optional dependency

            found = written(books)
            wrong = sum(found.wrong.values())
            self._result = BooksResult(bool(found.summary["balanced"]), int(found.summary["as_of_ms"]), wrong)
        except RedeliveryError as exc:
            self._result = BooksResult(why=harmless(str(exc)))
        except Exception as exc:  # noqa: BLE001 - the file may contain anything
            log.warning("web.books_not_read", error=str(exc))
            self._result = BooksResult(why="The books cannot be read: the page's log says why.")
        finally:
            self._has_read.set()
