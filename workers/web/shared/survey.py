"""Counts the causes of all dead letters: the newest dead letters at once, the others in pieces in the background.

All requests share one count. Each piece waits for its turn (`Searches`), so that others can use the broker meanwhile. A count ends
when all dead letters are counted, or when there was no request for it for a while. The next count sees the changes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redelivery.middleware.brokers.errors import EXPECTED_ERRORS
from redelivery.middleware.logs import log

from ...operations.letters.filter import Filter
from ...operations.letters.reading.browse import browsed
from ...operations.letters.reading.causes import Causes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .searches import Searches
    from .source import Source

#: Dead letters of one round trip; the seconds of the first piece, and of each later piece.
PIECE, AT_ONCE, ON = 500, 0.4, 0.05
#: The maximum seconds that a count is valid, and that it continues without a request for it.
FRESH, UNREAD = 10.0, 60.0


@dataclass(slots=True)
class Counted:
    """A count of the dead letters of some queues. `depths` is how many there were at the beginning.

    `first` is set when the first piece is counted. `newest` has the place of the newest dead letter of each queue and cause, so
    that a link can open that place without a search.
    """

    depths: Mapping[str, int]
    causes: Causes
    at_ms: int
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    first: threading.Event = field(default_factory=threading.Event)
    newest: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many dead letters there were."""
        return sum(self.depths.values())

    def is_whole_since(self, seconds: float) -> bool:
        """Whether all were counted, at most these seconds ago."""
        return self.ended is not None and time.monotonic() - self.ended < seconds


class Survey:
    """The counts of one page, by the requested queue."""

    def __init__(self, source: Source, turns: Searches) -> None:
        self._source, self._turns = source, turns
        self._lock = threading.Lock()
        self._counts: dict[str, Counted] = {}
        self._counting: set[str] = set()
        self._asked: dict[str, float] = {}

    def of(self, queue: str, depths: Mapping[str, int]) -> Counted:
        """The newest count of this queue (empty: of all). The first piece of a new count is counted now.

        A complete count of the last minute is shown until the next one is complete. Raises the errors of the broker's driver.
        """
        self._asked[queue] = time.monotonic()
        new = Counted(depths, Causes(redact=self._source.runtime.settings.redact), self._source.now_ms())
        with self._lock:
            last = self._counts.get(queue)
            begins = queue not in self._counting and (last is None or not last.is_whole_since(FRESH))
            if begins:
                self._counting.add(queue)
                if last is None or not last.is_whole_since(UNREAD):
                    self._counts[queue] = new
            shown = self._counts[queue]
        if begins:
            self._begin(queue, new)
        else:
            shown.first.wait(AT_ONCE)
        return self._counts.get(queue, shown)

    def _begin(self, queue: str, counted: Counted) -> None:
        """Count the first piece here, and the others in a thread."""
        try:
            left = self._count(counted, dict.fromkeys(counted.depths), AT_ONCE)
        except BaseException:
            self._counting.discard(queue)
            raise
        finally:
            counted.first.set()
        if left:
            threading.Thread(target=self._continue, args=(queue, counted, left), name="redelivery-web-causes", daemon=True).start()
        else:
            self._counts[queue] = counted
            self._counting.discard(queue)

    def _count(self, counted: Counted, last: dict[str, int | None], seconds: float) -> dict[str, int | None]:
        """Count one piece, queue by queue. Returns the queues that are left, each with its next place."""
        with self._turns.one():
            left, until = dict(last), time.monotonic() + seconds
            while left and time.monotonic() < until:
                name, before = next(iter(left.items()))
                page = browsed(self._source.transport, name, Filter(), before=before, limit=PIECE, most=PIECE)
                for place, letter in page.letters:
                    counted.causes.add(letter, name, place)
                    fingerprint = str(letter.failure.get("fingerprint") or "")
                    counted.newest.setdefault((name, fingerprint or letter.known_reason), place)
                if page.next is None:
                    del left[name]
                else:
                    left[name] = page.next
            if not left:
                counted.ended = time.monotonic()
            return left

    def _continue(self, queue: str, counted: Counted, left: dict[str, int | None]) -> None:
        try:
            while left and time.monotonic() - self._asked[queue] < UNREAD:
                left = self._count(counted, left, ON)
            if not left:
                self._counts[queue] = counted
        except EXPECTED_ERRORS as exc:
            log.warning("web.causes_not_counted", error=str(exc))
        finally:
            self._counting.discard(queue)
