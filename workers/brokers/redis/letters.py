"""Dead letters on Redis: each queue is a list, and reading it changes nothing."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Self

from redelivery.middleware.brokers.redis.stores import Under
from redelivery.middleware.ports import Answer

from ...letters import Letter, may_be
from ...ports import DeadLetterQueue, Halted, LetterPage
from .pages import list_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from redis import Redis

    from redelivery.middleware.brokers.redis.transport import RedisTransport
    from redelivery.middleware.messages.events import Event

    from ...ports import Claim

#: How many dead letters the reasons of a queue are counted from, and how many queues are read in one round trip.
SAMPLE, QUEUES = 200, 20
#: Dead letters that are read in one round trip.
PAGE = 1000
#: Pages get smaller if their dead letters have more bytes than this.
MAX_BYTES = 8 * 1024 * 1024
#: Of so many pages the dead letters are still known by their digests.
KNOWN = 20


class RedisLetterStore:
    """See `LetterStore`. Dead letters are moved in one round trip; each move is one script, done completely or not at all."""

    def __init__(self, transport: RedisTransport) -> None:
        self._transport, self._client, self._keys = transport, transport.client, transport.keys

    def queues(self) -> dict[str, str]:
        used: Any = self._client.hgetall(self._keys.dead_letter_queues)
        return {name.decode(errors="replace"): origin.decode(errors="replace") for name, origin in used.items()}

    def has_queue(self, name: str) -> bool:
        """As `LetterStore.has_queue`: an empty queue has no list, but a queue that kombu has declared has a binding."""
        return bool(self._client.exists(self._keys.list(name), self._keys.bindings(name)))

    def is_consumed(self, name: str) -> bool:
        """As `LetterStore.is_consumed`: workers with redelivery wait for it, or did so in the last thirty days."""
        return bool(self._client.exists(self._keys.watch(name), self._keys.idle(name)))

    def depth(self, name: str) -> int:
        return int(self._client.llen(self._keys.list(name)))

    def summaries(self, origins: Mapping[str, str]) -> list[DeadLetterQueue]:
        """As `LetterStore.summaries`, some queues in one round trip."""
        queues, found = list(origins.items()), list[DeadLetterQueue]()
        for some in (queues[at : at + QUEUES] for at in range(0, len(queues), QUEUES)):
            with self._client.pipeline(transaction=False) as pipe:
                for name, _ in some:
                    key = self._keys.list(name)
                    pipe.llen(key)
                    pipe.lrange(key, 0, SAMPLE - 1)
                    pipe.lindex(key, -1)
                answers = iter(pipe.execute())
            found += [_summary(name, origin, *itertools.islice(answers, 3)) for name, origin in some]
        return found

    def open(self, name: str) -> RedisLetters:
        return RedisLetters(self._client, self._keys.list(name))

    def page(self, name: str, before: int | None, count: int) -> LetterPage:
        """As `LetterStore.page`: places count from the list's tail, so that new dead letters do not change them."""
        key = self._keys.list(name)
        with self._client.pipeline(transaction=True) as pipe:
            pipe.llen(key)
            if before is None:
                pipe.lrange(key, 0, max(count, 1) - 1)
            else:
                pipe.lrange(key, -max(before, 1), -max(before - count + 1, 1))
            total, raws = pipe.execute()
        first = total if before is None else min(before, total)
        found = list(raws) if count > 0 and first > 0 else []
        return LetterPage([(first - 1 - at, raw) for at, raw in enumerate(found)], int(total))

    def found(self, name: str, task_ids: Collection[str]) -> Iterator[Letter]:
        seen = set()
        for _, page in list_pages(self._client, self._keys.list(name)):
            for raw in page:
                if not may_be(raw, task_ids) or raw in seen:
                    continue
                letter = Letter.of(raw)
                if letter.task_id.startswith(tuple(task_ids)):
                    seen.add(raw)
                    yield letter

    def redrive_many(self, dead_letter_queue: str, moves: Sequence[tuple[bytes, str, bytes, Event]]) -> list[Answer | Exception]:
        return halted(self._transport.stores.redrive_many(dead_letter_queue, moves, under=self._under()))

    def purge_many(self, dead_letter_queue: str, gone: Sequence[tuple[bytes, Event]]) -> list[Answer | Exception]:
        return halted(self._transport.stores.purge_many(dead_letter_queue, gone, under=self._under()))

    def move_many(
        self,
        dead_letter_queue: str,
        target: str,
        moves: Sequence[tuple[bytes, bytes, str, tuple[Event, Event]]],
    ) -> list[Answer | Exception]:
        return halted(self._transport.stores.move_many(dead_letter_queue, target, moves, under=self._under()))

    def _under(self) -> Under | None:
        """The operation for which dead letters are moved, if any."""
        return None


class ClaimedLetterStore(RedisLetterStore):
    """The same for an operation: it counts the moved dead letters; the answer is `Halted` when the operation may not go on."""

    def __init__(self, transport: RedisTransport, claim: Claim) -> None:
        super().__init__(transport)
        self._claim = claim

    def _under(self) -> Under:
        ident, token, follows = self._claim
        return Under(self._keys.operation(ident), self._keys.followed(ident) if follows() else None, token)


def _summary(name: str, origin: str, count: Any, sample: Any, oldest: Any) -> DeadLetterQueue:
    """The summary of a queue, from its count, its newest dead letters, and the oldest."""
    if not sample or oldest is None:
        return DeadLetterQueue(name, origin, int(count))
    letters = [Letter.of(raw) for raw in sample]
    reasons = Counter(letter.reason or "unknown" for letter in letters)
    return DeadLetterQueue(
        name,
        origin,
        letters=int(count),
        oldest_ms=Letter.of(oldest).died_ms,
        newest_ms=letters[0].died_ms,
        reasons=dict(reasons.most_common()),
        sampled=len(letters),
    )


def halted(answers: Sequence[Answer | Exception]) -> list[Answer | Exception]:
    """The answers, with `Halted` for each dead letter that its operation may no longer move."""
    return [Halted() if answer is Answer.REFUSED else answer for answer in answers]


class RedisLetters:
    """The dead letters of one queue, a Redis list that is read in pages; see `LetterList`."""

    def __init__(self, client: Redis, key: str) -> None:
        self._client, self._key = client, key
        self.total = 0

    def __enter__(self) -> Self:
        self.total = int(self._client.llen(self._key))
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: reading holds no messages."""

    def newest(self, limit: int) -> list[bytes]:
        """As `LetterList.newest`; the cost does not depend on the queue's size."""
        raws: Any = self._client.lrange(self._key, 0, limit - 1) if limit > 0 else []
        return list(raws)

    def pages(self, gone: Callable[[], int] = lambda: 0) -> Iterator[list[bytes]]:
        """As `LetterList.pages`. If other clients remove dead letters meanwhile, the others are still read.

        The newest dead letter that was read and stays is known. If it is not where it must be, the later ones have moved.
        """
        seen, lost, size, known = 0, 0, PAGE, deque[set[bytes]](maxlen=KNOWN)
        while seen < self.total:
            count, staying = min(size, self.total - seen), max(seen - gone() - lost, 0)
            page: Any = self._client.lrange(self._key, -(staying + count), -max(staying, 1))
            if staying and not (page and _is_known(page.pop(), known)):
                back: Any = self._client.lrange(self._key, -staying, -(max(staying - size, 0) + 1))
                lost += next((at for at, raw in enumerate(back) if _is_known(raw, known)), min(size, staying))
                continue
            if not page:
                return
            before = gone()
            yield page[::-1]
            seen += len(page)
            if gone() - before < len(page):
                known.append({_digest(raw) for raw in page})
            size = max(size // 2, 1) if sum(map(len, page)) > MAX_BYTES else min(size * 2, PAGE)


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=8).digest()


def _is_known(raw: bytes, known: Iterable[set[bytes]]) -> bool:
    digest = _digest(raw)
    return any(digest in page for page in known)
