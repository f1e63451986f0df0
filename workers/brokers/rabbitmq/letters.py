"""Dead letters on RabbitMQ: they are read in their order, and redriven, removed or moved. No move loses one.

A dead letter is published to its target, and confirmed; then its event is recorded, and confirmed; then it is acknowledged, and so
leaves its queue (the publisher's moves, `publisher`). After a crash in between, its queue still has it, although it was moved: the
next command that would move it recognises this by the journal of moves, and removes it (`copies`).

While a queue is looked at, its dead letters are held, so that no other tool and no handler gets them; then they are given back in
their order (`peek` describes the costs). Counts come from the queue itself, and hold nothing.

A dead letter that cannot be routed, because its origin queue is gone, is refused; the others go on. Limits: the dead-letter queues
are those in the app's settings, because RabbitMQ lists its queues only through its management plugin; a look holds at most
`MAX_HELD` dead letters.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from redelivery.errors import BrokerError
from redelivery.middleware.brokers.rabbitmq.journal.entries import Moved, digest_of, moved_of
from redelivery.middleware.brokers.rabbitmq.journal.letter_look import await_looks
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

#: The most dead letters in one page.
PAGE = 250
#: Seconds that the broker may take to confirm a batch.
TIMEOUT = 120.0
UNCONFIRMED = "the broker confirms nothing: does it have a memory or disk alarm?"


class AmqpLetterStore:
    """See `LetterStore`."""

    def __init__(self, transport: AmqpTransport) -> None:
        self.transport = transport
        self._open: dict[str, AmqpLetters] = {}
        self._made: set[str] = set()
        self._seen: set[str] = set()

    def queues(self) -> dict[str, str]:
        """As `LetterStore.queues`: none, because RabbitMQ cannot store which queues were used."""
        return {}

    def has_queue(self, name: str) -> bool:
        """As `LetterStore.has_queue`."""
        with self.transport.asking() as connection:
            return depth_of(connection, name) is not None

    def is_consumed(self, name: str) -> bool:
        """As `LetterStore.is_consumed`."""
        with self.transport.asking() as connection:
            counts = counts_of(connection, name)
        return counts is not None and counts[1] > 0

    def depth(self, name: str) -> int:
        """As `LetterStore.depth`, without the management plugin."""
        with self.transport.asking() as connection:
            return depth_of(connection, name) or 0

    def summaries(self, origins: Mapping[str, str]) -> list[DeadLetterQueue]:
        """As `LetterStore.summaries`: only counts, because a look would mark the dead letters."""
        if not origins:
            return []
        with self.transport.asking() as connection:
            return [DeadLetterQueue(name, origin, depth_of(connection, name) or 0) for name, origin in origins.items()]

    def open(self, name: str) -> AmqpLetters:
        return AmqpLetters(self, name)

    def page(self, name: str, before: int | None, count: int) -> LetterPage:  # noqa: ARG002 - messages have no positions here
        """As `LetterStore.page`. Raises `BrokerError`, because a look takes the dead letters and gives them back."""
        msg = f"the dead letters of {name!r} cannot be paged on RabbitMQ: a look takes them, and marks them"
        raise BrokerError(msg)

    def found(self, name: str, task_ids: Collection[str]) -> Iterator[Letter]:
        """As `LetterStore.found`; the queue is read from its oldest dead letter on."""
        with self.open(name) as letters:
            read = (Letter.of(raw) for page in letters.pages() for raw in page if may_be(raw, task_ids))
            chosen = [letter for letter in read if letter.task_id.startswith(tuple(task_ids))]
        yield from reversed(chosen)

    def looks_at(self, letters: AmqpLetters, *, is_open: bool) -> None:
        """Note that this list is looked at from now on, or no longer."""
        if is_open:
            self._open[letters.name] = letters
        else:
            self._open.pop(letters.name, None)

    def redrive_many(self, dead_letter_queue: str, moves: Sequence[tuple[bytes, str, bytes, Event]]) -> list[Answer | Exception]:
        """Move dead letters to the exchanges and keys that they were first published to; `MISSING` if one cannot be routed."""
        going = [_Going(letter, (event,), message, home_of(message, queue), queue) for letter, queue, message, event in moves]
        return self._carry(dead_letter_queue, going, self._there)

    def purge_many(self, dead_letter_queue: str, gone: Sequence[tuple[bytes, Event]]) -> list[Answer | Exception]:
        """Remove dead letters for good: each is recorded, then acknowledged."""
        return self._carry(dead_letter_queue, [_Going(letter, (event,)) for letter, event in gone])

    def move_many(
        self,
        dead_letter_queue: str,
        target: str,
        moves: Sequence[tuple[bytes, bytes, str, tuple[Event, Event]]],
    ) -> list[Answer | Exception]:
        """Move dead letters to another dead-letter queue, which is declared if it is missing."""
        prepare = functools.partial(self.keep, target, "" if not moves else moves[0][2])
        going = [_Going(letter, events, moved, ("", target), target) for letter, moved, _, events in moves]
        return self._carry(dead_letter_queue, going, prepare)

    def _there(self, exchange: str, connection: Any, is_again: bool) -> bool:
        """Whether this exchange exists: a publication to a missing exchange would close the publisher's channel."""
        if exchange and (is_again or exchange not in self._seen):
            if not has_exchange(connection, exchange):
                return False
            self._seen.add(exchange)
        return True

    def keep(self, name: str, origin: str, _: str, connection: Any, is_again: bool) -> bool:
        """Declare this dead-letter queue, with the type of its origin; as `Move.prepare`."""
        if is_again or name not in self._made:
            declare_letters(connection, name, queue_type_of(self.transport.app, origin))
            self._made.add(name)
        return True

    def _carry(
        self,
        name: str,
        going: Sequence[_Going],
        prepare: Callable[[str, Any, bool], bool] = lambda *_: True,
    ) -> list[Answer | Exception]:
        """Publish and record, all together; then remove from the queue those that have arrived. Returns an answer for each.

        A dead letter that was taken before may have been moved already: then it is only removed.
        """
        letters, publisher, now_ms = self._open[name], self.transport.publisher, self.transport.now_ms()
        found = [letters.found(each.letter) for each in going]
        again = [each.raw for each in found if each is not None and each.taken]
        fates = letters.copies.fates(name, again, going[0].arrives_in if going else "")
        asked: list[tuple[Found | None, Fate | None, list[Move]]] = []
        for each, one in zip(going, found, strict=True):
            fate = None if one is None else fates.get(one.raw)
            if fate is not None:
                moves = [Move(event, ignore, may_wait=False, event_id=event.event_id) for event in fate.events]
            else:
                moves = [] if one is None else [each.move(name, functools.partial(prepare, each.target[0]), now_ms)]
            asked.append((one, fate, [publisher.submit(move) for move in moves]))
        until = time.monotonic() + TIMEOUT
        return [self._ended(letters, until, *each) for each in asked]

    @staticmethod
    def _ended(letters: AmqpLetters, until: float, found: Found | None, fate: Fate | None, moves: list[Move]) -> Answer | Exception:
        if found is None:
            return Answer.ALREADY
        if fate is not None and fate.is_in_doubt:
            return Answer.UNSURE
        try:
            if not all(move.wait(until - time.monotonic()) for move in moves):
                return unconfirmed(moves)
        except BrokerError as exc:
            return exc
        if any(move.answer is not Answer.DONE for move in moves):
            return Answer.MISSING
        letters.take(found)
        return Answer.DONE if fate is None else Answer.ALREADY


@dataclass(frozen=True, slots=True)
class _Going:
    """A dead letter to move or remove: its events and, if it moves, the message that it becomes, its target, and its new queue."""

    letter: bytes
    events: tuple[Event, ...]
    message: bytes | None = None
    target: tuple[str, str] = ("", "")
    arrives_in: str = ""

    def move(self, queue: str, prepare: Callable[[Any, bool], bool], now_ms: int) -> Move:
        """The move out of this queue: what is published, recorded, and written into the journal."""
        made = None if self.message is None else message_of(self.message, target=self.target)
        event, *further = self.events
        return Move(
            event,
            ignore,
            made,
            self.target,
            prepare,
            may_wait=False,
            moved=self._moved(queue, now_ms),
            further=tuple(further),
        )

    def _moved(self, queue: str, now_ms: int) -> Moved | None:
        if self.message is None:
            return Moved(digest_of(self.letter, queue))
        return moved_of(self.letter, self.message, queue, 0, target=self.arrives_in, events=self.events, now_ms=now_ms)


class AmqpLetters:
    """The dead letters of one queue while it is looked at; see `LetterList`."""

    def __init__(self, store: AmqpLetterStore, name: str) -> None:
        self.name = name
        self.total = 0
        self._store = store
        self._connection: Any = None
        self._look: Look | None = None
        self._page: defaultdict[bytes, list[Found]] = defaultdict(list)
        self.copies = Copies(store.transport)

    @property
    def most_taken(self) -> int:
        """How often a dead letter of this look had been taken before: the largest number."""
        return 0 if self._look is None else self._look.most_taken

    def __enter__(self) -> Self:
        self._connection = self._store.transport.connect()
        await_looks(self._connection)
        self.total = depth_of(self._connection, self.name) or 0
        self._look = Look(self._connection, self.name)
        self._look.__enter__()
        self._store.looks_at(self, is_open=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self._store.looks_at(self, is_open=False)
        self.copies.close()
        assert self._look is not None  # noqa: S101 - it was opened above
        self._look.__exit__(*exc)
        self._connection.release()

    def newest(self, limit: int) -> list[bytes]:
        """As `LetterList.newest`; the queue is read from its oldest dead letter on."""
        if limit < 1 or not self.total:
            return []
        kept: deque[bytes] = deque(maxlen=limit)
        for page in self.pages():
            kept.extend(page)
        return list(kept)[::-1]

    def sample(self, limit: int) -> list[bytes]:
        """The `limit` oldest dead letters; no others are taken."""
        pages = self.pages(most=limit) if self.total else iter(())
        return [raw for page in pages for raw in page]

    def pages(self, gone: Callable[[], int] = lambda: 0, *, most: int | None = None) -> Iterator[list[bytes]]:  # noqa: ARG002
        """As `LetterList.pages`; removed dead letters do not change the positions of the others here."""
        assert self._look is not None  # noqa: S101 - it is open
        left = self.total if most is None else min(most, self.total)
        looking = iter(self._look)
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
        """A dead letter with these bytes from the last page, each once; None if there is no more."""
        same = self._page.get(raw)
        return same.pop() if same else None

    def take(self, found: Found) -> None:
        """Remove the dead letter from the queue."""
        assert self._look is not None  # noqa: S101 - it is open
        self._look.take(found)


def carry_out(transport: AmqpTransport, event: Event, message: bytes | None, target: tuple[str, str]) -> Answer:
    """Publish and record one move, and wait for it. Raises `BrokerError` if the broker does not confirm it."""
    made = None if message is None else message_of(message, target=target)
    move = transport.publisher.submit(Move(event, ignore, made, target, may_wait=False))
    if not move.wait(TIMEOUT):
        raise unconfirmed([move])
    return move.answer or Answer.MISSING


def unconfirmed(moves: Sequence[Move]) -> BrokerError:
    """The error for moves of which one has not ended in time: why it fails, as far as that is known."""
    return BrokerError(str(next((each.failure for each in moves if each.failure is not None), UNCONFIRMED)))
