"""What the children of the pool have begun when the consumer closes, of which Celery has not heard yet.

When its consumer closes, to stop or to connect again, Celery forgets each task that no child has said to have begun. One that was
given its task a moment ago has, or is about to: the task then runs, its message is given back and runs again, and a worker that
stops waits half a minute for the child, which waits for its result to be taken. So whoever was given a task is listened to first;
and of what no child was given it is known then that it has not begun.

Limits: pools of processes whose children are given one task at a time (`-O fair`, Celery's default); after `PATIENCE` all is as it
was.
"""

from __future__ import annotations

import select
import time
from contextlib import suppress
from inspect import isgenerator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.owner import Owner
    from redelivery.middleware.transports.claim import Claim

__all__ = ["listen_first"]

#: How long a child may take to say that it has begun, in seconds.
PATIENCE = 1.0


def listen_first(pool: Any, hub: Any, owner: Owner | Claim) -> None:
    """Have this pool listen to its children before Celery forgets what they have not said; the owner's messages are looked at."""
    flush = getattr(pool, "flush", None)
    if flush is not None:
        pool.flush = Listening(pool, hub, owner, flush.flush if isinstance(flush, Listening) else flush)


class Listening:
    """The pool's own `flush`, and before it the listening."""

    def __init__(self, pool: Any, hub: Any, owner: Owner | Claim, flush: Callable[[], None]) -> None:
        self._pool, self._hub, self._owner, self.flush = pool, hub, owner, flush

    def __call__(self) -> None:
        """What Celery calls."""
        until = time.monotonic() + PATIENCE
        while (silent := self._silent()) and time.monotonic() < until:
            self._listen(silent)
        self._take_back({job for job in self._not_begun() if _child_of(job) is None})
        self.flush()

    def _not_begun(self) -> list[Any]:
        """What the pool has, and no child has said to have begun."""
        return [job for job in list(self._pool._pool._cache.values()) if not job._accepted]  # noqa: SLF001 - Celery's

    def _silent(self) -> set[int]:
        """The pipes of the children that were given a task and have not said that they began it."""
        children = [child for job in self._not_begun() if (child := _child_of(job)) is not None]
        return {child.outqR_fd for child in children if child._is_alive()}  # noqa: SLF001 - Celery's

    def _take_back(self, jobs: set[Any]) -> None:
        """No child was given these: they are no suspects."""
        for held in list(self._owner.held.values()):
            if held.request is not None and held.request.is_one_of(jobs):
                held.request.take_back()

    def _listen(self, pipes: set[int]) -> None:
        """Hear what comes next, as the event loop does; a message may come in pieces."""
        poll = select.poll()
        for pipe in pipes:
            poll.register(pipe, select.POLLIN)
        for pipe, _ in poll.poll(50):
            reading, _ = self._hub.readers.get(pipe, (None, ()))
            if isgenerator(reading):
                with suppress(OSError, EOFError):  # a child that died in the middle of it; Celery sees to that
                    next(reading, None)
            else:
                self._pool._pool._result_handler.handle_event(pipe)  # noqa: SLF001 - Celery's


def _child_of(job: Any) -> Any:
    """Whom the job was given; None where it was not."""
    return getattr(job, "_write_to", None)
