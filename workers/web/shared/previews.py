"""Dry runs that may take long: each is counted once, in its own thread, and shown to everybody who asks for the same one.

A dry run is counted in pieces, and each piece waits for its turn (`Searches`). So others can use the broker, and the application
that the page is mounted in, meanwhile.
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

#: Seconds that the first request waits for a count, that a count is valid after its end, and that it goes on if nobody asks for it.
TIMEOUT, FRESH, UNREAD = 3.0, 30.0, 60.0
#: How many are kept, and counted at once.
KEPT, RUNNING = 20, 4
UNSEEN = "Nobody looked at this dry run for a minute, so it was given up: ask again."


@dataclass(slots=True)
class Job:
    """One dry run. `preview` is set when it is done, `error` if it failed; until then it has looked at so many of the `total`."""

    preview: Preview | None = None
    error: Exception | None = None
    looked_at: int = 0
    total: int = 0
    asked: float = 0.0
    ended: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        """Whether it must be counted again: it failed, or ended a while ago."""
        return self.done.is_set() and (self.error is not None or time.monotonic() - self.ended > FRESH)


class Previews:
    """The dry runs of one page."""

    def __init__(self, turns: Searches) -> None:
        self._turns = turns
        self._jobs: dict[Hashable, Job] = {}
        self._lock = threading.Lock()

    def of(self, key: Hashable, count: Callable[[Callable[[Walked], None]], Preview]) -> Job:
        """The dry run of this plan, done or under way. Raises what it has raised, and `Refused` if too many are under way.

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
        except Exception as exc:  # noqa: BLE001 - the request that asked for it raises it
            job.error = exc
        finally:
            job.ended = time.monotonic()
            job.done.set()
