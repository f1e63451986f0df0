"""Dry runs that may take long. Each runs in its own thread, and requests for the same dry run share it.

A dry run has many pieces, and each piece waits for its turn (`Searches`), so that others can use the broker meanwhile.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..guard import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ...operations.letters.walk import Walked
    from ...operations.runs.preview import Preview
    from .searches import Searches

#: The maximum seconds that the first request waits, that a result is valid, and that a dry run continues without a request for it.
TIMEOUT, FRESH, UNREAD = 3.0, 30.0, 60.0
#: The maximum number of dry runs that are kept, and that run at the same time.
KEPT, RUNNING = 20, 4
UNSEEN = "This dry run was stopped, because no page showed it for a minute: ask again."


@dataclass(slots=True)
class Job:
    """One dry run. `preview` is set when it is done, `error` if it failed. It has read `looked_at` of `total` messages."""

    preview: Preview | None = None
    error: Exception | None = None
    looked_at: int = 0
    total: int = 0
    asked: float = 0.0
    ended: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        """Whether the dry run must be repeated: it failed, or ended a while ago."""
        return self.done.is_set() and (self.error is not None or time.monotonic() - self.ended > FRESH)


class Previews:
    """The dry runs of one page."""

    def __init__(self, turns: Searches) -> None:
        self._turns = turns
        self._jobs: dict[Hashable, Job] = {}
        self._lock = threading.Lock()

    def of(self, key: Hashable, count: Callable[[Callable[[Walked], None]], Preview]) -> Job:
        """Return the dry run with this key, finished or running. Raises its error, and `Refused` if too many are running.

        `count` makes the dry run, and calls its argument after each piece.
        """
        with self._lock:
            job = self._jobs.get(key)
            is_new = job is None or job.is_over
            if job is None or is_new:
                if sum(not each.done.is_set() for each in self._jobs.values()) >= RUNNING:
                    raise Refused(503, "Other dry runs are under way: ask again.")
                self._jobs.pop(key, None)
                job = self._jobs[key] = Job(asked=time.monotonic())
                ended = [each for each, other in self._jobs.items() if other.done.is_set()]
                for each in ended[: max(len(self._jobs) - KEPT, 0)]:
                    del self._jobs[each]
                threading.Thread(target=self._count, args=(job, count), name="redelivery-web-preview", daemon=True).start()
        job.asked = time.monotonic()
        job.done.wait(TIMEOUT if is_new else 0)
        if job.error is not None:
            raise job.error
        return job

    def _count(self, job: Job, count: Callable[[Callable[[Walked], None]], Preview]) -> None:
        def another_piece(walked: Walked) -> None:
            job.looked_at, job.total = walked.looked_at, walked.total
            if time.monotonic() - job.asked > UNREAD:
                raise Refused(503, UNSEEN)
            self._turns.end()
            self._turns.begin()

        try:
            with self._turns.one():
                job.preview = count(another_piece)
        except Exception as exc:  # noqa: BLE001 - the request raises it
            job.error = exc
        finally:
            job.ended = time.monotonic()
            job.done.set()
