"""The ending of a request: what is decided, in the worker's main process, about a message that it holds.

Enters: an exception, or why nobody could report one; leaves: a decision, or an `Ending`, which is how the request ends when Celery
next acknowledges or rejects it. What the attempt itself has decided, in the pool's child, comes on its exception and is kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery.exceptions import InvalidTaskError

from ..child.attempt import CONTEXT, DECIDED
from ..messages.events import Outcome, Reason
from ..policy import decision
from .observer import Observing

if TYPE_CHECKING:
    from billiard.einfo import ExceptionInfo

    from ..messages.envelope import Envelope, Failed
    from ..policy.decision import Decision
    from ..ports import Held
    from ..runtime import Runtime

__all__ = ["Deciding", "Ending"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request is to end when Celery next acknowledges or rejects it."""

    outcome: Outcome
    reason: Reason | None = None
    failed: Failed | None = None
    keep: bool = False
    detail: str = ""


class Deciding(Observing):
    """A request that may hold its message, and decides about it."""

    _runtime: Runtime
    _held: Held | None = None
    _tag: str
    _envelope: Envelope

    @property
    def attempt(self) -> int:
        """This delivery's number among those that count, from 1."""
        return self._envelope.attempt + 1

    @property
    def _eligible(self) -> bool | None:
        eligible: bool | None = self._request_dict[CONTEXT]["eligible"]
        return eligible

    @property
    def _policy(self) -> Any:
        assert self._held is not None  # noqa: S101 - only asked where we hold the message
        return self._runtime.policies.policy_for(self._held.queue, self._type)

    def _target(self, reason: Reason | None) -> str | None:
        """Where what dies of this reason goes; None where it is not kept."""
        assert self._held is not None  # noqa: S101 - only asked where we hold the message
        policy = self._policy
        find = policy.expiry_queue_for if reason is Reason.EXPIRED else policy.dead_letter_queue_for
        name: str | None = find(self._held.queue)
        return name

    def _decide(self, exc: BaseException, cause: Reason | None) -> tuple[Failed, Decision]:
        context = self._request_dict[CONTEXT]
        failure = decision.Failure(
            attempt=self.attempt,
            age=context["age"] + time.monotonic() - context["received"],
            exception=exc,
            cause=cause,
            eligible=self._eligible,
            keeps_texts=self._runtime.settings.store_failure_texts,
        )
        runtime = self._runtime
        decided = runtime.policies.decide(context["queue"], self._type, self._policy, failure, idle_for=context["waited"])
        return runtime.failed_of(exc), decided

    def _death_of(self, exc: BaseException, exc_info: ExceptionInfo) -> Ending:
        """What the child decided; or, where its word was lost with an exception that cannot be pickled, what follows here."""
        decided, failed, tag = getattr(exc, DECIDED, (None, None, None))
        if isinstance(exc, InvalidTaskError) and decided is None:  # Celery could not begin it
            decided = decision.ending(self._policy, Reason.INVALID, self._runtime.failed_of(exc).message, eligible=self._eligible)
        elif decided is None or tag != self._request_dict[CONTEXT]["tag"]:  # an exception object may be raised by many tasks
            failed, decided = self._decide(exc, None)
        if isinstance(decided, decision.Redeliver):
            # FAILURE is stored and has been acted on: what failed outside the attempt ends here.
            decided = decision.DeadLetter(Reason.NON_RETRYABLE, "failed outside the task's own code")
        failed = replace(failed or self._runtime.failed_of(exc, with_traceback=False), traceback=str(exc_info.traceback))
        return self._death(decided, self._runtime.stored(failed))

    def _death(self, decided: Decision, failed: Failed) -> Ending:
        assert not isinstance(decided, decision.Redeliver)  # noqa: S101 - the callers have looked
        keep = isinstance(decided, decision.DeadLetter) and self._target(decided.reason) is not None
        return Ending(Outcome.DEAD_LETTERED if keep else Outcome.DISCARDED, decided.reason, failed, keep, decided.detail)
