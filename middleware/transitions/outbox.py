"""The outbox: transitions that the broker has not carried out yet.

A transition is tried at once. If it fails, the cause decides:

- The broker cannot carry it out now (it does not answer, loads, fails over, is read-only or full). The transition waits *in line*,
  and a native thread tries it again until there is an answer. So a task that succeeded while the broker was away does not run
  twice. Later transitions wait behind it, so that their order stays.
- The broker refuses it (a key of another type, a command that the user may not use), or the transition has a bug. It is
  *quarantined*, with an error line, and tried again at growing intervals until the cause is repaired. It blocks nothing: the
  message's prefetch slot is given back, except for quarantined transitions beyond the first thousand.

If an event loop can read the answer later, the caller does not wait for it (`pipeline`). Failures there are handled likewise.

If the process dies, the waiting transitions are gone. Their messages are still held on the broker, and are delivered again.
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

#: Seconds between two tries of the head of the line: the first and the longest wait.
FIRST_WAIT, MAX_WAIT = 0.05, 2.0
#: The same for a quarantined transition.
FIRST_QUARANTINE_WAIT, MAX_QUARANTINE_WAIT = 1.0, 60.0
#: How many quarantined transitions give their prefetch slot back.
MAX_FREED_SLOTS = 1000


@dataclass(slots=True, eq=False)
class Quarantined:
    """A refused transition; `at` is when it is tried again (monotonic seconds)."""

    tag: str
    transition: Transition
    then: Then
    wait: float
    at: float


class Outbox:
    """Carries transitions out, once each, and in order except for those that the broker refuses.

    `is_transient` says whether a transition that raised this may succeed later; `on_quarantined` gets the tag of each quarantined
    transition.
    """

    def __init__(
        self, is_transient: Callable[[BaseException], bool], on_quarantined: Callable[[str], None] = lambda _: None
    ) -> None:
        self._is_transient, self._on_quarantined = is_transient, on_quarantined
        #: The transitions whose answers a worker's event loop reads.
        self.under_way: Pipeline | None = None
        self._line: deque[tuple[str, Transition, Then]] = deque()
        self._quarantined: list[Quarantined] = []
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._news = threading.Event()
        self._wait, self._failures, self._ask_at = FIRST_WAIT, 0, 0.0

    def __len__(self) -> int:
        return len(self._line) + len(self._quarantined) + (0 if self.under_way is None else len(self.under_way))

    def tags(self) -> set[str]:
        """The tags of the messages whose transitions are not carried out yet."""
        with self._lock:
            waiting = {tag for tag, _, _ in self._line} | {each.tag for each in self._quarantined}
        return waiting if self.under_way is None else waiting | self.under_way.tags()

    def ask(self, tag: str, transition: Callable[[Moves], Answer], then: Then, transport: Moves) -> None:
        """As `carry_out`, for a transition that takes the transport as argument; if possible, its answer is not waited for."""
        under_way = self.under_way
        if under_way is None or self._line or not under_way.is_here():
            self.carry_out(tag, partial(transition, transport), then)
        else:
            under_way.begin(tag, transition, then)

    def carry_out(self, tag: str, transition: Transition, then: Then) -> None:
        """Try the transition now; if others wait in line, put it behind them. `then` gets the answer, now or later."""
        if not self._line:
            try:
                answer = transition()
            except Exception as exc:  # noqa: BLE001 - whatever it is, the message is still held
                if not self._is_transient(exc):
                    self._quarantine(tag, transition, then, exc)
                    return
                log.warning("transition.postponed", tag=tag, error=str(exc))
            else:
                then(answer)
                return
        with self._lock:
            self._line.append((tag, transition, then))
            self._ensure_thread()

    def settle(self) -> None:
        """Wait for the answers still to come, and make every later call wait for its own."""
        under_way, self.under_way = self.under_way, None
        if under_way is not None:
            under_way.settle()

    def drain(self, seconds: float) -> bool:
        """Wait until the line is empty, at most `seconds`; False if a transition still waits in it."""
        self.settle()
        deadline = time.monotonic() + seconds
        while self._line and time.monotonic() < deadline:
            time.sleep(0.02)  # the worker stops, and has nothing else to do
        return not self._line

    def _ensure_thread(self) -> None:
        self._news.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="redelivery-outbox", daemon=True)
            self._thread.start()

    def _quarantine(self, tag: str, transition: Transition, then: Then, exc: Exception) -> None:
        with self._lock:
            self._quarantined.append(
                Quarantined(tag, transition, then, FIRST_QUARANTINE_WAIT, time.monotonic() + FIRST_QUARANTINE_WAIT)
            )
            self._ensure_thread()
        self._log_failure(tag, exc, FIRST_QUARANTINE_WAIT)
        if len(self._quarantined) <= MAX_FREED_SLOTS:
            self._on_quarantined(tag)

    def _log_failure(self, tag: str, exc: Exception, wait: float) -> None:
        error = f"{type(exc).__name__}: {exc}"
        log.error("transition.failed", tag=tag, error=error, again_in=wait, waiting=len(self._quarantined))

    def _run(self) -> None:
        while True:
            self._news.clear()
            with self._lock:
                if not self._line and not self._quarantined:
                    self._thread = None
                    return
            self._news.wait(self._step())

    def _step(self) -> float:
        """Try the transitions that are due; return the seconds until the next one is due."""
        while self._line and self._ask_at <= time.monotonic():
            self._try_head()
        with self._lock:
            due = [each for each in self._quarantined if each.at <= time.monotonic()]
        self._try_quarantined(due)
        with self._lock:
            times = [each.at for each in self._quarantined] + ([self._ask_at] if self._line else [])
        return max(min(times) - time.monotonic(), 0.0) if times else 0.0

    def _try_head(self) -> None:
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
            self._quarantine(tag, transition, then, exc)
        else:
            call_back(then, answer, tag)
        with self._lock:
            self._line.popleft()
        self._wait, self._failures, self._ask_at = FIRST_WAIT, 0, 0.0

    def _try_quarantined(self, due: list[Quarantined]) -> None:
        """Try each of these once. One error line is logged for all, because they mostly have one cause."""
        is_logged = False
        for each in due:
            try:
                answer = each.transition()
            except Exception as exc:  # noqa: BLE001 - as in `carry_out`
                each.wait = min(each.wait * 2, MAX_QUARANTINE_WAIT)
                each.at = time.monotonic() + each.wait
                if self._is_transient(exc):
                    return  # the others would wait for the same broker
                if not is_logged:
                    self._log_failure(each.tag, exc, each.wait)
                    is_logged = True
                continue
            with self._lock:
                self._quarantined.remove(each)
            call_back(each.then, answer, each.tag)


def call_back(then: Then, answer: Answer, tag: str) -> None:
    """Call `then` with the answer, and log what it raises."""
    try:
        then(answer)
    except Exception:  # noqa: BLE001 - the other transitions must go on
        log.exception("transition.unheard", tag=tag)
