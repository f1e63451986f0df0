"""The watch over the dead letters on RabbitMQ: as `letter_watch`, but by passive declares, because reading would mark them.

A queue is *unread* if it has no consumer, and not fewer dead letters than at the look before (an operator's redrive or purge would
take some). It *grows* if it has a consumer, but is longer at each of ten looks in a row. One worker watches: it holds an exclusive
queue, which the broker deletes with its connection. Limits: the age of the dead letters cannot be seen.

It also declares a deleted outcome log again.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from redelivery.middleware.logs import log

from ...brokers.rabbitmq.watching import Watching
from ...operations.letters import dead_letters
from ..duty import TIMEOUT
from .letter_watch import LetterWatch, Watched, warn

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

MISSING = "somebody has deleted it, or it expired: it is declared again, without its events, and the books will show the gap"


class AmqpLetterWatch(LetterWatch):
    """Looks at the dead-letter queues twice a minute, on its own connection."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._watching = Watching(runtime.transport)

    def leads(self) -> bool:
        """Whether this worker watches, which lasts as long as its connection."""
        if not self._watching.goes_on:
            self._watched.clear()
            self.is_watching = False
            self.is_watching = self._watching.begin()
        return self.is_watching

    def step(self) -> None:
        """Look once at each dead-letter queue, and at the outcome log. Raises `ConnectionError` if the broker does not answer."""
        if self._watching.declare_log():
            log.warning("outcome_log.missing", why=MISSING)
        names = dead_letters.known(self._runtime)
        found = {name: counts for name in names if (counts := self._watching.counts(name)) is not None}
        full = {name: counts for name, counts in found.items() if counts[0]}
        self._watched = {name: self._watched.get(name, Watched()) for name in full}
        for name, (letters, consumers) in full.items():
            watched = self._watched[name]
            is_unread = not consumers and bool(watched.oldest) and letters >= watched.length
            state = watched.look(letters, watched.oldest if is_unread else uuid.uuid4().bytes)
            if state is not None:
                warn(name, state, letters=letters, oldest=None)

    def stop(self, seconds: float = TIMEOUT) -> None:
        """End, so that another worker can watch."""
        super().stop(seconds)
        self.is_watching = False
        self._watching.end()
