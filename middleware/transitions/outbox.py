"""The outbox: transitions that the broker has not carried out yet.

A transition is tried at once. What becomes of one that fails depends on who is at fault:

- The broker is not able to, now (it does not answer, loads, fails over, is read-only or full): the transition waits *in line*, and
  a native thread asks again until there is an answer, so that a task which has succeeded while the broker was away is not run twice
  for it. Every later transition waits behind it: their order stays.
- The broker will not (a key of another type, a command that the user may not use), or the transition itself is at fault: it is put
  *aside*, with an error line, and tried again by itself, ever more seldom, until somebody has mended what is wrong. It blocks
  nobody: the message's place in the prefetch window is given back, but for those beyond the first thousand.

Where an event loop can read the answer later, nobody waits for it; whatever becomes of that is dealt with as above.

What waits here dies with the process; its messages are then still held on the broker, under a lease that ends, and are delivered
again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ports import Answer, Moves, Pipeline

    Transition = Callable[[], Answer]
    Then = Callable[[Answer], None]

__all__ = ["Outbox", "tell"]

#: Seconds between two askings: of the head of the line, and of what was put aside.
FIRST_WAIT, MAX_WAIT = 0.05, 2.0
FIRST_ASIDE, MAX_ASIDE = 1.0, 60.0
MAX_ASIDE = 1000


@dataclass(slots=True, eq=False)
class Pending:
    """A transition that was put aside, and when it is tried again (monotonic seconds)."""

    tag: str
    transition: Transition
    then: Then
    wait: float
    at: float


class Outbox:
    """Carries transitions out, once each; in order, but for those that the broker will not carry out.

    `is_transient` says of a failure whether it is the broker's for now; `on_aside` is told the tag of what is put aside.
    """

    def __init__(self, is_transient: Callable[[BaseException], bool], on_aside: Callable[[str], None] = lambda _: None) -> None:
        self._is_transient, self._on_aside = is_transient, on_aside
        #: What is under way, where a worker's event loop reads the answers.
        self.under_way: Pipeline | None = None
        self._line: deque[tuple[str, Transition, Then]] = deque()
        self._aside: list[Pending] = []
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._news = threading.Event()
        self._wait, self._failures, self._ask_at = FIRST_WAIT, 0, 0.0

    def __len__(self) -> int:
        return len(self._line) + len(self._aside) + (0 if self.under_way is None else len(self.under_way))

    def tags(self) -> set[str]:
        """The tags of the messages whose transitions are not carried out yet."""
        with self._lock:
            waiting = {tag for tag, _, _ in self._line} | {each.tag for each in self._aside}
        return waiting if self.under_way is None else waiting | self.under_way.tags()

    def ask(self, tag: str, transition: Callable[[Moves], Answer], then: Then, transport: Moves) -> None:
        """As `carry_out`, of a transition that is told the transport; nobody waits for its answer, where that can be."""
        under_way = self.under_way
        if under_way is None or self._line or not under_way.is_here():
            self.carry_out(tag, partial(transition, transport), then)
        else:
            under_way.begin(tag, transition, then)

    def carry_out(self, tag: str, transition: Transition, then: Then) -> None:
        """Try the transition now; with others in line it is put behind them. `then` gets the answer, here or later."""
        if not self._line:
            try:
                answer = transition()
            except Exception as exc:  # noqa: BLE001 - whatever it is, the message is still held
                if not self._is_transient(exc):
                    self._put_aside(tag, transition, then, exc)
                    return
                log.warning("transition.postponed", tag=tag, error=str(exc))
            else:
                then(answer)
                return
        with self._lock:
            self._line.append((tag, transition, then))
            self._ensure_thread()

    def settle(self) -> None:
        """Wait for what is under way: from here on every answer is waited for."""
        under_way, self.under_way = self.under_way, None
        if under_way is not None:
            under_way.settle()

    def drain(self, seconds: float) -> bool:
        """Wait until nothing is in line any more, at most this long; False where something still is."""
        self.settle()
        deadline = time.monotonic() + seconds
        while self._line and time.monotonic() < deadline:
            time.sleep(0.02)  # at the end of a worker's life, when nothing else is left to do
        return not self._line

    def _ensure_thread(self) -> None:
        self._news.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="redelivery-outbox", daemon=True)
            self._thread.start()

    def _put_aside(self, tag: str, transition: Transition, then: Then, exc: Exception) -> None:
        with self._lock:
            self._aside.append(Pending(tag, transition, then, FIRST_ASIDE, time.monotonic() + FIRST_ASIDE))
            self._ensure_thread()
        self._complain(tag, exc, FIRST_ASIDE)
        if len(self._aside) <= MAX_ASIDE:
            self._on_aside(tag)

    def _complain(self, tag: str, exc: Exception, wait: float) -> None:
        error = f"{type(exc).__name__}: {exc}"
        log.error("transition.failed", tag=tag, error=error, again_in=wait, waiting=len(self._aside))

    def _run(self) -> None:
        while True:
            self._news.clear()
            with self._lock:
                if not self._line and not self._aside:
                    self._thread = None
                    return
            self._news.wait(self._step())

    def _step(self) -> float:
        """Try what is to be tried; the seconds until there is something to try again."""
        while self._line and self._ask_at <= time.monotonic():
            self._ask_head()
        with self._lock:
            due = [each for each in self._aside if each.at <= time.monotonic()]
        self._ask_aside(due)
        with self._lock:
            times = [each.at for each in self._aside] + ([self._ask_at] if self._line else [])
        return max(min(times) - time.monotonic(), 0.0) if times else 0.0

    def _ask_head(self) -> None:
        tag, transition, then = self._line[0]
        try:
            answer = transition()
        except Exception as exc:  # noqa: BLE001 - as in `carry_out`
            if self._is_transient(exc):
                self._failures += 1
                if self._failures % 20 == 1:
                    log.warning("outbox.waiting", waiting=len(self), tag=tag, error=str(exc))
                self._ask_at = time.monotonic() + self._wait
                self._wait = min(self._wait * 2, MAX_WAIT)
                return
            self._put_aside(tag, transition, then, exc)
        else:
            tell(then, answer, tag)
        with self._lock:
            self._line.popleft()
        self._wait, self._failures, self._ask_at = FIRST_WAIT, 0, 0.0

    def _ask_aside(self, due: list[Pending]) -> None:
        """Try each of them once; one error line for all, because they mostly fail for one cause."""
        is_told = False
        for each in due:
            try:
                answer = each.transition()
            except Exception as exc:  # noqa: BLE001 - as in `carry_out`
                each.wait = min(each.wait * 2, MAX_ASIDE)
                each.at = time.monotonic() + each.wait
                if self._is_transient(exc):
                    return  # the others would wait for the same broker
                if not is_told:
                    self._complain(each.tag, exc, each.wait)
                    is_told = True
                continue
            with self._lock:
                self._aside.remove(each)
            tell(each.then, answer, each.tag)


def tell(then: Then, answer: Answer, tag: str) -> None:
    """Tell of an answer somebody who may fail."""
    try:
        then(answer)
    except Exception:  # noqa: BLE001 - the transition is carried out, and the others must go on
        log.exception("transition.unheard", tag=tag)
