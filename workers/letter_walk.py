"""The walk through a dead-letter queue: every letter that was there when it began, the oldest first, in batches.

Enters: a queue, a filter, and what is to become of a letter that passes it. Leaves: the counts. What dies again meanwhile is left
alone. Each letter is read once, and each is moved whole or not at all; a walk that is interrupted has moved some and not the
others, and the same walk goes on. With a rate, letters go evenly.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redelivery.errors import RedriveError
from redelivery.middleware.transports.base import Answer
from redelivery.workers.dead_letters import Letter, may_be

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from redelivery.middleware.transports.redis import RedisTransport
    from redelivery.workers.letter_filter import Filter

__all__ = ["BATCH", "Walk", "Walked", "letters_of"]

#: Letters that go in one round trip, and that are read in one.
BATCH, PAGE = 250, 1000
#: Pages get smaller where letters are huge.
MOST_BYTES = 8 * 1024 * 1024
#: With a rate, letters go in batches of this part of a second.
BEAT = 0.1

Job = TypeVar("Job")


@dataclass(slots=True, kw_only=True)
class Walked:
    """What a walk did, or (`dry_run`) would do.

    Of the `total` letters that were there when it began, `looked_at` were read and `matched` chosen. Of these `moved` went; `gone`
    had left the queue meanwhile; `left` counts those that cannot go, by reason.
    """

    dead_letter_queue: str
    dry_run: bool
    total: int = 0
    looked_at: int = 0
    matched: int = 0
    moved: int = 0
    gone: int = 0
    left: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in facts.items()}


@dataclass(slots=True, kw_only=True)
class Walk(Generic[Job]):
    """One way through the queue.

    `prepare` makes of a letter what `carry` takes, or raises `RedriveError`, whose message is the reason why the letter stays.
    `carry` takes a batch, and answers for each; it is not asked in a dry run. `count` is told of each that went, or would go.
    """

    transport: RedisTransport
    chosen: Filter
    result: Walked
    prepare: Callable[[Letter], Job]
    carry: Callable[[list[Job]], Sequence[Answer | Exception]]
    count: Callable[[Job], None] = lambda _: None
    on_progress: Callable[[Any], None] = lambda _: None
    rate: float | None = None
    limit: int | None = None
    _began_ms: int = 0
    _next: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Walk. Raises what the broker does, after the count of what had been moved."""
        result = self.result
        client, key = self.transport.client, self.transport.keys.list(result.dead_letter_queue)
        self._began_ms = self.transport.now_ms()
        result.total = int(client.llen(key))
        staying, size = 0, PAGE
        while result.looked_at < result.total and not self._is_full():
            count = min(size, result.total - result.looked_at)
            page: Any = client.lrange(key, -(staying + count), -(staying + 1))
            if not page:
                return
            before = result.moved + result.gone
            self._take(page[::-1])
            self.on_progress(result)
            left_queue = 0 if result.dry_run else result.moved + result.gone - before
            staying += len(page) - left_queue
            size = max(size // 2, 1) if sum(map(len, page)) > MOST_BYTES else min(size * 2, PAGE)

    def _is_full(self) -> bool:
        return self.limit is not None and self.result.matched >= self.limit

    def _take(self, raws: list[bytes]) -> None:
        """Choose among these letters, and carry away what was chosen."""
        batch: list[Job] = []
        most = BATCH if self.rate is None else max(1, min(int(self.rate * BEAT), BATCH))
        for raw in raws:
            if self._is_full():
                break
            self.result.looked_at += 1
            job = self._chosen(raw)
            if job is None:
                continue
            batch.append(job)
            if len(batch) >= most:
                self._send(batch)
                self.on_progress(self.result)
                batch = []
        self._send(batch)

    def _chosen(self, raw: bytes) -> Job | None:
        if not may_be(raw, self.chosen.task_ids):
            return None
        letter = Letter.of(raw)
        if not self.chosen.passes(letter):
            return None
        if letter.died_ms is not None and letter.died_ms > self._began_ms:
            return None
        self.result.matched += 1
        try:
            return self.prepare(letter)
        except RedriveError as exc:
            self.result.left[str(exc)] += 1
            return None

    def _send(self, batch: list[Job]) -> None:
        """Carry a batch. Raises the first error of the broker, after the count of what was moved."""
        if not batch:
            return
        if self.result.dry_run:
            self._count(batch, [Answer.DONE] * len(batch))
            return
        self._wait(len(batch))
        self._count(batch, self.carry(batch))

    def _count(self, batch: list[Job], answers: Sequence[Answer | Exception]) -> None:
        for job, answer in zip(batch, answers, strict=True):
            if answer is Answer.DONE:
                self.result.moved += 1
                self.count(job)
            elif answer is Answer.ALREADY:
                self.result.gone += 1
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    def _wait(self, count: int) -> None:
        """Until so many more may go."""
        if self.rate is not None:
            time.sleep(max(self._next - time.monotonic(), 0.0))
            self._next = max(self._next, time.monotonic()) + count / self.rate


def letters_of(transport: RedisTransport, name: str) -> Iterator[Letter]:
    """The letters of a queue, those that were there at first, the oldest first; nothing is changed.

    Letters that leave meanwhile move the others: some may then be passed over.
    """
    key, seen, size = transport.keys.list(name), 0, PAGE
    total = int(transport.client.llen(key))
    while seen < total:
        page: Any = transport.client.lrange(key, -(seen + min(size, total - seen)), -(seen + 1))
        if not page:
            return
        yield from map(Letter.of, page[::-1])
        seen += len(page)
        size = max(size // 2, 1) if sum(map(len, page)) > MOST_BYTES else min(size * 2, PAGE)
