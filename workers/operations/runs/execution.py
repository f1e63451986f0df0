"""Carries out an operation with the functions of the commands, and reports its progress.

1. The process claims the operation under a new token. From then on the broker refuses the scripts of an earlier process.
2. It walks through the dead-letter queue (or the delay store). One script moves each message, checks that the operation still runs
   under this token, and counts the message: the counts are exact, even if a process dies.
3. Letters that died after the operation was begun are not touched, so a letter that died again is not moved twice.
4. It reports its progress twice a second. The next script or report says if the operation was paused or aborted.
5. Other commands change the places of letters, so some may be skipped. The process walks again until nothing is left to move.

The broker keeps the state of a guard: the lives that were opened and have not ended, and the number of letters that died again.
Limits: if a canary letter ended while no process read the events, and its event was exported meanwhile, the letter counts as not
ended, and the operation stops. A new process begins the wait for a canary again.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redelivery.errors import BrokerError, RedeliveryError
from redelivery.middleware.brokers.errors import ANY_BROKER_ERRORS, BROKER_ERRORS
from redelivery.middleware.logs import log
from redelivery.middleware.messages.envelope import json_mapping
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.ports import Answer

from ...ports import Claim, Halted
from ..letters.redrive.fates import watched
from ..letters.redrive.redrive import Redrive
from ..letters.walk import WalkOptions
from .audit import Act, Acted, acted
from .operation import Kind, Operation, State, guard_of, readable
from .preview import walk_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redelivery.middleware.runtime import Runtime

    from ...brokers.redis.operations import RedisOperationStore
    from ..letters.redrive.guard import Guard
    from ..letters.walk import Walked

#: Seconds between two reports, and the longest sleep at once.
BEAT = 0.5
#: A new process reads events from so long before the last report on: some may have been recorded then, and not yet read.
MARGIN_MS = 2_000
#: The maximum number of deaths as examples, of reasons why letters stay, and of characters of a reason.
MAX_DEATHS, MAX_REASONS, MAX_SAID = 20, 20, 500


class Stopping(Exception):
    """This process is ending; another one continues the operation."""


class Execution:
    """Carries out one operation, in the thread that calls `run`. `is_stopping` returns whether this process is ending."""

    def __init__(self, runtime: Runtime, store: RedisOperationStore, operation_id: str, is_stopping: Callable[[], bool]) -> None:
        self._runtime, self._store, self._id, self._is_stopping = runtime, store, operation_id, is_stopping
        self._claim = Claim(operation_id, uuid.uuid4().hex, self._follows)
        self._operation: Operation | None = None
        self._guard: Guard | None = None
        self._walked: Walked | None = None
        self._gone = self._base = self._total = self._died_before = self._reported_ms = 0
        self._deaths: list[Any] = []
        self._rest, self._left = 0, Counter[str]()
        self._has_canary_passed = False
        self._said = ""
        self._is_over = False
        self._next = 0.0

    def run(self) -> State | None:
        """Carry out the operation, and return the state in which it ended.

        None if it has not ended, or if another process carries it out now. Raises the broker's transient errors: another call
        continues the operation.
        """
        if not self._take():
            return None
        try:
            with self._guarded():
                state, message = self._walk()
        except Halted:
            log.info("operation.halted", operation=self._id)
            return None
        except Stopping:
            self._store.turn(self._id, State.WAITING, states={State.RUNNING}, held=self._claim.token, message=self._said)
            return None
        except ANY_BROKER_ERRORS as exc:
            cause = exc.__cause__ if isinstance(exc, BrokerError) and exc.__cause__ is not None else exc
            if self._runtime.transport.is_transient(cause):
                self._wait_for_broker(cause)
                raise cause from None  # without "run the same command again": this goes on by itself
            state, message = State.FAILED, readable(cause)
        except RedeliveryError as exc:
            state, message = State.FAILED, str(exc)
        except Exception as exc:  # noqa: BLE001 - report any error, and do not retry for ever
            log.exception("operation.failed", operation=self._id)
            state, message = State.FAILED, readable(exc)
        return self._end(state, message)

    def _wait_for_broker(self, exc: BaseException) -> None:
        """Report why the operation waits, if the broker accepts the report."""
        self._said = f"waits, and goes on by itself: {readable(exc)}"
        with suppress(*BROKER_ERRORS):
            self._report()

    def _take(self) -> bool:
        """Claim the operation, and read its progress. Returns False if it cannot be claimed or carried out."""
        states = {State.WAITING, State.RUNNING}
        if self._store.turn(self._id, State.RUNNING, states=states, token=self._claim.token) is not Answer.DONE:
            return False
        stored = self._store.stored(self._id)
        if stored is None:
            return False
        operation = Operation.of(stored)
        if operation.has_ended:  # its stored data cannot be read (`Operation.of`)
            self._operation = operation
            self._end(State.FAILED, operation.message)
            return False
        progress = json_mapping(stored.progress)
        self._operation, self._base, self._gone, self._total = operation, operation.moved, operation.gone, operation.total
        self._died_before, self._deaths = operation.died_again, [dict(each) for each in operation.deaths]
        self._has_canary_passed, self._reported_ms = progress.get("canary_passed") is True, stored.reported_ms
        log.info("operation.taken", operation=self._id, kind=str(operation.kind), queue=operation.queue, moved=operation.moved)
        return True

    @property
    def _it(self) -> Operation:
        assert self._operation is not None  # noqa: S101 - set by `_take`
        return self._operation

    def _walk(self) -> tuple[State, str]:
        options, operation = self._it.options, self._it
        walk = walk_of(self._runtime, operation.kind, operation.queue, operation.filter, options, actor=operation.actor)
        how = WalkOptions(
            rate=options.rate,
            on_progress=self._progressed,
            began_ms=operation.created_ms,
            letters=self._store.letters(self._claim),
            delayed=self._store.delayed(self._claim),
            sleep=self._sleep,
        )
        more: dict[str, Any] = {} if self._guard is None else {"guard": self._guard}
        while True:
            limit = None if options.limit is None else options.limit - self._base - self._gone
            if limit is not None and limit <= 0:
                return State.DONE, ""
            done = walk(how=replace(how, limit=limit), **more)
            if isinstance(done, Redrive) and done.stopped:
                return State.STOPPED, done.stopped
            is_full = limit is not None and done.matched >= limit
            self._walked, self._left, self._rest = None, done.left, done.looked_at - done.moved - done.gone
            self._base, self._gone = self._base + done.moved, self._gone + done.gone
            if is_full or not done.moved + done.gone:
                return State.DONE, ""

    def _progressed(self, walked: Walked) -> None:
        self._walked = walked
        self._total = self._total or self._base + walked.total
        self._beat()

    def _sleep(self, seconds: float) -> None:
        """Wait in short steps, report meanwhile, and notice a stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._beat()
            time.sleep(min(left, BEAT))

    def _report_canary(self, said: str) -> None:
        """Report the text of the guard, which waits for its canary."""
        self._said = said
        self._beat()

    def _beat(self) -> None:
        """Report if it is time. Raises `Halted` if the operation may not continue, `Stopping` if this process is ending."""
        if self._is_over:
            return
        if self._is_stopping():
            self._is_over = True
            self._report()
            raise Stopping
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + BEAT
            if not self._report():
                self._is_over = True
                raise Halted

    def _report(self) -> bool:
        ended = [] if self._guard is None else self._guard.fates.ended
        if self._guard is not None and self._guard.may_follow:
            self._said = ""
        is_ours = self._store.report(self._claim, json.dumps(self._progress()), self._said, ended)
        if self._guard is not None:
            self._guard.fates.forget(ended)
        return is_ours

    def _progress(self) -> dict[str, Any]:
        walked, before = self._walked, self._base + self._gone
        left = self._left if walked is None else walked.left
        looked_at = before + (self._rest if walked is None else walked.looked_at)
        facts: dict[str, Any] = {
            "total": self._total,
            "looked_at": min(looked_at, self._total),
            "matched": before + (left.total() if walked is None else walked.matched),
            "gone": self._gone + (0 if walked is None else walked.gone),
            "left": {why[:MAX_SAID]: count for why, count in left.most_common(MAX_REASONS)},
        }
        if self._guard is not None:
            facts["died_again"] = self._guard.fates.deaths
            names = ("task_id", "queue", "reason", "exception")
            died = [{name: getattr(event, name) for name in names} for event in self._guard.died_again[:MAX_DEATHS]]
            facts["deaths"] = [*self._deaths, *died][:MAX_DEATHS]
            facts["canary_passed"] = self._guard.may_follow
        return facts

    def _follows(self) -> bool:
        """Whether the broker must keep the lives that this redrive opens, for the guard."""
        guard = self._guard
        return guard is not None and (guard.watches or not guard.may_follow)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        options, operation = self._it.options, self._it
        if operation.kind is not Kind.REDRIVE or not options.is_guarded:
            yield
            return
        # Read the events since the last report: a canary letter may have ended while no process read them.
        heard_ms = max(operation.created_ms, self._reported_ms - MARGIN_MS) if operation.moved else None
        with watched(self._runtime.transport, operation.queue, since_ms=heard_ms) as fates:
            fates.died_before = self._died_before
            for life in self._store.followed(self._id):
                fates.sent(Event(task_id=life.task_id, generation=life.generation, queue=life.queue, outcome=Outcome.REDRIVEN))
            self._guard = guard_of(options, fates, self._report_canary, sent=operation.moved, may_follow=self._has_canary_passed)
            yield

    def _end(self, state: State, message: str) -> State | None:
        """Record how the operation ended. Returns None if another process has taken over."""
        self._is_over = True
        operation, progress = self._it, self._progress()
        self._report()
        result = {name: progress[name] for name in ("total", "matched", "gone", "left", "died_again") if progress.get(name)}
        record = acted(
            Act(operation.kind),
            Acted(state),
            operation.queue,
            actor=operation.actor,
            operation=self._id,
            result=result,
            message=message[:MAX_SAID],
        )
        answer = self._store.turn(
            self._id, state, states={State.RUNNING}, held=self._claim.token, message=message, record=record, has_ended=True
        )
        if answer is not Answer.DONE:
            return None
        facts = {"kind": str(operation.kind), "queue": operation.queue, "state": str(state), "why": message}
        log.info("operation.ended", operation=self._id, **facts)
        return state
