"""The decision after a failed attempt: a pure function of the policy and of the facts about the failure.

The first rule that applies decides:

1. the task raised `DeadLetter`: it dies, `non_retryable`, with the text of the exception;
2. the exception is of a class that the task declares in `throws` or the policy calls non-retryable: `non_retryable`. This rule does
   not apply if the task raised `RedeliverAfter`, and `throws` does not apply if the task called `retry`;
3. the policy's `max_delivery_attempts` are used up: `exhausted`, or `worker_lost` or `time_limit` if that ended the last attempt;
4. the task's own retry limit is used up: `exhausted`;
5. the delay would end after `max_age`: `max_age`;
6. otherwise the message is delivered again, after the requested delay, or the policy's.

A message that dies is kept as a dead letter. It is discarded if it is not eligible, or if the policy names no dead-letter queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redelivery.settings import UNLIMITED
from redelivery.settings.values import MAX_DURATION

from ..messages.events import Reason
from . import backoff
from . import task_exceptions as raised

if TYPE_CHECKING:
    from redelivery.settings import RedeliveryPolicy

    from .backoff import Randomness


@dataclass(frozen=True, slots=True)
class Redeliver:
    """Deliver the message again after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Keep the message in the dead-letter queue."""

    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Discard:
    """End the message without keeping it."""

    reason: Reason
    detail: str = ""


Decision = Redeliver | DeadLetter | Discard


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The facts about a failed attempt.

    - `attempt`: the deliveries counted so far, this one included, from 1.
    - `age`: seconds since the message was first seen, by the broker's clock.
    - `exception`: the raised exception, if it is known. `cause`: `worker_lost` or `time_limit`, if the worker has seen one of them.
    - `requested_delay`: seconds that `Task.retry` asked for. `retries_left`: what is left of the task's own limit; 0 stops, None is
      no limit.
    - `eligible`: the producer's `redelivery-dead-letter-eligible` header; None lets the policy decide.
    - `throws`: the classes that the task declares as expected.
    - `keeps_texts`: whether the record may hold an exception's text.
    """

    attempt: int
    age: float
    exception: BaseException | None = None
    cause: Reason | None = None
    requested_delay: float | None = None
    retries_left: int | None = None
    eligible: bool | None = None
    throws: tuple[type[BaseException], ...] = ()
    keeps_texts: bool = True


def decide(policy: RedeliveryPolicy, failure: Failure, random: Randomness) -> Decision:
    """The decision about this failure."""
    forbidden = refused(policy, failure)
    if forbidden is not None:
        return forbidden
    wanted = asked_delay(failure)
    if wanted is None:
        wanted = backoff.delay(ruled(policy, failure), failure.attempt, random)
    return limited(policy, failure, wanted)


def refused(policy: RedeliveryPolicy, failure: Failure) -> DeadLetter | Discard | None:
    """The end of a message by rules 1 and 2, which ignore the limits; None if the message may be delivered again."""
    exception = failure.exception
    if exception is None or isinstance(exception, raised.RedeliverAfter):
        return None
    if isinstance(exception, raised.DeadLetter):
        detail = exception.detail if failure.keeps_texts else ""
        return ending(policy, Reason.NON_RETRYABLE, detail, eligible=failure.eligible)
    kind = type(exception).__qualname__
    if failure.requested_delay is None and isinstance(exception, failure.throws):
        return ending(policy, Reason.NON_RETRYABLE, f"the task's throws expects {kind}", eligible=failure.eligible)
    if policy.is_non_retryable(type(exception)):
        return ending(policy, Reason.NON_RETRYABLE, f"{kind} is non-retryable by the policy", eligible=failure.eligible)
    return None


def asked_delay(failure: Failure) -> float | None:
    """The delay that the task requested by `RedeliverAfter` or `Task.retry`, if any.

    `RedeliverAfter` has precedence, because `autoretry_for` passes any exception to `Task.retry`, with a delay of its own.
    """
    if isinstance(failure.exception, raised.RedeliverAfter):
        return failure.exception.delay
    return failure.requested_delay


def limited(policy: RedeliveryPolicy, failure: Failure, delay: float) -> Decision:
    """Redelivery after `delay` seconds, or the end if a limit is reached (rules 3 to 6)."""
    delay = min(max(delay, 0.0), MAX_DURATION)
    policy = ruled(policy, failure)
    limit, eligible = policy.max_delivery_attempts, failure.eligible
    if limit != UNLIMITED and failure.attempt >= limit:
        reason = Reason.EXHAUSTED if failure.cause is None else failure.cause
        return ending(policy, reason, f"attempt {failure.attempt} of {limit} (max_delivery_attempts)", eligible=eligible)
    if failure.retries_left is not None and failure.retries_left <= 0:
        return ending(policy, Reason.EXHAUSTED, f"attempt {failure.attempt} used up the task's own max_retries", eligible=eligible)
    if policy.max_age is not None and failure.age + delay > policy.max_age:
        text = f"{failure.age:.3f} s old, and the next delay of {delay:.3f} s would pass max_age ({policy.max_age:g} s)"
        return ending(policy, Reason.MAX_AGE, text, eligible=eligible)
    return Redeliver(delay)


def ending(policy: RedeliveryPolicy, reason: Reason, detail: str = "", *, eligible: bool | None = None) -> DeadLetter | Discard:
    """How a message ends for this reason: kept, or discarded. Every death uses it, also one without a failed attempt.

    `eligible` is the producer's header, None if the message has none. A message that is not eligible is discarded as
    `not_eligible`, with the reason in its detail.
    """
    if not (policy.dead_letter_eligible if eligible is None else eligible):
        return Discard(Reason.NOT_ELIGIBLE, f"{reason}: {detail}" if detail else str(reason))
    is_kept = policy.dead_letter_queue is not None or (reason is Reason.EXPIRED and policy.expiry_queue is not None)
    return DeadLetter(reason, detail) if is_kept else Discard(reason, detail)


def ruled(policy: RedeliveryPolicy, failure: Failure) -> RedeliveryPolicy:
    """The policy, with the changes of its rule for this failure's exception."""
    return policy if failure.exception is None else policy.for_exception(type(failure.exception))
