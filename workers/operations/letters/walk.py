"""Walks through a dead-letter queue: every dead letter that is there at the beginning, the oldest first, in batches.

Letters that die meanwhile are not touched. After an interruption some letters have moved, each completely; running the same walk
again moves the others. With a rate, letters move evenly.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from redelivery.errors import BrokerError, RedriveError
from redelivery.middleware.brokers.errors import ANY_BROKER_ERRORS
from redelivery.middleware.policy.clock_skew import TOLERANCE_MS
from redelivery.middleware.ports import Answer

from ...brokers.broker import broker_of
from ...letters import Letter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from redelivery.middleware.ports import Transport

    from ...ports import DelayStore, LetterStore
    from .filter import Filter

#: The maximum number of letters that are moved in one round trip.
BATCH = 250
#: Seconds of one batch, if a rate is given.
BEAT = 0.1

#: Why a letter stays if the broker cannot route it.
UNROUTABLE = "its queue does not exist, or is full: start a worker on it, or send the dead letter to another queue with --to"
#: Why a letter stays if a command that was moving it died, or lost its connection before the broker's answer.
UNSURE = (
    "a command that died or lost its connection may have moved it: "
    "run this again when the queue that it was sent to is empty, or after ten minutes"
)

Job = TypeVar("Job")


@dataclass(slots=True, kw_only=True)
class Walked:
    """The result of a walk, or (`dry_run`) what it would do.

    Of the `total` letters at the beginning, `looked_at` were read and `matched` were chosen. Of the chosen ones, `moved` were
    moved, `gone` had left the queue meanwhile, and the others stay: `left` counts them by reason. `kind`, `things` and `went` are
    words for an error's text: "the walk stopped when 5 dead letters had gone".
    """

    kind: ClassVar[str] = "walk"
    things: ClassVar[str] = "dead letters"
    went: ClassVar[str] = "had gone"

    dead_letter_queue: str
    dry_run: bool
    total: int = 0
    looked_at: int = 0
    matched: int = 0
    moved: int = 0
    gone: int = 0
    left: Counter[str] = field(default_factory=Counter)

    def is_full(self, limit: int | None) -> bool:
        """Whether the limit is reached. A dead letter in doubt (`UNSURE`) does not count."""
        return limit is not None and self.matched - self.left[UNSURE] >= limit

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def cut_short(self, exc: BaseException) -> BrokerError:
        """Return the error to raise for a broker's error. Its text says how many letters had been moved."""
        of = f" of {self.dead_letter_queue!r}" if self.dead_letter_queue else ""
        so_far = f"the {self.kind}{of} stopped when {self.moved} {self.things} {self.went}"
        return BrokerError(f"{so_far}: {exc}; run the same command again to continue")


@dataclass(slots=True)
class Evenly:
    """Limits a walk to `rate` letters a second (None: no limit). It calls `sleep` to wait."""

    rate: float | None
    sleep: Callable[[float], None]
    _next: float = field(default_factory=time.monotonic)

    def wait(self, count: int) -> None:
        """Wait until `count` more letters may be moved."""
        if self.rate is not None:
            self.sleep(max(self._next - time.monotonic(), 0.0))
            self._next = max(self._next, time.monotonic()) + count / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkOptions:
    """How to walk: at most `limit` letters, at most `rate` a second; a `dry_run` moves none. `on_progress` gets the result so far.

    Letters that died after `began_ms` are not touched (None: after the walk's beginning). `letters` moves letters and `delayed`
    cancels messages (None: the broker's store). `sleep` waits between two batches. `on_chosen` is called for each chosen letter.
    """

    dry_run: bool = False
    limit: int | None = None
    rate: float | None = None
    on_progress: Callable[[Any], None] = lambda _: None
    began_ms: int | None = None
    letters: LetterStore | None = None
    delayed: DelayStore | None = None
    sleep: Callable[[float], None] = time.sleep
    on_chosen: Callable[[Letter], None] = lambda _: None


#: All letters, as fast as the broker answers.
ALL = WalkOptions()


@dataclass(slots=True, kw_only=True)
class Walk(Generic[Job]):
    """One walk through the queue.

    - `prepare` turns a letter into a job, or raises `RedriveError`, whose text is the reason why the letter stays.
    - `carry` carries out a batch of jobs, and returns an answer for each. A dry run does not call it.
    - `count` is called for each letter that moved, or in a dry run would move; `on_moved` only for each letter that moved.
    - `finish` is called at the end, when the queue is closed.
    """

    letters: LetterStore
    transport: Transport
    chosen: Filter
    result: Walked
    prepare: Callable[[Letter], Job]
    carry: Callable[[list[Job]], Sequence[Answer | Exception]]
    count: Callable[[Job], None] = lambda _: None
    on_moved: Callable[[Job], None] = lambda _: None
    finish: Callable[[], None] = lambda: None
    how: WalkOptions = ALL
    _began_ms: int = 0
    _evenly: Evenly = field(init=False)
    _may_pass: Callable[[bytes], bool] = field(init=False)

    def __post_init__(self) -> None:
        self._may_pass = self.chosen.sieve()
        self._evenly = Evenly(self.how.rate, self.how.sleep)

    def run(self) -> None:
        """Walk through the queue. Raises `BrokerError`; its text says how many letters had been moved."""
        try:
            self._walk()
            self.finish()
        except ANY_BROKER_ERRORS as exc:
            raise self.result.cut_short(exc) from exc

    def _walk(self) -> None:
        self._began_ms = self.transport.now_ms() if self.how.began_ms is None else self.how.began_ms
        with self.letters.open(self.result.dead_letter_queue) as letters:
            self.result.total = letters.total
            for page in letters.pages(self._gone):
                self._take(page)
                self.how.on_progress(self.result)
                if self.result.is_full(self.how.limit):
                    return

    def _gone(self) -> int:
        """How many letters have left the queue."""
        return 0 if self.result.dry_run else self.result.moved + self.result.gone

    def _take(self, raws: list[bytes]) -> None:
        """Carry out the jobs of the letters that the filter chooses."""
        batch: list[Job] = []
        size = BATCH if self.how.rate is None else max(1, min(int(self.how.rate * BEAT), BATCH))
        for raw in raws:
            if self.result.is_full(self.how.limit):
                self._send(batch)
                batch = []
                if self.result.is_full(self.how.limit):
                    return
            self.result.looked_at += 1
            job = self._chosen(raw)
            if job is None:
                continue
            batch.append(job)
            if len(batch) >= size:
                self._send(batch)
                self.how.on_progress(self.result)
                batch = []
        self._send(batch)

    def _chosen(self, raw: bytes) -> Job | None:
        if not self._may_pass(raw):
            return None
        letter = Letter.of(raw)
        if not self.chosen.passes(letter):
            return None
        if letter.died_ms is not None and self._began_ms < letter.died_ms <= self.transport.now_ms() + TOLERANCE_MS:
            return None  # a death that is further ahead is an old one: the clock was set back since
        self.result.matched += 1
        self.how.on_chosen(letter)
        try:
            return self.prepare(letter)
        except RedriveError as exc:
            self.result.left[str(exc)] += 1
            return None

    def _send(self, batch: list[Job]) -> None:
        """Carry out a batch. First count all answers, then raise the first error among them."""
        if not batch:
            return
        if self.result.dry_run:
            self._count(batch, [Answer.DONE] * len(batch))
            return
        self._evenly.wait(len(batch))
        self._count(batch, self.carry(batch))

    def _count(self, batch: list[Job], answers: Sequence[Answer | Exception]) -> None:
        for job, answer in zip(batch, answers, strict=True):
            if answer is Answer.DONE:
                self.result.moved += 1
                self.count(job)
                if not self.result.dry_run:
                    self.on_moved(job)
            elif answer is Answer.ALREADY:
                self.result.gone += 1
            elif answer is Answer.MISSING:
                self.result.left[UNROUTABLE] += 1
            elif answer is Answer.UNSURE:
                self.result.left[UNSURE] += 1
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer


def letters_of(transport: Transport, name: str) -> Iterator[Letter]:
    """Yield the dead letters that are in the queue at the beginning, the oldest first. Changes nothing."""
    with broker_of(transport).letters.open(name) as letters:
        for page in letters.pages():
            yield from map(Letter.of, page)
