"""Copies: dead letters that a command or a worker had already moved when it died, and that are still in their old queue.

The journal of moves shows the fate of each. If the move was completed, the copy may be removed. If the journal shows only the
beginning of the move, the dead letter is in doubt: it stays until more is known, for `DOUBT` at most. Any client may write the
journal, so a target queue in it is read only if it is a dead-letter queue of the app or the target of this command.

Limit: if the journal is missing or may not be read, no copy is known. If the broker does not answer, the command stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from amqp.exceptions import NotFound

from redelivery.errors import BrokerUnavailable
from redelivery.middleware.brokers.rabbitmq.journal.entries import digest_of
from redelivery.middleware.brokers.rabbitmq.journal.reader import Reading
from redelivery.middleware.brokers.rabbitmq.publisher import GONE
from redelivery.middleware.logs import log
from redelivery.middleware.ports import Successor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
    from redelivery.middleware.messages.events import Event

#: Errors of a broker that does not answer, for example because of an alarm.
UNANSWERED = (*GONE, BrokerUnavailable)
#: How long a dead letter is in doubt at most, and how far back the journal is read.
DOUBT, KEPT = timedelta(minutes=10), timedelta(hours=1)
#: How long it is in doubt if its target queue was read, and the message was not in it: another command may hold the message.
LOOKED_DOUBT = timedelta(seconds=30)
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Fate:
    """A dead letter was moved, and these events may not be recorded yet; or it is not known if it was moved (`is_in_doubt`)."""

    events: tuple[Event, ...] = ()
    is_in_doubt: bool = False


class Copies:
    """Finds copies. For one thread. The first call of `fates` opens the journal."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport = transport
        self._reading: Reading | None = None
        self._is_missing = False

    def fates(self, queue: str, letters: Iterable[bytes], target: str = "") -> dict[bytes, Fate]:
        """The fates of these dead letters of a queue, by their bytes. Dead letters that no command has moved are left out."""
        digests = {letter: digest_of(letter, queue) for letter in letters}
        if not digests or self._is_missing:
            return {}
        try:
            return self._read(digests, self._places(target))
        except UNANSWERED:
            raise  # without the journal, the command would move copies
        except Exception as exc:  # noqa: BLE001 - after any other error, the command continues without the journal
            if not isinstance(exc, NotFound):
                log.warning("journal.unread", error=f"{type(exc).__name__}: {exc}", why="moved dead letters may be moved again")
            self._is_missing = True
            self.close()
            return {}

    def close(self) -> None:
        """Close the connection to the journal."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()

    def _read(self, digests: dict[bytes, bytes], places: frozenset[str]) -> dict[bytes, Fate]:
        if self._reading is None:
            self._reading = Reading(self._transport.connect(), self._transport.keys.journal, KEPT)
        self._reading.catch_up()
        self._reading.look_for_letters((digest, places) for digest in digests.values())
        fates, now_ms = {}, self._transport.now_ms()
        since = now_ms - DOUBT // MILLISECOND, now_ms - LOOKED_DOUBT // MILLISECOND
        for letter, digest in digests.items():
            known, events = self._reading.successor_of(digest)
            if known is not Successor.UNKNOWN:
                fates[letter] = Fate(events)
            elif self._reading.is_in_doubt(digest, *since):
                fates[letter] = Fate(is_in_doubt=True)
        return fates

    def _places(self, target: str) -> frozenset[str]:
        """The dead-letter queues of the app, and the target of this command if it is not a queue of the app."""
        app = self._transport.app
        runtime = getattr(app, "redelivery", None)
        targets = () if runtime is None else (runtime.policies.targets_of(queue) for queue in app.amqp.queues)
        return frozenset(name for names in targets for name in names) | ({target} - {*app.amqp.queues})
