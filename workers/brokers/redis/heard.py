"""What is recorded on Redis, heard as it is recorded: the log from its newest entry on, and the letters that arrive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redelivery.middleware.messages.events import Event, Outcome

from ...letters import Letter
from .outcome_log import PAGE, newest_id, read_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.brokers.redis.transport import RedisTransport

#: Of the log, answers of one look; of a dead-letter queue, letters of one look and of one answer behind the first.
MAX_ANSWERS, MAX_LETTERS, SOME_LETTERS = 100, 1000, 20
#: Seconds between two looks at a log that is busy.
PAUSE = 0.02


class Reading:
    """Reads on where it stood; an export may take events out of the log, so that the newest letters are looked at besides."""

    def __init__(self, transport: RedisTransport, name: str, since_ms: int | None = None) -> None:
        self._client, self._log = transport.client, transport.keys.outcomes
        self._letters = transport.keys.list(name)
        self._began_ms = transport.now_ms() if since_ms is None else since_ms
        self._newest: Any = self._client.lindex(self._letters, 0) if since_ms is None else None
        self._at = newest_id(self._client, self._log) if since_ms is None else f"{since_ms}-0"

    def heard(self, seconds: float) -> Iterator[Event]:
        """What was recorded since it was last asked; waits so many seconds at the most for the first."""
        block_ms = max(round(seconds * 1000), 1) if seconds > 0 else None  # 0 would be for ever
        is_busy = False
        for answers in range(MAX_ANSWERS):
            read, self._at = read_on(self._client, self._log, self._at, block_ms=None if answers else block_ms)
            yield from (each for each in read if isinstance(each, Event))
            is_busy = is_busy or bool(read)
            if len(read) < PAGE:
                break
        yield from self._arrived()
        if is_busy and seconds > 0:
            time.sleep(PAUSE)

    def _arrived(self) -> Iterator[Event]:
        """Letters that arrived since the last look, the newest first; what died before the redrive began ends the look."""
        known, at, size = self._newest, 0, 1
        while at < MAX_LETTERS:
            page: Any = self._client.lrange(self._letters, at, at + size - 1)
            if page and at == 0:
                self._newest = page[0]
            for raw in page:
                letter = Letter.of(raw)
                if raw == known or (letter.died_ms is not None and letter.died_ms < self._began_ms):
                    return
                yield _death(letter)
            if len(page) < size:
                return
            at, size = at + size, SOME_LETTERS


def _death(letter: Letter) -> Event:
    """A letter as the event that its death has recorded."""
    raised = str(letter.failure.get("type") or "")
    return letter.event(Outcome.DEAD_LETTERED, letter.queue, reason=letter.reason, exception=raised)
