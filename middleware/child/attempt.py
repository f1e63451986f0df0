"""One attempt of a task, in the pool's child: it decides, and sends its decision to the main process.

If the message must be delivered again, the attempt raises a `Redelivering`. If it must die, the attempt raises the task's own
exception, and its report to the worker carries the decision (`Dying`). The exception itself cannot carry it: with slots, its own
`__reduce__` or a value that cannot be pickled, it loses its attributes, or arrives as another class.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from celery import signals
from celery.app.trace import task_has_custom
from celery.backends.base import DisabledBackend
from celery.exceptions import Retry
from celery.utils.saferepr import saferepr as safe_repr
from celery.utils.serialization import get_pickleable_exception

from ..messages.envelope import Failed
from ..messages.events import Reason
from ..policy import decision
from ..policy.strategies import UNSET
from ..transitions.facts import Decider, DeliveryFacts
from ..transitions.notify import stores_errors

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

    from ..policy.decision import Decision
    from ..ports import TaskResult
    from ..runtime import Runtime

#: The key under which a request carries its `DeliveryFacts`; in the pool's child, its `Attempt`.
DELIVERY = "redelivery_delivery"
#: The key of the contexts of three spans, if tracing is on: the delivery, the publication, and the attempt before.
TRACE = "redelivery_trace"


class Redelivering(Retry):
    """Reports that this attempt failed, and that its message must be delivered again after `delay_ms`."""

    def __init__(self, message: str | None = None, exc: BaseException | None = None, when: Any = None, **facts: Any) -> None:
        super().__init__(message, exc, when)
        self.args = (message, exc, when)  # Celery's `Retry` has itself in `args`, so that only the garbage collector would free it
        self.delay_ms: int = facts.get("delay_ms", 0)
        self.failed: Failed | None = facts.get("failed")
        #: Whether nothing reads its traceback, so that it is reported without one (`report`).
        self.is_unread: bool = facts.get("is_unread", False)

    def humanize(self) -> str:
        """The delay in Celery's form; from one second on in whole seconds, which celery-progress reads."""
        if not isinstance(self.when, (int, float)):
            return str(super().humanize())
        return f"in {math.ceil(self.when)}s" if self.when >= 1 else f"in {self.when:.3g}s"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_unread:
            failed = self.failed
            return _unread, (self.delay_ms, None if failed is None else (failed.type, failed.message, failed.fingerprint))
        return _redelivering, (self.message, self.exc, self.when, self.delay_ms, self.failed)


def _redelivering(message: str | None, exc: BaseException | None, when: Any, delay_ms: int, failed: Failed | None) -> Redelivering:
    return Redelivering(message, exc, when, delay_ms=delay_ms, failed=failed)


def _unread(delay_ms: int, failure: tuple[str, str, str] | None) -> Redelivering:
    failed = None if failure is None else Failed(type=failure[0], message=failure[1], fingerprint=failure[2])
    return Redelivering(None, None, None, delay_ms=delay_ms, failed=failed, is_unread=True)


class Dying(NamedTuple):
    """The decision by which the message dies."""

    decided: decision.DeadLetter | decision.Discard
    failed: Failed | None


class Attempt:
    """One attempt of one task."""

    __slots__ = ("dying", "facts", "gave_up", "has_begun", "has_returned", "raised", "result", "runtime", "task")

    def __init__(self, task: Task, runtime: Runtime, facts: DeliveryFacts) -> None:
        self.task, self.runtime, self.facts = task, runtime, facts
        #: Whether the task's own code has begun and has returned, and whether the task has used up its own `max_retries`.
        self.has_begun = self.has_returned = self.gave_up = False
        #: How its message dies, if that was decided here, and the exception that caused it.
        self.dying: Dying | None = None
        self.raised: BaseException | None = None
        #: Its result, for the worker to store.
        self.result: TaskResult | None = None

    @property
    def decider(self) -> Decider:
        """The object that decides about this task."""
        return Decider(self.runtime, self.task.name)

    @classmethod
    def of(cls, task: Task, request: Context) -> Self | None:
        """The attempt that runs under this request; None if redelivery did not deliver it."""
        known: Any = request.get(DELIVERY)
        if isinstance(known, tuple):
            known = cls(task, task.app.redelivery, DeliveryFacts._make(known))
            setattr(request, DELIVERY, known)
        attempt: Self | None = known
        return attempt

    def decide(self, exc: BaseException, *, requested_delay: float | None = None, cause: Reason | None = None) -> Decision:
        """Decide about a failure."""
        if cause is Reason.WORKER_LOST and not self.task.acks_late:
            return self.end(cause, "acknowledged before it ran")
        return self.decider.decide(self.facts, exc, cause, self._call(), requested_delay=requested_delay, **self._limits())

    def judge(self, result: Any) -> Decision | None:
        """Decide about a result; None accepts it."""
        return self.decider.judge(self.facts, result, self._call(), **self._limits())

    def end(self, reason: Reason, detail: str) -> Decision:
        """The end of this message, for this reason."""
        return self.decider.end(self.facts, reason, detail)

    def _limits(self) -> dict[str, Any]:
        return {"retries_left": 0 if self.gave_up else None, "throws": classes_of(self.task.throws)}

    def _call(self) -> dict[str, Any]:
        request = self.task.request
        return {"task_args": tuple(request.args or ()), "task_kwargs": dict(request.kwargs or {}), "fn": self.task.run}

    def conclude(self, decided: Decision, exc: BaseException, *, reported: Any = UNSET) -> BaseException:
        """The exception that makes the worker carry this decision out. `reported` is what Celery shows instead of `exc`."""
        failed = self.runtime.failed_of(exc, with_traceback=False)  # a death's is in the pool's report
        if isinstance(decided, decision.Redeliver):
            is_unread = not _is_read(self.task, self.task.request, has_events=self.facts.has_events)
            reported = exc if reported is UNSET else reported
            if reported is not None:
                reported = safe_repr(reported) if is_unread else get_pickleable_exception(reported)
            facts: dict[str, Any] = {"delay_ms": round(decided.delay * 1000), "failed": failed, "is_unread": is_unread}
            return Redelivering(None, reported, decided.delay, **facts)
        self.dying, self.raised = Dying(decided, failed), exc
        return exc


def classes_of(throws: Any) -> tuple[type[BaseException], ...]:
    """The classes in a task's `throws`, which is a class or a tuple."""
    return throws if isinstance(throws, tuple) else (throws,) if isinstance(throws, type) else ()


def _is_read(task: Any, request: Any, *, has_events: bool) -> bool:
    """Whether anything reads the traceback of a redelivery: events, a signal's receiver, a hook or a result backend."""
    if has_events or signals.task_retry.receivers or task_has_custom(task, "on_retry"):
        return True
    return stores_errors(task, request) and not isinstance(task.backend, DisabledBackend)
