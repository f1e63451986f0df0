"""The outbox: transitions that the broker has not answered yet, in the order in which they were asked for.

A transition is tried at once. Where the broker does not answer, or is not able to (it loads, fails over, is read-only), it waits
here, and a native thread asks again until there is an answer: a task that has succeeded while the broker was away is not run twice
for it. Every later transition waits behind it, so that their order stays. What waits here dies with the process; its messages are
then still held on the broker, under a lease that ends, and are delivered again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from redelivery.middleware.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from redelivery.middleware.transports.base import Answer

    Transition = Callable[[], Answer]
    Then = Callable[[Answer], None]

__all__ = ["Outbox"]

FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0


class Outbox:
    """Carries transitions out, once each, in order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Transition, Then]] = deque()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def tags(self) -> set[str]:
        """The tags of the messages whose transitions wait."""
        with self._lock:
            return {tag for tag, _, _ in self._waiting}

    def carry_out(self, tag: str, transition: Transition, then: Then) -> None:
        """Try the transition now; unanswered, or with others waiting, it is put in line. `then` gets the answer, here or later."""
        if not self._waiting:
            try:
                answer = transition()
            except (RedisError, OSError) as exc:
                log.warning("transition.postponed", tag=tag, error=str(exc))
            else:
                then(answer)
                return
        with self._lock:
            self._waiting.append((tag, transition, then))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="redelivery-outbox", daemon=True)
                self._thread.start()

    def drain(self, seconds: float) -> bool:
        """Wait until nothing waits any more, at most this long; False where something still does."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            self._stopped.wait(0.02)
        return not self._waiting

    def _run(self) -> None:
        wait, failures = FIRST_WAIT, 0
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                tag, transition, then = self._waiting[0]
            try:
                answer = transition()
            except (RedisError, OSError) as exc:
                failures += 1
                if failures % 20 == 1:
                    log.warning("outbox.waiting", waiting=len(self._waiting), tag=tag, error=str(exc))
                self._stopped.wait(wait)
                wait = min(wait * 2, LONGEST_WAIT)
                continue
            wait, failures = FIRST_WAIT, 0
            then(answer)
            with self._lock:
                self._waiting.popleft()
