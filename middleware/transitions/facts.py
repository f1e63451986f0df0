"""The facts about one delivery of a message, and the decision about it when its attempt has ended."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ..messages.envelope import eligible_of
from ..policy import decision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redelivery.settings import RedeliveryPolicy

    from ..messages.envelope import Envelope
    from ..messages.events import Reason
    from ..policy.decision import Decision
    from ..ports import Held
    from ..runtime import Runtime

NO_CALL: Any = MappingProxyType({})


class DeliveryFacts(NamedTuple):
    """The facts about one delivery that a decision needs. They go to the pool's child as a plain tuple.

    `received` is a time of the monotonic clock, which all processes of a machine share. At that time `age` is the seconds since the
    message was first seen, and `waited` the seconds of its earlier delays. `received_ms` and `expires_ms` are by the broker's
    clock. With `carries_result`, the child sends the result of a success to the worker, which stores it.
    """

    queue: str
    attempt: int
    received: float
    tag: str = ""
    generation: int = 0
    first_seen_ms: int = 0
    age: float = 0.0
    waited: float = 0.0
    eligible: bool | None = None
    received_ms: int = 0
    expires_ms: int | None = None
    must_start: bool = False
    has_events: bool = False
    carries_result: bool = False

    @classmethod
    def of(cls, held: Held, envelope: Envelope, headers: Mapping[str, Any], *more: Any) -> Self:
        """The facts about a message with these headers; `more` are the fields from `received_ms` on.

        For a dead letter they are about its handler: the handler's attempts, and the time since the death.
        """
        begun, attempt, eligible, waited = envelope.first_seen_ms, envelope.attempt, eligible_of(headers), 0.0
        if envelope.is_letter:
            begun, attempt, eligible = envelope.deaths[0].get("last"), envelope.handled, True  # it is kept already
        elif envelope.attempts:
            waited = sum(each.get("delay") or 0 for each in envelope.attempts) / 1000
        first = begun if isinstance(begun, int) else held.seen_ms
        age = max(held.seen_ms - first, 0) / 1000
        known = held.queue, attempt + 1, time.monotonic(), held.tag, envelope.generation, first, age, waited
        return cls(*known, eligible, *more)

    def age_now(self) -> float:
        """Seconds since the message was first seen."""
        return self.age + time.monotonic() - self.received


class Decider(NamedTuple):
    """Decides about the deliveries of one task."""

    runtime: Runtime
    task: str

    def policy_of(self, facts: DeliveryFacts) -> RedeliveryPolicy:
        """The policy that applies to this delivery."""
        return self.runtime.policies.policy_for(facts.queue, self.task)

    def decide(
        self,
        facts: DeliveryFacts,
        exception: BaseException | None,
        cause: Reason | None = None,
        call: Mapping[str, Any] = NO_CALL,
        **known: Any,
    ) -> Decision:
        """Decide about a failure. `call` is the failed call, for the task's strategies; `known` are fields of `Failure`."""
        decided = self._judge(facts, exception, call, cause=cause, **known)
        assert decided is not None  # noqa: S101 - only a result can be accepted
        return decided

    def judge(self, facts: DeliveryFacts, result: Any, call: Mapping[str, Any], **known: Any) -> Decision | None:
        """Decide about a result by the task's `retry=`; None accepts it."""
        return self._judge(facts, None, {**call, "result": result}, **known)

    def end(self, facts: DeliveryFacts, reason: Reason, detail: str = "") -> decision.DeadLetter | decision.Discard:
        """The end of this message, for this reason."""
        return decision.ending(self.policy_of(facts), reason, detail, eligible=facts.eligible)

    def _judge(
        self, facts: DeliveryFacts, exception: BaseException | None, call: Mapping[str, Any], **known: Any
    ) -> Decision | None:
        failure = decision.Failure(
            attempt=facts.attempt,
            age=facts.age_now(),
            exception=exception,
            eligible=facts.eligible,
            keeps_texts=self.runtime.settings.store_failure_texts,
            **known,
        )
        return self.runtime.policies.judge(facts.queue, self.task, self.policy_of(facts), failure, idle_for=facts.waited, **call)
