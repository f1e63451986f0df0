"""Dead letters on Redis. Each dead-letter queue is a list, and reading it changes nothing."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.scripts import text_of
from redelivery.middleware.brokers.redis.stores import Under
from redelivery.middleware.ports import Answer

from ...letters import Letter, may_be
from ...ports import DeadLetterQueue, Halted, LetterPage
from .pages import list_pages
from .taken_keys import is_list, warn_of_taken_letters
from .transport import OnRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from redis import Redis

    from redelivery.middleware.brokers.redis.transport import RedisTransport
    from redelivery.middleware.messages.events import Event

    from ...ports import Claim

#: Number of dead letters from which a queue's reasons are counted, and number of queues in one round trip.
SAMPLE, QUEUES = 200, 20
#: The maximum number of dead letters in one page.
PAGE = 1000
#: After a page with more bytes, the next page is smaller.
MAX_BYTES = 8 * 1024 * 1024
#: Number of recent pages whose dead letters are remembered, by digest.
REMEMBERED_PAGES = 20


class RedisLetterStore(OnRedis):
    """Implements `LetterStore` on Redis. Each move is one script; the moves of a batch are sent in one round trip.

    Under the claim of an operation, moved dead letters are counted, and the answer is `Halted` if it may not continue.
    """

    def __init__(self, transport: RedisTransport, claim: Claim | None = None) -> None:
        super().__init__(transport)
        self._claim = claim

    def queues(self, named: Mapping[str, str]) -> dict[str, str]:
        """As `LetterStore.queues`. A key of another type holds no dead letter, and must not hide those of the other queues."""
        used: Any = self._client.hgetall(self._keys.dead_letter_queues)
        names = {**named, **{name.decode(errors="replace"): origin.decode(errors="replace") for name, origin in used.items()}}
        with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.type(self._keys.list(name))
            kinds = {name: text_of(kind) for name, kind in zip(names, pipe.execute(), strict=True)}
        for name, kind in kinds.items():
            if not is_list(kind):
                warn_of_taken_letters(name, self._keys.list(name), kind)
        return {name: origin for name, origin in names.items() if is_list(kinds[name])}

    def is_consumed(self, name: str) -> bool:
        """Return whether workers with redelivery wait for this queue, or did so in the last thirty days."""
        return bool(self._client.exists(self._keys.watch(name), self._keys.idle(name)))

    def depth(self, name: str) -> int:
        return int(self._client.llen(self._keys.list(name)))

    def summaries(self, origins: Mapping[str, str]) -> list[DeadLetterQueue]:
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

    def open(self, name: str) -> AbstractContextManager[RedisLetters]:
        return nullcontext(RedisLetters(self._client, self._keys.list(name), self.depth(name)))

    def page(self, name: str, before: int | None, count: int) -> LetterPage:
        """Count places from the list's tail, so that new dead letters do not change them."""
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
        self, dead_letter_queue: str, target: str, moves: Sequence[tuple[bytes, bytes, str, tuple[Event, Event]]]
    ) -> list[Answer | Exception]:
        return halted(self._transport.stores.move_many(dead_letter_queue, target, moves, under=self._under()))

    def _under(self) -> Under | None:
        if self._claim is None:
            return None
        ident, token, follows = self._claim
        return Under(self._keys.operation(ident), self._keys.followed(ident) if follows() else None, token)


def _summary(name: str, origin: str, count: Any, sample: Any, oldest: Any) -> DeadLetterQueue:
    if not sample or oldest is None:
        return DeadLetterQueue(name, origin, int(count))
    letters = [Letter.of(raw) for raw in sample]
    reasons = Counter(letter.known_reason for letter in letters)
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
    """Replace `REFUSED` by `Halted`: the operation may no longer move the dead letter."""
    return [Halted() if answer is Answer.REFUSED else answer for answer in answers]


@dataclass(frozen=True, slots=True)
class RedisLetters:
    """Implements `LetterList` on Redis. It holds nothing."""

    client: Redis
    key: str
    total: int

    def newest(self, limit: int) -> list[bytes]:
        raws: Any = self.client.lrange(self.key, 0, limit - 1) if limit > 0 else []
        return list(raws)

    def pages(self, gone: Callable[[], int] = lambda: 0) -> Iterator[list[bytes]]:
        """Read all dead letters, even if other clients remove some meanwhile.

        Each page begins with the newest dead letter that was read and stays. If it is another one, dead letters have moved.
        """
        seen, lost, size, known = 0, 0, PAGE, deque[set[bytes]](maxlen=REMEMBERED_PAGES)
        while seen < self.total:
            count, staying = min(size, self.total - seen), max(seen - gone() - lost, 0)
            page: Any = self.client.lrange(self.key, -(staying + count), -max(staying, 1))
            if staying and not (page and _is_known(page.pop(), known)):
                back: Any = self.client.lrange(self.key, -staying, -(max(staying - size, 0) + 1))
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
