"""Tenacity's strategies across deliveries: `wait`, `stop` and `retry` see a message's attempts as the attempts of one call.

Each gets a real `tenacity.RetryCallState`, in tenacity's order: `retry`, `wait`, `stop`. The other rules still apply: `DeadLetter`,
`throws` and the policy's `non_retryable` come before the strategies, the policy's limits after them, and a delay that the task
requested replaces `wait`. A lost worker and a hard time limit are not exceptions of the task, so `retry` is not called for them.
Limits: a strategy's state is in one process, and the next attempt may run in another.
"""

from __future__ import annotations

import inspect
import math
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import tenacity
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from redelivery.errors import RedeliveryError
from redelivery.settings import UNLIMITED, RedeliveryPolicy

from ..messages.events import Reason
from . import backoff, decision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .backoff import Randomness
    from .decision import Decision, Failure
    from .options import Options

#: The attempt has no result.
UNSET: Any = object()


class StrategyFailed(RedeliveryError):
    """A strategy raised, or returned no usable value. `decision` is the policy's own; None accepts a result."""

    def __init__(self, strategy: str, error: BaseException, decision: Decision | None) -> None:
        self.strategy = strategy
        self.decision = decision
        super().__init__(
            f"@redeliver's {strategy}= failed ({type(error).__name__}: {error}), and the policy decided instead: correct it"
        )


def decide_with_tenacity(
    options: Options | None,
    policy: RedeliveryPolicy,
    failure: Failure,
    *,
    task_args: tuple[Any, ...] = (),
    task_kwargs: Mapping[str, Any] | None = None,
    fn: Callable[..., Any] | None = None,
    idle_for: float = 0.0,
    result: Any = UNSET,
    random: Randomness,
) -> Decision | None:
    """Decide about a failure, or about a `result`, which only `retry` can refuse; None accepts it.

    `idle_for` is how many seconds the message has waited between its attempts so far. Without a strategy this is
    `decision.decide`. Raises `StrategyFailed`, whose `decision` must be followed.
    """
    has_result = result is not UNSET
    if has_result and (options is None or options.retry is None):
        return None
    if options is None or not options.has_strategy:
        return decision.decide(policy, failure, random)
    forbidden = None if has_result else decision.refused(policy, failure)
    if forbidden is not None:
        return forbidden
    asking = _Asking(options, policy, failure, random)
    asking.prepare(fn, task_args, dict(task_kwargs or {}), idle_for, result)
    return asking.decide(has_result=has_result)


class _Unanswered(Exception):
    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        super().__init__(strategy)


@dataclass(slots=True)
class _Asking:
    """The calls of the strategies for one attempt."""

    options: Options
    policy: RedeliveryPolicy
    failure: Failure
    random: Randomness
    state: Any = None

    def prepare(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], idle_for: float, result: Any) -> None:
        """Build the state that tenacity would have at this point of a call."""
        options, failure = self.options, self.failure
        retrying = tenacity.Retrying(
            wait=self._own_wait if options.wait is None else options.wait,
            stop=tenacity.stop_never if options.stop is None else options.stop,
            retry=tenacity.retry_if_exception_type() if options.retry is None else options.retry,
        )
        state = tenacity.RetryCallState(retrying, fn, args, kwargs)
        state.attempt_number = failure.attempt
        state.outcome = tenacity.Future(failure.attempt)
        if result is UNSET:
            state.outcome.set_exception(_exception_of(failure))
        else:
            state.outcome.set_result(result)
        state.outcome_timestamp = time.monotonic()
        state.start_time = state.outcome_timestamp - failure.age
        state.idle_for = idle_for
        retrying.statistics.update(
            start_time=state.start_time,
            attempt_number=failure.attempt,
            idle_for=idle_for,
            delay_since_first_attempt=failure.age,
        )
        self.state = state

    def decide(self, *, has_result: bool) -> Decision | None:
        """Call the strategies in tenacity's order."""
        try:
            if not self._wants_redelivery():
                return None if has_result else self._end(Reason.NON_RETRYABLE, "retry= does not want it")
            delay = self._delay()
            self.state.upcoming_sleep = delay
            decided = decision.limited(self.policy, self.failure, delay)
            if isinstance(decided, decision.Redeliver) and self._stops():
                reason = Reason.EXHAUSTED if self.failure.cause is None else self.failure.cause
                return self._end(reason, f"attempt {self.failure.attempt}, and stop= ends it")
        except _Unanswered as unanswered:
            error = unanswered.__cause__ or unanswered
            # If `retry` fails on a result, the result is accepted: the task has done its work.
            plain = None if has_result and unanswered.strategy == "retry" else self._plain()
            raise StrategyFailed(unanswered.strategy, error, plain) from error
        return decided

    def _wants_redelivery(self) -> bool:
        failure, retry = self.failure, self.options.retry
        asks_itself = failure.cause is not None or isinstance(failure.exception, tenacity.TryAgain)
        if retry is None or asks_itself or decision.asked_delay(failure) is not None:
            return True
        return bool(self._ask("retry", retry))

    def _delay(self) -> float:
        asked = decision.asked_delay(self.failure)
        if asked is not None:
            return asked
        return self._own_wait(self.state) if self.options.wait is None else float(self._ask("wait", self.options.wait, _seconds))

    def _stops(self) -> bool:
        return self.options.stop is not None and bool(self._ask("stop", self.options.stop))

    def _own_wait(self, _state: tenacity.RetryCallState) -> float:
        return backoff.delay(decision.ruled(self.policy, self.failure), self.failure.attempt, self.random)

    def _ask(self, name: str, strategy: Callable[[Any], Any], read: Callable[[Any], Any] = bool) -> Any:
        try:
            answer = strategy(self.state)
            if inspect.isawaitable(answer):
                _close(answer)
                msg = "it is asynchronous, and Celery's tasks are not"
                raise TypeError(msg)  # noqa: TRY301 - reported like every other error of a strategy
            return read(answer)
        except Exception as error:
            raise _Unanswered(name) from error

    def _plain(self) -> Decision:
        """The policy's decision. If only `stop`, which may have failed, limited the attempts, the default limit applies."""
        policy, implied = self.policy, self.options.implied
        if "max_delivery_attempts" in implied and policy.max_delivery_attempts == UNLIMITED:
            policy = replace(policy, max_delivery_attempts=RedeliveryPolicy().max_delivery_attempts)
        return decision.decide(policy, self.failure, self.random)

    def _end(self, reason: Reason, detail: str) -> Decision:
        return decision.ending(self.policy, reason, detail, eligible=self.failure.eligible)


def _exception_of(failure: Failure) -> BaseException:
    if failure.exception is not None:
        return failure.exception
    lost: BaseException = WorkerLostError("the worker was lost")
    return TimeLimitExceeded("hard time limit") if failure.cause is Reason.TIME_LIMIT else lost


def _seconds(answer: Any) -> float:
    seconds = answer.total_seconds() if isinstance(answer, timedelta) else float(answer)
    if not math.isfinite(seconds) or seconds < 0:
        msg = f"{answer!r} is not a delay in seconds"
        raise ValueError(msg)
    return seconds


def _close(answer: Any) -> None:
    """Close a coroutine, so that Python does not warn that it was never awaited."""
    close = getattr(answer, "close", None)
    if close is not None:
        close()
