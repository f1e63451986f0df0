"""One attempt of a task, in the pool's child: what it must know to decide, and how its decision travels to the main process.

Enters: the request of a task that runs, with what egress put into it; leaves: a decision, on the exception that the attempt raises.
To be delivered again, that is a `Redelivering`; to die, what the task raised, with the decision as an attribute. For one that
cannot carry it (an exception with slots, or that cannot be pickled) egress decides again.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.app.trace import task_has_custom
from celery.backends.base import DisabledBackend
from celery.exceptions import Retry
from celery.utils.saferepr import saferepr as safe_repr
from celery.utils.serialization import get_pickleable_exception

from ..logs import log
from ..messages.envelope import Failed
from ..messages.events import Reason
from ..policy import decision
from ..policy.strategies import UNSET, StrategyFailed, decide_with_tenacity
from ..transitions.notify import stores_errors

if TYPE_CHECKING:
    from celery import Task

    from ..policy.decision import Decision
    from ..runtime import Runtime

__all__ = ["CONTEXT", "DECIDED", "Attempt", "Redelivering", "classes_of"]

#: Where a request carries what its attempt must know (`Egress._context_of`).
CONTEXT = "redelivery_delivery"
#: The attribute of an exception that carries the decision it led to.
DECIDED = "__redelivery__"


class Redelivering(Retry):
    """Says that this attempt failed, and that its message is to be delivered again after `delay_ms`."""

    def __init__(self, message: str | None = None, exc: BaseException | None = None, when: Any = None, **facts: Any) -> None:
        super().__init__(message, exc, when)
        self.args = (message, exc, when)  # in Celery's the exception is one of its own arguments, and so never goes away by itself
        self.delay_ms: int = facts.get("delay_ms", 0)
        self.failed: Failed | None = facts.get("failed")
        #: Whether it is reported without its traceback (`redelivery.middleware.child.report`).
        self.is_unheard: bool = facts.get("is_unheard", False)

    def humanize(self) -> str:
        """When, as Celery writes it: from a second upwards in whole seconds, which is what celery-progress reads."""
        if not isinstance(self.when, (int, float)):
            return str(super().humanize())
        return f"in {math.ceil(self.when)}s" if self.when >= 1 else f"in {self.when:.3g}s"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_unheard:
            failed = self.failed
            return _unheard, (self.delay_ms, None if failed is None else (failed.type, failed.message, failed.fingerprint))
        return _redelivering, (self.message, self.exc, self.when, self.delay_ms, self.failed)


def _redelivering(message: str | None, exc: BaseException | None, when: Any, delay_ms: int, failed: Failed | None) -> Redelivering:
    return Redelivering(message, exc, when, delay_ms=delay_ms, failed=failed)


def _unheard(delay_ms: int, said: tuple[str, str, str] | None) -> Redelivering:
    failed = None if said is None else Failed(type=said[0], message=said[1], fingerprint=said[2])
    return Redelivering(None, None, None, delay_ms=delay_ms, failed=failed, is_unheard=True)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one task: what it must know to decide."""

    task: Task
    runtime: Runtime
    delivery: dict[str, Any]

    def decide(
        self,
        exc: BaseException | None,
        *,
        requested_delay: float | None = None,
        result: Any = UNSET,
        cause: Reason | None = None,
    ) -> Decision | None:
        """What follows; None where a result was handed in and is accepted."""
        task, delivery = self.task, self.delivery
        policy = self.runtime.policies.policy_for(delivery["queue"], task.name)
        if cause is Reason.WORKER_LOST and not task.acks_late:
            return decision.ending(policy, cause, "acknowledged before it ran", eligible=delivery["eligible"])
        failure = decision.Failure(
            attempt=delivery["attempt"],
            age=self.age(),
            exception=exc,
            cause=cause,
            requested_delay=requested_delay,
            retries_left=0 if delivery.get("gave_up") else None,
            eligible=delivery["eligible"],
            throws=classes_of(task.throws),
            keeps_texts=self.runtime.settings.store_failure_texts,
        )
        request = task.request
        try:
            return decide_with_tenacity(
                self.runtime.policies.strategies_of(delivery["queue"], task.name),
                policy,
                failure,
                task_args=tuple(request.args or ()),
                task_kwargs=dict(request.kwargs or {}),
                fn=task.run,
                idle_for=delivery["waited"],
                result=result,
                random=random,
            )
        except StrategyFailed as failed:
            log.exception("decision.failed", task=task.name)
            return failed.decision

    def end(self, reason: Reason, detail: str) -> Decision:
        """The end of this message, of this reason."""
        policy = self.runtime.policies.policy_for(self.delivery["queue"], self.task.name)
        return decision.ending(policy, reason, detail, eligible=self.delivery["eligible"])

    def age(self) -> float:
        """Seconds since the message was first seen."""
        return float(self.delivery["age"] + time.monotonic() - self.delivery["received"])

    def conclude(self, decided: Decision, exc: BaseException, *, reported: Any = UNSET) -> BaseException:
        """The exception to raise so that egress carries this decision out. `reported` is what Celery shows, where that differs."""
        failed = self.runtime.failed_of(exc, with_traceback=False)  # a death's is in the pool's report
        if isinstance(decided, decision.Redeliver):
            is_unheard = not _is_heard(self.task, self.task.request, has_events=self.delivery["has_events"])
            reported = exc if reported is UNSET else reported
            if reported is not None:
                reported = safe_repr(reported) if is_unheard else get_pickleable_exception(reported)
            facts: dict[str, Any] = {"delay_ms": round(decided.delay * 1000), "failed": failed, "is_unheard": is_unheard}
            return Redelivering(None, reported, decided.delay, **facts)
        try:
            setattr(exc, DECIDED, (decided, failed, self.delivery["tag"]))
        except AttributeError:  # an exception with slots: egress decides again
            log.debug("decision.not_attached", exception=type(exc).__name__)
        return exc


def classes_of(throws: Any) -> tuple[type[BaseException], ...]:
    """The classes that a task's `throws` names, in either notation."""
    return throws if isinstance(throws, tuple) else (throws,) if isinstance(throws, type) else ()


def _is_heard(task: Any, request: Any, *, has_events: bool) -> bool:
    """Whether anybody could see the traceback of a redelivery of this task."""
    if has_events or signals.task_retry.receivers or task_has_custom(task, "on_retry"):
        return True
    return stores_errors(task, request) and not isinstance(task.backend, DisabledBackend)
