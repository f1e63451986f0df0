"""The watch over the dead letters: warns if nothing takes dead letters from their queue, or not fast enough.

It is a duty of every worker; one of them does it, by a lease on the broker. A queue is *unread* if its oldest dead letter is the
same as at the look before: any consumer takes the oldest first (a worker with a handler, a plain Celery worker, an operator, the
retention). It *grows* if dead letters are taken, but it is longer at each of ten looks in a row. Each warning is repeated when the
dead letters are twice as many, and once a day.

Solace recommends a consumer for each dead message queue, and does not report a queue without one. Limits: an unread queue is known
at the second look, half a minute after the first. A new leader knows nothing about earlier looks.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from redelivery.display import word
from redelivery.middleware.logs import log

from ...brokers.redis.transport import redis_of
from ...letters import Letter
from ...operations.letters import dead_letters
from ..duty import Duty

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

#: Seconds between two looks, and of the lead.
EVERY, LEAD = 30.0, 90.0
#: A queue counts as growing after this many longer looks in a row. A warning is repeated after this many looks (a day).
GROWING, QUIET = 10, 2880
UNREAD = "nobody takes dead letters from it: let a worker with a dead-letter handler consume it (-Q {name}), or see `dlq list`"
BEHIND = "more dead letters arrive than are taken out: see `redelivery dlq causes`"


@dataclass(slots=True)
class Watched:
    """One queue at the last look: its length, its oldest dead letter, and its last warning.

    `grew` is how often in a row it was longer. `warned_at` is its length at the last warning, `looks_since` the looks since then.
    """

    length: int = 0
    oldest: bytes = b""
    grew: int = 0
    warned_at: int = 0
    looks_since: int = 0

    def look(self, length: int, oldest: bytes) -> Literal["unread", "growing"] | None:
        """Note its present state; return the warning to log, if any."""
        is_read, is_longer = oldest != self.oldest, length > self.length
        self.grew = self.grew + 1 if is_read and is_longer and self.oldest else 0
        if length < self.length:
            self.warned_at = 0  # dead letters were taken: the next warning must not wait for twice as many
        self.length, self.oldest, self.looks_since = length, oldest, self.looks_since + 1
        if (is_read and self.grew < GROWING) or (length < 2 * self.warned_at and self.looks_since < QUIET):
            return None
        self.warned_at, self.looks_since = length, 0
        return "growing" if is_read else "unread"


class LetterWatch(Duty):
    """Looks at the dead-letter queues twice a minute."""

    title = "letters"
    line_if_unanswered = "debug", "letters.not_seen"
    line_if_failed = "error", "letters.failed"
    begins_at_once = True

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(EVERY)
        self._runtime = runtime
        self._token = uuid.uuid4().hex
        self._watched: dict[str, Watched] = {}
        #: Whether this worker watches.
        self.is_watching = False

    def leads(self) -> bool:
        """Whether this worker watches, by a lease on the broker. If not, it forgets earlier looks."""
        transport = redis_of(self._runtime)
        leads = transport.leases.lead(transport.keys.letter_watcher, self._token, LEAD)
        if not leads:
            self._watched.clear()
        self.is_watching = leads
        return leads

    def step(self) -> None:
        """Look once at every dead-letter queue. Raises the broker's errors."""
        transport = redis_of(self._runtime)
        names = list(dead_letters.known(self._runtime))
        with transport.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.llen(transport.keys.list(name))
                pipe.lindex(transport.keys.list(name), -1)
            answers: list[Any] = pipe.execute()
        now_ms = transport.now_ms()
        found = zip(names, answers[::2], answers[1::2], strict=True)
        full = {name: (int(length), oldest) for name, length, oldest in found if oldest is not None}
        self._watched = {name: self._watched.get(name, Watched()) for name in full}
        for name, (length, oldest) in full.items():
            state = self._watched[name].look(length, oldest)
            if state is not None:
                died_ms = Letter.of(oldest).died_ms
                warn(name, state, letters=length, oldest=None if died_ms is None else round((now_ms - died_ms) / 1000))


def warn(name: str, state: str, **facts: int | None) -> None:
    """Log that a queue is unread, or that it grows."""
    if state == "unread":
        log.warning("dead_letter_queue.unread", dead_letter_queue=name, **facts, why=UNREAD.format(name=word(name)))
    else:
        log.warning("dead_letter_queue.growing", dead_letter_queue=name, **facts, why=BEHIND)
