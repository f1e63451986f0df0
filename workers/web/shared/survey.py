"""The causes of all dead letters, counted in the background: the newest dead letters at once, the others a piece at a time.

One walk serves everybody. Each piece waits for its turn (`Searches`), so that others can use the broker meanwhile. The walk ends
when all are counted, or when nobody has asked for a while. The next walk sees what has changed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redelivery.errors import RedeliveryError
from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.logs import log

from ...operations.letters.filter import Filter
from ...operations.letters.reading.browse import browsed
from ...operations.letters.reading.causes import Causes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .searches import Searches
    from .source import Source


#: Dead letters that are read at once. Seconds that a request waits for the first causes, and that a piece of the walk takes.
PIECE, AT_ONCE, ON = 500, 0.4, 0.05
#: Seconds that a count is valid, and that a walk goes on if nobody asks for it.
FRESH, UNREAD = 10.0, 60.0


@dataclass(slots=True)
class Counted:
    """A count of the dead letters of some queues. `depths` is how many there were when it began.

    `first` is set when the first piece is counted. `newest` has the place of the newest dead letter of each cause in each queue, as
    far as it was counted: a link opens that place at once, however many dead letters of other causes are before it.
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
        """How many there were."""
        return sum(self.depths.values())

    def is_whole_since(self, seconds: float) -> bool:
        """Whether all were counted, and at most so many seconds ago."""
        return self.ended is not None and time.monotonic() - self.ended < seconds


class Survey:
    """The counts of one page, by the queues that were asked for."""

    def __init__(self, source: Source, turns: Searches) -> None:
        self._source, self._turns = source, turns
        self._lock = threading.Lock()
        self._counts: dict[str, Counted] = {}
        self._walking: set[str] = set()
        self._asked: dict[str, float] = {}

    def of(self, queue: str, depths: Mapping[str, int]) -> Counted:
        """The newest count of this queue (empty: of all). The first piece of a new count is counted now.

        A complete count of the last minute is shown until the next one is complete. Raises what the broker's driver raises.
        """
        self._asked[queue] = time.monotonic()
        made = Counted(depths, Causes(redact=self._source.runtime.settings.redact), self._source.now_ms())
        with self._lock:
            last = self._counts.get(queue)
            walks = queue not in self._walking and (last is None or not last.is_whole_since(FRESH))
            if walks:
                self._walking.add(queue)
                if last is None or not last.is_whole_since(UNREAD):
                    self._counts[queue] = made
            shown = self._counts[queue]
        if walks:
            self._begin(queue, made)
        else:
            shown.first.wait(AT_ONCE)
        return self._counts.get(queue, shown)

    def _begin(self, queue: str, made: Counted) -> None:
        """Count the first piece here, and the others in a thread."""
        try:
            left = self._count(made, dict.fromkeys(made.depths), AT_ONCE)
        except BaseException:
            self._walking.discard(queue)
            raise
        finally:
            made.first.set()
        if left:
            threading.Thread(target=self._go_on, args=(queue, made, left), name="redelivery-web-causes", daemon=True).start()
        else:
            self._counts[queue] = made
            self._walking.discard(queue)

    def _count(self, made: Counted, left: dict[str, int | None], seconds: float) -> dict[str, int | None]:
        """Count for so many seconds, queue by queue, in its turn. Returns the queues that are left, each with its next place."""
        with self._turns.one():
            return self._counted(made, dict(left), time.monotonic() + seconds)

    def _counted(self, made: Counted, left: dict[str, int | None], until: float) -> dict[str, int | None]:
        while left and time.monotonic() < until:
            name, before = next(iter(left.items()))
            page = browsed(self._source.transport, name, Filter(), before=before, limit=PIECE, most=PIECE)
            for place, letter in page.letters:
                made.causes.add(letter, name, place)
                fingerprint = str(letter.failure.get("fingerprint") or "")
                made.newest.setdefault((name, fingerprint or letter.reason), place)
            if page.next is None:
                del left[name]
            else:
                left[name] = page.next
        if not left:
            made.ended = time.monotonic()
        return left

    def _go_on(self, queue: str, made: Counted, left: dict[str, int | None]) -> None:
        try:
            while left and time.monotonic() - self._asked[queue] < UNREAD:
                left = self._count(made, left, ON)
            if not left:
                self._counts[queue] = made
        except (RedeliveryError, *BROKER_ERRORS) as exc:
            log.warning("web.causes_not_counted", error=str(exc))
        finally:
            self._walking.discard(queue)
