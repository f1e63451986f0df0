"""The walk through a dead-letter queue: every dead letter that was there when it began, the oldest first, in batches.

Letters that die meanwhile are left alone. Each letter is read once, and is moved whole or not at all. An interrupted walk has moved
some letters and not the others; the same walk, begun again, goes on. With a rate, letters go evenly.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from redelivery.errors import BrokerError, RedriveError
from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.policy.clock_skew import TOLERANCE_MS
from redelivery.middleware.ports import Answer

from ...brokers.broker import broker_of, needed
from ...letters import Letter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...ports import DelayStore, LetterStore, Transitions
    from .filter import Filter

#: Letters that are moved in one round trip.
BATCH = 250
#: With a rate, letters go in batches of this part of a second.
BEAT = 0.1

#: Why a letter stays if the broker cannot route it.
UNROUTABLE = "its queue does not exist, or is full: start a worker on it, or send the dead letter to another queue with --to"
#: Why a letter stays if a command that was moving it died.
UNSURE = "a command that died may have moved it: run this again when the queue that it was sent to is empty, or after ten minutes"

Job = TypeVar("Job")


@dataclass(slots=True, kw_only=True)
class Walked:
    """What a walk did, or (`dry_run`) would do.

    Of the `total` letters that were there when it began, `looked_at` were read and `matched` chosen. Of the chosen ones, `moved`
    were moved, `gone` had left the queue meanwhile, and `left` counts those that stay, by reason. `kind`, `things` and `went` are
    words for the text of an error: "the walk stopped when 5 dead letters had gone".
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

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in facts.items()}

    def cut_short(self, exc: BaseException) -> BrokerError:
        """The error to raise for an error of the broker's: its text also says how far the walk had come."""
        of = f" of {self.dead_letter_queue!r}" if self.dead_letter_queue else ""
        so_far = f"the {self.kind}{of} stopped when {self.moved} {self.things} {self.went}"
        return BrokerError(f"{so_far}: {exc}; run the same command again to continue")


@dataclass(slots=True)
class Evenly:
    """Lets `rate` letters go in a second (None: without a limit); `sleep` is called to wait."""

    rate: float | None
    sleep: Callable[[float], None]
    _next: float = field(default_factory=time.monotonic)

    def wait(self, count: int) -> None:
        """Wait until so many more letters may go."""
        if self.rate is not None:
            self.sleep(max(self._next - time.monotonic(), 0.0))
            self._next = max(self._next, time.monotonic()) + count / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkContext:
    """What an operation asks of a walk. Letters that died after `began_ms` are left alone (None: after the walk's own beginning).

    `letters` moves the letters and `delayed` cancels messages (None: the broker's own store). `sleep` waits between two batches.
    `on_chosen` is called with each letter that is chosen.
    """

    began_ms: int | None = None
    letters: LetterStore | None = None
    delayed: DelayStore | None = None
    sleep: Callable[[float], None] = time.sleep
    on_chosen: Callable[[Letter], None] = lambda _: None


@dataclass(slots=True, kw_only=True)
class Walk(Generic[Job]):
    """One walk through the queue.

    `prepare` turns a letter into a job, or raises `RedriveError`, whose text is the reason why the letter stays. `carry` carries
    a batch of jobs out, and returns an answer for each; a dry run does not call it. `count` is called for each letter that went,
    or in a dry run would go; `told` for each that went. `finish` is called at the end, when the queue is no longer read. `context`
    is what an operation asks of a walk.
    """

    letters: LetterStore
    transport: Transitions
    chosen: Filter
    result: Walked
    prepare: Callable[[Letter], Job]
    carry: Callable[[list[Job]], Sequence[Answer | Exception]]
    count: Callable[[Job], None] = lambda _: None
    told: Callable[[Job], None] = lambda _: None
    on_progress: Callable[[Any], None] = lambda _: None
    finish: Callable[[], None] = lambda: None
    rate: float | None = None
    limit: int | None = None
    context: WalkContext = field(default_factory=WalkContext)
    _began_ms: int = 0
    _evenly: Evenly = field(init=False)
    _may_pass: Callable[[bytes], bool] = field(init=False)

    def __post_init__(self) -> None:
        self._may_pass = self.chosen.sieve()
        self._evenly = Evenly(self.rate, self.context.sleep)

    def run(self) -> None:
        """Walk. Raises `BrokerError` if the broker refuses or does not answer; its text says how many letters had been moved."""
        result = self.result
        try:
            self._walk(result)
            self.finish()
        except BROKER_ERRORS as exc:
            raise result.cut_short(exc) from exc

    def _walk(self, result: Walked) -> None:
        self._began_ms = self.transport.now_ms() if self.context.began_ms is None else self.context.began_ms
        with self.letters.open(result.dead_letter_queue) as letters:
            result.total = letters.total
            for page in letters.pages(self._gone):
                self._take(page)
                self.on_progress(result)
                if self._is_full():
                    return

    def _gone(self) -> int:
        """How many letters have left the queue."""
        return 0 if self.result.dry_run else self.result.moved + self.result.gone

    def _is_full(self) -> bool:
        """Whether the limit is reached; dead letters that may or may not have been moved are not counted."""
        return self.limit is not None and self.result.matched - self.result.left[UNSURE] >= self.limit

    def _take(self, raws: list[bytes]) -> None:
        """Choose among these letters, and carry out the jobs of those that are chosen."""
        batch: list[Job] = []
        most = BATCH if self.rate is None else max(1, min(int(self.rate * BEAT), BATCH))
        for raw in raws:
            if self._is_full():
                self._send(batch)
                batch = []
                if self._is_full():
                    return
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
        if not self._may_pass(raw):
            return None
        letter = Letter.of(raw)
        if not self.chosen.passes(letter):
            return None
        if letter.died_ms is not None and self._began_ms < letter.died_ms <= self.transport.now_ms() + TOLERANCE_MS:
            return None  # a death that lies further ahead is older: the clock has been set back since
        self.result.matched += 1
        self.context.on_chosen(letter)
        try:
            return self.prepare(letter)
        except RedriveError as exc:
            self.result.left[str(exc)] += 1
            return None

    def _send(self, batch: list[Job]) -> None:
        """Carry a batch out. Raises the first error of the broker, after all letters that were moved are counted."""
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
                    self.told(job)
            elif answer is Answer.ALREADY:
                self.result.gone += 1
            elif answer is Answer.MISSING:
                self.result.left[UNROUTABLE] += 1
            elif answer is Answer.UNSURE:
                self.result.left[UNSURE] += 1
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer


def letters_of(transport: Transitions, name: str) -> Iterator[Letter]:
    """The dead letters that are in the queue at the beginning, the oldest first; nothing is changed."""
    with needed(broker_of(transport).letters).open(name) as letters:
        for page in letters.pages():
            yield from map(Letter.of, page)
