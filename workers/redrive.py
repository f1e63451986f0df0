"""The redrive: dead letters go back to their origin queue, and live once more.

1. What is in the queue when the redrive begins is read, the oldest letter first; what dies again meanwhile is left alone.
2. The filter chooses among the letters.
3. A letter that was chosen becomes its original message again, one generation on, with its history; it is a member of its chord no
   more, for the chord has counted its failure already.
4. One script takes it out of the dead-letter queue, puts it into the origin's list by its priority, and records `redriven`.

Refuses a letter that names no origin, or whose bytes were never a message: it is left where it is, and counted by its reason.
Limits: a redrive that is interrupted has moved some letters and not the others, each of them whole; the same command goes on. Two
redrives of one queue at once share its letters.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from redelivery.errors import BrokerError, EnvelopeError, RedriveError
from redelivery.middleware.envelope import redriven, sealed
from redelivery.middleware.outcomes import Outcome
from redelivery.middleware.transports.base import Answer
from redelivery.workers.dead_letters import Letter, may_be

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redelivery.middleware.keys import Keys
    from redelivery.middleware.outcomes import Event
    from redelivery.middleware.transports.redis import RedisTransport
    from redelivery.workers.letter_filter import Filter

__all__ = ["Redrive", "redrive"]

#: Letters that go in one round trip, and that are read in one.
BATCH, PAGE = 250, 1000
#: Pages get smaller where letters are huge.
MOST_BYTES = 8 * 1024 * 1024
#: With a rate, letters go in batches of this part of a second.
BEAT = 0.1


@dataclass(slots=True, kw_only=True)
class Redrive:
    """What a redrive did, or (`dry_run`) would do.

    Of the `total` letters that were there when it began, `looked_at` were read and `matched` chosen. Of these `moved` went back, by
    origin queue in `by_queue`, and `chords` of them had belonged to a chord; `gone` had left the queue meanwhile; `left` counts
    those that cannot go back, by reason.
    """

    dead_letter_queue: str
    dry_run: bool
    total: int = 0
    looked_at: int = 0
    matched: int = 0
    moved: int = 0
    gone: int = 0
    chords: int = 0
    left: Counter[str] = field(default_factory=Counter)
    by_queue: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**facts, "left": dict(self.left), "by_queue": dict(self.by_queue)}


def redrive(
    transport: RedisTransport,
    name: str,
    chosen: Filter,
    *,
    dry_run: bool = False,
    rate: float | None = None,
    limit: int | None = None,
    on_progress: Callable[[Redrive], None] = lambda _: None,
) -> Redrive:
    """Send letters of one dead-letter queue back: at most `limit` of them, at most `rate` a second.

    Raises `BrokerError` where the broker refuses or does not answer; the message says how many letters had gone back.
    """
    result = Redrive(dead_letter_queue=name, dry_run=dry_run)
    try:
        _Walk(transport, chosen, _Sender(transport, result, rate), limit).run(on_progress)
    except RedisError as exc:
        msg = f"the redrive of {name!r} stopped when {result.moved} letters had gone back: {exc}; the same command goes on"
        raise BrokerError(msg) from exc
    finally:
        on_progress(result)
    return result


@dataclass(slots=True)
class _Walk:
    """One way through the queue, from the oldest letter to the newest that was there when it began."""

    transport: RedisTransport
    chosen: Filter
    sender: _Sender
    limit: int | None
    began_ms: int = 0

    def run(self, on_progress: Callable[[Redrive], None]) -> None:
        result = self.sender.result
        client, key = self.transport.client, self.transport.keys.list(result.dead_letter_queue)
        self.began_ms = self.transport.now_ms()
        result.total = int(client.llen(key))
        staying, size = 0, PAGE
        while result.looked_at < result.total and not self._is_full():
            count = min(size, result.total - result.looked_at)
            page: Any = client.lrange(key, -(staying + count), -(staying + 1))
            if not page:
                return
            before = result.moved + result.gone
            self._take(page[::-1], on_progress)
            on_progress(result)
            left_queue = 0 if result.dry_run else result.moved + result.gone - before
            staying += len(page) - left_queue
            size = max(size // 2, 1) if sum(map(len, page)) > MOST_BYTES else min(size * 2, PAGE)

    def _is_full(self) -> bool:
        return self.limit is not None and self.sender.result.matched >= self.limit

    def _take(self, raws: list[bytes], on_progress: Callable[[Redrive], None]) -> None:
        """Choose among these letters, and send back what was chosen."""
        batch: list[_Move] = []
        for raw in raws:
            if self._is_full():
                break
            self.sender.result.looked_at += 1
            move = self._chosen(raw)
            if move is None:
                continue
            batch.append(move)
            if len(batch) >= self.sender.batch:
                self.sender.send(batch)
                on_progress(self.sender.result)
                batch = []
        self.sender.send(batch)

    def _chosen(self, raw: bytes) -> _Move | None:
        if not may_be(raw, self.chosen.task_ids):
            return None
        letter = Letter.of(raw)
        if not self.chosen.passes(letter):
            return None
        if letter.died_ms is not None and letter.died_ms > self.began_ms:
            return None
        self.sender.result.matched += 1
        try:
            return returned(letter, self.transport.keys)
        except RedriveError as exc:
            self.sender.result.left[str(exc)] += 1
            return None


class _Sender:
    """Carries the moves out, a batch at a time; with a rate a few letters, evenly. `result` counts what the broker has answered."""

    def __init__(self, transport: RedisTransport, result: Redrive, rate: float | None) -> None:
        self.result = result
        self.batch = BATCH if rate is None else max(1, min(int(rate * BEAT), BATCH))
        self._transport = transport
        self._rate = rate
        self._next = time.monotonic()

    def send(self, batch: list[_Move]) -> None:
        """Send a batch. Raises the first error of the broker, after the count of what was moved."""
        if not batch:
            return
        if self.result.dry_run:
            self._count(batch, [Answer.DONE] * len(batch))
            return
        self._wait(len(batch))
        self._count(batch, self._transport.redrive_many(self.result.dead_letter_queue, [move.parts for move in batch]))

    def _count(self, batch: list[_Move], answers: Sequence[Answer | Exception]) -> None:
        for move, answer in zip(batch, answers, strict=True):
            if answer is Answer.DONE:
                self.result.moved += 1
                self.result.chords += move.left_chord
                self.result.by_queue[move.queue] += 1
            elif answer is Answer.ALREADY:
                self.result.gone += 1
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    def _wait(self, count: int) -> None:
        """Until so many more may go."""
        if self._rate is not None:
            time.sleep(max(self._next - time.monotonic(), 0.0))
            self._next = max(self._next, time.monotonic()) + count / self._rate


@dataclass(frozen=True, slots=True)
class _Move:
    """One letter on its way: what the transition takes, where to, and whether it left a chord."""

    parts: tuple[bytes, str, bytes, Event]
    queue: str
    left_chord: bool


def returned(letter: Letter, keys: Keys) -> _Move:
    """The letter as it goes back to its origin. Raises `RedriveError`, whose message is the reason why it cannot."""
    contents = letter.contents
    if not letter.is_message:
        msg = "its bytes were never a message"
        raise RedriveError(msg)
    if not letter.death:
        msg = "it has no death record: somebody else put it here"
        raise RedriveError(msg)
    message, left_chord = contents.without_chord()
    try:
        again = redriven(message)
    except EnvelopeError as exc:
        msg = "it names no origin queue"
        raise RedriveError(msg) from exc
    queue = letter.origin_queue
    event = contents.event(Outcome.REDRIVEN, queue, generation=contents.envelope.generation + 1)
    return _Move((contents.raw, keys.list_name(queue, contents.priority), sealed(again), event), queue, left_chord)
