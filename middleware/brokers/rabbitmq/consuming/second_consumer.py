"""Gives a queue a second consumer while leaving messages take up half of a fixed prefetch window (`window`).

This happens if tasks take a few milliseconds: then half of the window's tasks end before the broker has confirmed the first one's
event. The second consumer's window is twice the first's, so that at most three windows of messages wait in a worker. It is
cancelled when leaving messages have not taken up half of the window for a second.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ....logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker.consumer import Consumer

    from ....ports import Held

#: The size of the second consumer's window, in windows of the first.
RATIO = 2
#: Seconds without need after which a second consumer ends.
MAX_IDLE = 1.0


class SecondConsumers:
    """The second consumers on a channel. `most` limits both windows of a queue together; `changed` is called if `more` changes."""

    def __init__(self, consumer: Consumer, most: int, changed: Callable[[], None]) -> None:
        self._consumer, self._changed = consumer, changed
        self._channel: Any = consumer.task_consumer.channel
        self._window = max(min(RATIO * self._channel.for_each, most - self._channel.for_each), 0)
        #: When each queue last needed a second consumer.
        self._needed: dict[str, float] = {}
        self._begun: set[str] = set()
        #: The window of a second consumer; 0 if no queue has one.
        self.more = 0

    def note(self, held: Held | None, leaving: int) -> None:
        """Note that a message has ended, so that now `leaving` messages are leaving. Called from any thread."""
        if held is None or not self._window or 2 * leaving < self._channel.for_each:
            return
        self._needed[held.queue] = time.monotonic()
        if held.queue not in self._begun:
            self._consumer.call_soon(self._begin, held.queue)

    def _begin(self, queue: str) -> None:
        if queue not in self._begun:
            self._begun.add(queue)
            self._look(queue)

    def _look(self, queue: str) -> None:
        """Begin or keep the second consumer while it is needed; then end it."""
        is_needed = time.monotonic() - self._needed[queue] < MAX_IDLE
        try:
            if is_needed and self._channel.begin_second(queue, self._window):
                self._consumer.timer.call_after(MAX_IDLE, self._consumer.call_soon, (self._look, queue))
            else:
                self._begun.discard(queue)
                self._channel.end_second(queue)
        except Exception as exc:  # noqa: BLE001 - the channel is gone, and its consumers with it
            log.debug("window.not_set", error=str(exc))
        self.more = self._window if self._begun else 0
        self._changed()
