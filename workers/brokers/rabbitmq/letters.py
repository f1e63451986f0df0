"""Dead letters on RabbitMQ: looked at in their order, and sent back, removed or moved without a moment in which they are nowhere.

A letter that goes is published where it goes, and confirmed; then its event is recorded, and confirmed; then it is acknowledged,
and so leaves its queue (the publisher's moves, `publisher`). A crash in between leaves a letter that has gone in its queue as
well: the next command that would move it knows it by the journal of moves, and takes it away (`copies`). It is never nowhere.

While a queue is looked at its letters are held, so that no other tool and no handler is given them; then they are given back in
their order (`peek`, which says what that costs). Nothing is held when nothing is looked at: counts come from the queue itself.

Refuses, letter by letter, what cannot be routed: an origin whose queue is gone. Limits: which dead-letter queues there may be is
what the app's settings say, for RabbitMQ lists its queues to nobody but its management plugin; a look holds `MAX_HELD` letters.
"""

from __future__ import annotations

import functools
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

#: Letters of one page.
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
        """As `LetterStore.queues`: RabbitMQ has no place to note which were used."""
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
        """As `LetterStore.depth`. Needs no management plugin."""
        with self.transport.asking() as connection:
            return depth_of(connection, name) or 0

    def summaries(self, origins: Mapping[str, str]) -> list[DeadLetterQueue]:
        """As `LetterStore.summaries`: counted, for a look would mark the letters."""
        if not origins:
            return []
        with self.transport.asking() as connection:
            return [DeadLetterQueue(name, origin, depth_of(connection, name) or 0) for name, origin in origins.items()]

    def open(self, name: str) -> AmqpLetters:
        return AmqpLetters(self, name)

    def page(self, name: str, before: int | None, count: int) -> LetterPage:  # noqa: ARG002 - nothing here has a place
        """As `LetterStore.page`: refused, for a look takes the letters and gives them back."""
        msg = f"the dead letters of {name!r} cannot be paged on RabbitMQ: a look takes them, and marks them"
        raise BrokerError(msg)

    def found(self, name: str, task_ids: Collection[str]) -> Iterator[Letter]:
        """As `LetterStore.found`; the queue is read from its oldest letter on."""
        with self.open(name) as letters:
            read = (Letter.of(raw) for page in letters.pages() for raw in page if may_be(raw, task_ids))
            chosen = [letter for letter in read if letter.task_id.startswith(tuple(task_ids))]
        yield from reversed(chosen)

    def looks_at(self, letters: AmqpLetters, *, is_open: bool) -> None:
        """This list is looked at from now on, or no more."""
        if is_open:
            self._open[letters.name] = letters
        else:
            self._open.pop(letters.name, None)

    def redrive_many(self, dead_letter_queue: str, moves: Sequence[tuple[bytes, str, bytes, Event]]) -> list[Answer | Exception]:
        """Send letters to where they were first published to, each by itself; `MISSING` where nothing takes them there."""
        going = [_Going(letter, (event,), message, home_of(message, queue), queue) for letter, queue, message, event in moves]
        return self._carry(dead_letter_queue, going, self._there)

    def purge_many(self, dead_letter_queue: str, gone: Sequence[tuple[bytes, Event]]) -> list[Answer | Exception]:
        """Remove letters for good: each is recorded, then acknowledged."""
        return self._carry(dead_letter_queue, [_Going(letter, (event,)) for letter, event in gone])

    def move_many(
        self,
        dead_letter_queue: str,
        target: str,
        moves: Sequence[tuple[bytes, bytes, str, tuple[Event, Event]]],
    ) -> list[Answer | Exception]:
        """Move letters to another dead-letter queue, which is made where it is not there."""
        prepare = functools.partial(self.keep, target, "" if not moves else moves[0][2])
        going = [_Going(letter, events, moved, ("", target), target) for letter, moved, _, events in moves]
        return self._carry(dead_letter_queue, going, prepare)

    def _there(self, exchange: str, connection: Any, is_again: bool) -> bool:
        """Whether there is this exchange: a publication to one that is missing would close the publisher's channel."""
        if exchange and (is_again or exchange not in self._seen):
            if not has_exchange(connection, exchange):
                return False
            self._seen.add(exchange)
        return True

    def keep(self, name: str, origin: str, _: str, connection: Any, is_again: bool) -> bool:
        """Have this dead-letter queue there, of the type of its origin; as `Move.prepare`."""
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
        """Publish and record, all at once; then take from the queue what has arrived. An answer for each.

        What was taken before may have gone already: then it is only taken away.
        """
        letters, publisher, now_ms = self._open[name], self.transport.publisher, self.transport.now_ms()
        found = [letters.found(each.letter) for each in going]
        again = [each.raw for each in found if each is not None and each.taken]
        fates = letters.copies.fates(name, again, going[0].arrives_in if going else "")
        asked: list[tuple[Found | None, Fate | None, list[Move]]] = []
        for each, one in zip(going, found, strict=True):
            fate = None if one is None else fates.get(one.raw)
            if fate is not None:
                moves = [Move(event, ignore, event_id=event.event_id) for event in fate.events]
            else:
                moves = [] if one is None else [each.move(name, functools.partial(prepare, each.target[0]), now_ms)]
            asked.append((one, fate, [publisher.submit(move) for move in moves]))
        return [self._ended(letters, *each) for each in asked]

    @staticmethod
    def _ended(letters: AmqpLetters, found: Found | None, fate: Fate | None, moves: list[Move]) -> Answer | Exception:
        if found is None:
            return Answer.ALREADY
        if fate is not None and fate.is_in_doubt:
            return Answer.UNSURE
        for move in moves:
            if not move.wait(TIMEOUT):
                return BrokerError(UNCONFIRMED)
        if any(move.answer is not Answer.DONE for move in moves):
            return Answer.MISSING
        letters.take(found)
        return Answer.DONE if fate is None else Answer.ALREADY


@dataclass(frozen=True, slots=True)
class _Going:
    """A letter that goes: its events, and the message that it becomes, where it goes, and the queue where it arrives, if any."""

    letter: bytes
    events: tuple[Event, ...]
    message: bytes | None = None
    target: tuple[str, str] = ("", "")
    arrives_in: str = ""

    def move(self, queue: str, prepare: Callable[[Any, bool], bool], now_ms: int) -> Move:
        """How it leaves this queue: what is published and recorded, and told to the journal."""
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
    """The letters of one queue while it is looked at; see `LetterList`."""

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
        """How often the most looked at letter had been taken before."""
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
        """As `LetterList.newest`; the queue is read from its oldest letter on."""
        if limit < 1 or not self.total:
            return []
        kept: deque[bytes] = deque(maxlen=limit)
        for page in self.pages():
            kept.extend(page)
        return list(kept)[::-1]

    def sample(self, limit: int) -> list[bytes]:
        """The `limit` oldest letters, and no look beyond them."""
        pages = self.pages(most=limit) if self.total else iter(())
        return [raw for page in pages for raw in page]

    def pages(self, gone: Callable[[], int] = lambda: 0, *, most: int | None = None) -> Iterator[list[bytes]]:  # noqa: ARG002
        """As `LetterList.pages`; what is taken away moves nothing here."""
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
        """One letter of the page that was read last, each once."""
        same = self._page.get(raw)
        return same.pop() if same else None

    def take(self, found: Found) -> None:
        """The letter has gone."""
        assert self._look is not None  # noqa: S101 - it is open
        self._look.take(found)


def carry_out(transport: AmqpTransport, event: Event, message: bytes | None, target: tuple[str, str]) -> Answer:
    """Publish and record one move, and wait for it. Raises `BrokerError` where the broker confirms nothing."""
    made = None if message is None else message_of(message, target=target)
    move = transport.publisher.submit(Move(event, ignore, made, target, may_wait=False))
    if not move.wait(TIMEOUT):
        raise BrokerError(UNCONFIRMED)
    return move.answer or Answer.MISSING
