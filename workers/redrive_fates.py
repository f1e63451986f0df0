"""The fates of the letters that a redrive sent: which of them have ended since, and which died again.

Enters: the lives that were opened, each by its event, and what is recorded from then on. Leaves: the last word about each life.
Nothing is changed.

On Redis the outcome log is read on from where it stood when the redrive began. An export takes events out of the log, and may be
faster; so the newest letters of the dead-letter queue are looked at besides. On RabbitMQ a queue of its own, behind the log's
exchange, hears what is recorded, and no letter is looked at.

Limits: a success that an export took away unread counts as not seen. What died into another dead-letter queue, or was discarded, is
known by the log alone. Each life that was opened takes some hundred bytes of memory.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.middleware.outcomes import TERMINAL, Event, Outcome
from redelivery.middleware.transports.base import Capability
from redelivery.workers.contents import Letter
from redelivery.workers.outcome_log import PAGE, newest_id, read_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from redelivery.middleware.transports.redis import RedisTransport
    from redelivery.workers.amqp_outcomes import Listening

__all__ = ["DIED", "Fates", "watched"]

#: Outcomes of a life that ended as a dead one.
DIED = frozenset({Outcome.DEAD_LETTERED, Outcome.DISCARDED, Outcome.EXPIRED})
#: Of the log, answers of one look; of a dead-letter queue, letters of one look and of one answer behind the first.
MOST_ANSWERS, MOST_LETTERS, SOME_LETTERS = 100, 1000, 20
#: Seconds between two looks at a log that is busy.
PAUSE = 0.02

#: A life as the books name it: task id, generation, origin queue.
Life = tuple[str, int, str]


@dataclass(slots=True)
class Fates:
    """What is known of the lives that were opened: the last event of each in `last`, and, of those that died again, in `died`.

    `heard` waits at the most as long as it is told (seconds) for what was recorded since it was last asked.
    """

    heard: Callable[[float], Iterable[Event]]
    last: dict[Life, Event] = field(default_factory=dict)
    died: dict[Life, Event] = field(default_factory=dict)

    def sent(self, event: Event) -> None:
        """A letter went back: `event` opened its life."""
        self.last[_life(event)] = event

    def look(self, seconds: float = 0.0) -> None:
        """Hear what was recorded since the last look. Raises whatever the broker does."""
        for event in self.heard(seconds):
            life = _life(event)
            before = self.last.get(life)
            if before is None:
                continue
            if before.outcome not in TERMINAL:
                self.last[life] = event
            if event.outcome in DIED:
                self.died.setdefault(life, event)

    @property
    def open(self) -> list[Event]:
        """The last events of the lives that have not ended."""
        return [event for event in self.last.values() if event.outcome not in TERMINAL]


def _life(event: Event) -> Life:
    return event.task_id, event.generation, event.queue


@contextmanager
def watched(transport: RedisTransport, name: str) -> Iterator[Fates]:
    """Fates of letters of the dead-letter queue `name`, heard of from now on. Raises whatever the broker does."""
    if Capability.BROWSE_LETTERS_UNMARKED in transport.capabilities:
        yield Fates(_Reading(transport, name).heard)
        return
    from redelivery.workers.amqp_letters import AmqpDesk  # noqa: PLC0415 - only where the broker is RabbitMQ
    from redelivery.workers.amqp_outcomes import Listening  # noqa: PLC0415 - as above

    other: Any = transport
    desk = AmqpDesk.of(other)
    with desk.amqp.connect() as connection:
        yield Fates(_Hearing(Listening(connection, desk.keys)).heard)


class _Reading:
    """What is recorded on Redis: the log, from its newest entry on, and the letters that arrive."""

    def __init__(self, transport: RedisTransport, name: str) -> None:
        self._client, self._log = transport.client, transport.keys.outcomes
        self._letters = transport.keys.list(name)
        self._began_ms = transport.now_ms()
        self._newest: Any = self._client.lindex(self._letters, 0)
        self._at = newest_id(self._client, self._log)

    def heard(self, seconds: float) -> Iterator[Event]:
        """As `Fates.heard`."""
        block_ms = max(round(seconds * 1000), 1) if seconds > 0 else None  # 0 would be for ever
        is_busy = False
        for answers in range(MOST_ANSWERS):
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
        while at < MOST_LETTERS:
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


class _Hearing:
    """What is recorded on RabbitMQ."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening

    def heard(self, seconds: float) -> list[Event]:
        """As `Fates.heard`."""
        events = list(self._listening.heard())
        if not events and seconds > 0:
            time.sleep(seconds)  # nobody consumes this queue: it is asked
        return events


def _death(letter: Letter) -> Event:
    """A letter as the event that its death has recorded."""
    raised = str(letter.failure.get("type") or "")
    return letter.contents.event(
        Outcome.DEAD_LETTERED, letter.queue, generation=letter.generation, reason=letter.reason, exception=raised
    )
