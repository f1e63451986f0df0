"""Dead letters on RabbitMQ: reads, redrives, removes and moves them. No move loses a dead letter.

A move publishes the dead letter and waits for the confirm, records its event and waits for the confirm, then acknowledges it in its
old queue. After a crash between these steps, the old queue still has a copy. The next command that moves it finds the earlier move
in the journal, and only removes the copy (`copies`).

Reading a queue holds its dead letters, so no other tool and no handler gets them meanwhile; then they are given back in their order
(`peek` describes the costs). Counting holds nothing.

A dead letter that cannot be routed stays, and the others are moved. Limits: only dead-letter queues in the app's settings are
known, because RabbitMQ lists its queues only through the management plugin. A read holds at most `MAX_HELD` dead letters.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict, deque
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.errors import BrokerError, BrokerUnavailable
from redelivery.middleware.brokers.rabbitmq.journal.entries import Moved, digest_of, moved_of
from redelivery.middleware.brokers.rabbitmq.journal.letter_look import await_looks, mark_held
from redelivery.middleware.brokers.rabbitmq.messages import home_of, message_of
from redelivery.middleware.brokers.rabbitmq.peek import Found, Look, counts_of, depth_of
from redelivery.middleware.brokers.rabbitmq.publisher import Move
from redelivery.middleware.brokers.rabbitmq.topology import declare_letters, has_exchange, queue_type_of
from redelivery.middleware.logs import log
from redelivery.middleware.ports import Answer, ignore

from ...letters import Letter, may_be
from ...ports import DeadLetterQueue, LetterPage
from .copies import Copies, Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
    from redelivery.middleware.messages.events import Event

#: The maximum number of dead letters in one page.
PAGE = 250
#: The maximum seconds until the broker confirms a batch.
TIMEOUT = 120.0
UNCONFIRMED = "the broker confirms nothing: does it have a memory or disk alarm?"


class AmqpLetterStore:
    """Implements `LetterStore` on RabbitMQ."""

    def __init__(self, transport: AmqpTransport) -> None:
        self.transport = transport
        self.opened: dict[str, AmqpLetters] = {}
        self._made: set[str] = set()
        self._seen: set[str] = set()

    def queues(self, named: Mapping[str, str]) -> dict[str, str]:
        """Return the named ones: RabbitMQ cannot store which queues were used."""
        return dict(named)

    def is_consumed(self, name: str) -> bool:
        with self.transport.asking() as connection:
            counts = counts_of(connection, name)
        return counts is not None and counts[1] > 0

    def depth(self, name: str) -> int:
        with self.transport.asking() as connection:
            return depth_of(connection, name) or 0

    def summaries(self, origins: Mapping[str, str]) -> list[DeadLetterQueue]:
        """Return only counts: reading the dead letters would mark them."""
        if not origins:
            return []
        with self.transport.asking() as connection:
            return [DeadLetterQueue(name, origin, depth_of(connection, name) or 0) for name, origin in origins.items()]

    @contextmanager
    def open(self, name: str) -> Iterator[AmqpLetters]:
        with self.transport.connect() as connection:
            await_looks(connection)
            mark_held(connection, name)
            total = depth_of(connection, name) or 0
            with Look(connection, name) as look, closing(Copies(self.transport)) as copies:
                self.opened[name] = AmqpLetters(name, total, look, copies)
                try:
                    yield self.opened[name]
                finally:
                    del self.opened[name]

    def page(self, name: str, before: int | None, count: int) -> LetterPage:  # noqa: ARG002 - messages have no positions here
        msg = f"the dead letters of {name!r} cannot be paged on RabbitMQ: a look takes them, and marks them"
        raise BrokerError(msg)

    def found(self, name: str, task_ids: Collection[str]) -> Iterator[Letter]:
        with self.open(name) as letters:
            read = (Letter.of(raw) for page in letters.pages() for raw in page if may_be(raw, task_ids))
            chosen = [letter for letter in read if letter.task_id.startswith(tuple(task_ids))]
        yield from reversed(chosen)

    def redrive_many(self, dead_letter_queue: str, moves: Sequence[tuple[bytes, str, bytes, Event]]) -> list[Answer | Exception]:
        """Publish dead letters to the exchanges and keys of their first publication; `MISSING` if one cannot be routed."""
        going = [_Going(letter, (event,), message, home_of(message, queue), queue) for letter, queue, message, event in moves]
        return self._carry_out(dead_letter_queue, going, self._require_exchange)

    def purge_many(self, dead_letter_queue: str, gone: Sequence[tuple[bytes, Event]]) -> list[Answer | Exception]:
        return self._carry_out(dead_letter_queue, [_Going(letter, (event,)) for letter, event in gone])

    def move_many(
        self, dead_letter_queue: str, target: str, moves: Sequence[tuple[bytes, bytes, str, tuple[Event, Event]]]
    ) -> list[Answer | Exception]:
        """Move dead letters to another dead-letter queue, which is declared if it does not exist."""
        prepare = functools.partial(self.keep, target, "" if not moves else moves[0][2])
        going = [_Going(letter, events, moved, ("", target), target) for letter, moved, _, events in moves]
        return self._carry_out(dead_letter_queue, going, prepare)

    def _require_exchange(self, exchange: str, connection: Any, is_again: bool) -> bool:
        """Return whether this exchange exists: a publication to a missing exchange would close the publisher's channel."""
        if exchange and (is_again or exchange not in self._seen):
            if not has_exchange(connection, exchange):
                return False
            self._seen.add(exchange)
        return True

    def keep(self, name: str, origin: str, _: str, connection: Any, is_again: bool) -> bool:
        """Declare this dead-letter queue with the type of its origin. It is a `Move.prepare`."""
        if is_again or name not in self._made:
            declare_letters(connection, name, queue_type_of(self.transport.app, origin))
            self._made.add(name)
        return True

    def _carry_out(
        self, name: str, going: Sequence[_Going], prepare: Callable[[str, Any, bool], bool] = lambda *_: True
    ) -> list[Answer | Exception]:
        """Publish and record all of them, then remove the confirmed ones from the queue. Returns an answer for each.

        A dead letter that was delivered before may be a copy of a moved one: then it is only removed.
        """
        letters, publisher, now_ms = self.opened[name], self.transport.publisher, self.transport.now_ms()
        found = [letters.found(each.letter) for each in going]
        again = [each.raw for each in found if each is not None and each.taken]
        fates = letters.copies.fates(name, again, going[0].arrives_in if going else "")
        submitted: list[tuple[Found | None, Fate | None, list[Move]]] = []
        for each, held in zip(going, found, strict=True):
            fate = None if held is None else fates.get(held.raw)
            if fate is not None:
                moves = [Move(event, ignore, may_wait=False, event_id=event.event_id) for event in fate.events]
            else:
                moves = [] if held is None else [each.move(name, functools.partial(prepare, each.target[0]), now_ms)]
            submitted.append((held, fate, [publisher.submit(move) for move in moves]))
        deadline = time.monotonic() + TIMEOUT
        return [self._end(letters, deadline, *each) for each in submitted]

    @staticmethod
    def _end(letters: AmqpLetters, until: float, found: Found | None, fate: Fate | None, moves: list[Move]) -> Answer | Exception:
        if found is None:
            return Answer.ALREADY
        if fate is not None and fate.is_in_doubt:
            return Answer.UNSURE
        try:
            answer = answer_of(moves, until)
        except BrokerError as exc:
            return exc
        if answer is not Answer.DONE:
            return answer
        letters.look.take(found)
        return Answer.DONE if fate is None else Answer.ALREADY


@dataclass(frozen=True, slots=True)
class _Going:
    """A dead letter to move or remove, and its events. For a move also the new message, its target, and its new queue."""

    letter: bytes
    events: tuple[Event, ...]
    message: bytes | None = None
    target: tuple[str, str] = ("", "")
    arrives_in: str = ""

    def move(self, queue: str, prepare: Callable[[Any, bool], bool], now_ms: int) -> Move:
        """Return the move out of this queue: what is published, recorded, and written into the journal."""
        message = None if self.message is None else message_of(self.message, target=self.target)
        event, *further = self.events
        return Move(
            event, ignore, message, self.target, prepare, may_wait=False, moved=self._moved(queue, now_ms), further=tuple(further)
        )

    def _moved(self, queue: str, now_ms: int) -> Moved | None:
        if self.message is None:
            return Moved(digest_of(self.letter, queue))
        return moved_of(self.letter, self.message, queue, 0, target=self.arrives_in, events=self.events, now_ms=now_ms)


@dataclass(slots=True)
class AmqpLetters:
    """Implements `LetterList` on RabbitMQ. It holds the dead letters that it has read until it is closed."""

    name: str
    total: int
    look: Look
    copies: Copies
    _page: defaultdict[bytes, list[Found]] = field(default_factory=lambda: defaultdict(list))

    def newest(self, limit: int) -> list[bytes]:
        if limit < 1 or not self.total:
            return []
        kept: deque[bytes] = deque(maxlen=limit)
        for page in self.pages():
            kept.extend(page)
        return list(kept)[::-1]

    def pages(self, gone: Callable[[], int] = lambda: 0) -> Iterator[list[bytes]]:  # noqa: ARG002 - what was read is held here
        left, looking = self.total, iter(self.look)
        while left > 0:
            self._page.clear()
            page = []
            for found in looking:
                self._page[found.raw].append(found)
                page.append(found.raw)
                if len(page) >= min(PAGE, left):
                    break
            if not page:
                why = "another command, a worker or a handler has them: do this again for those that stay"
                log.warning("dead_letters.held", dead_letter_queue=self.name, not_seen=left, why=why)
                return
            left -= len(page)
            yield page

    def found(self, raw: bytes) -> Found | None:
        """A dead letter of the last page with these bytes, each only once; None if there is no more."""
        same = self._page.get(raw)
        return same.pop() if same else None


def carry_out(transport: AmqpTransport, event: Event, message: bytes | None, target: tuple[str, str]) -> Answer:
    """Publish and record one move, and wait for both confirms. Raises `BrokerError` if one does not come."""
    published = None if message is None else message_of(message, target=target)
    move = transport.publisher.submit(Move(event, ignore, published, target, may_wait=False))
    return answer_of([move], time.monotonic() + TIMEOUT)


def answer_of(moves: Sequence[Move], until: float) -> Answer:
    """Wait for all moves, at most until this monotonic time: `DONE` if each is. Raises `BrokerError` if one is not confirmed."""
    if not all(move.wait(until - time.monotonic()) for move in moves):
        failure = next((each.failure for each in moves if each.failure is not None), None)
        raise BrokerUnavailable(UNCONFIRMED) if failure is None else BrokerError(str(failure))
    answers = {move.answer for move in moves}
    return Answer.DONE if answers <= {Answer.DONE} else Answer.UNSURE if Answer.UNSURE in answers else Answer.MISSING
