"""The deliveries of messages that Celery alone ends, and their events.

These are all messages in `mode="observe"`, and those of tasks and queues with `enabled = false`. Celery's handling is not changed;
one event reports how Celery ended the message:

- `succeeded`, `ignored`, `revoked` and `expired` are Celery's own words;
- `redelivery_scheduled`: Celery put it back (a lost worker, `Reject(requeue=True)`). `Task.retry` is recorded by its publication;
- `unobserved`: the task's own `Strategy` acknowledged it;
- `discarded`: any other end. The reason is `exhausted` (after a failure), `rejected`, `time_limit` or `worker_lost`.

In `mode="observe"` the log line `decision.observed` also reports what the policy would have decided.

Limits: neither the age of a message is known here, nor what a task's `retry=` would decide about a result. If a task dies with its
whole worker, there is no event; if it was acknowledged early, the books rightly call it `lost`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request

from ...child.attempt import classes_of
from ...child.task_defaults import PLAIN
from ...logs import log
from ...messages.envelope import Envelope, eligible_of, failed_of
from ...messages.events import Outcome, Reason
from ...messages.recording import about
from ...policy import decision
from ...ports import ignore
from ...transitions.facts import Decider, DeliveryFacts
from ..own_strategy import strategy_of
from .held_delivery import unwrapped
from .run_time import times_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from billiard.einfo import ExceptionInfo

    from ...messages.events import Event
    from ...runtime import Runtime


class AsCelery:
    """A task as it was before `apply_defaults`, for one message of a queue that is not `enabled`."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.acks_late, self.reject_on_worker_lost = getattr(task, PLAIN)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


class PlainDelivery:
    """A message of an app without redelivery: every method is Celery's own."""

    acknowledge = staticmethod(Request.acknowledge)
    reject = staticmethod(Request.reject)
    cancel = staticmethod(Request.cancel)
    on_retry = staticmethod(Request.on_retry)
    on_failure = staticmethod(Request.on_failure)
    on_timeout = staticmethod(Request.on_timeout)
    revoked = staticmethod(Request.revoked)
    expired = staticmethod(Request.maybe_expire)
    announce_revoked = staticmethod(Request._announce_revoked)  # noqa: SLF001 - Celery's own

    def succeeded(self, request: Any) -> None:
        """Nothing more than Celery does."""


class ObservedDelivery:
    """A message that Celery alone ends; what Celery did is recorded after each of its steps."""

    cancel = staticmethod(Request.cancel)
    revoked = staticmethod(Request.revoked)
    expired = staticmethod(Request.maybe_expire)

    def __init__(self, request: Any, message: Any, runtime: Runtime) -> None:
        self._runtime, self._headers, self._queue = runtime, message.headers, queue_of(message)
        self._was_recorded = self._was_requeued = self._is_revoked = False
        if runtime.enforces and hasattr(request.task, PLAIN):
            request._task = AsCelery(request.task)  # noqa: SLF001 - Celery reads it

    def acknowledge(self, request: Any) -> None:
        """As Celery's. It is the only report about a message that the task's own `Strategy` has run."""
        Request.acknowledge(request)
        if request.time_start is None and not self._is_revoked and strategy_of(request.task) is not None:
            self._note(request, Outcome.UNOBSERVED)

    def succeeded(self, request: Any) -> None:
        """Record a success."""
        self._note(request, Outcome.SUCCEEDED)

    def reject(self, request: Any, requeue: bool) -> None:
        """As Celery's; remembers whether the message went back."""
        if not request.acknowledged:
            self._was_requeued = requeue
        Request.reject(request, requeue=requeue)

    def on_retry(self, request: Any, exc_info: ExceptionInfo) -> None:
        """As Celery's, which has published the next attempt: the publication is recorded."""
        Request.on_retry(request, exc_info)
        exc = unwrapped(exc_info.exception)
        cause = exc.exc if isinstance(exc.exc, BaseException) else exc
        self._log_decision(request, cause, requested_delay=_seconds(exc.when), celery="retried")

    def on_failure(self, request: Any, exc_info: ExceptionInfo, send_failed_event: bool, return_ok: bool) -> None:
        """As Celery's; then record it."""
        Request.on_failure(request, exc_info, send_failed_event, return_ok)
        exc = unwrapped(exc_info.exception)
        if isinstance(exc, (Retry, Terminated)) or state.should_terminate or request._already_cancelled:  # noqa: SLF001
            return
        if isinstance(exc, Ignore):
            self._note(request, Outcome.IGNORED)
            return
        lost = {WorkerLostError: Reason.WORKER_LOST, TimeLimitExceeded: Reason.TIME_LIMIT, Reject: Reason.REJECTED}.get(type(exc))
        self._ended(request, exc, lost)

    def on_timeout(self, request: Any, soft: bool, timeout: float) -> None:
        """As Celery's; record that a hard one has ended the task."""
        Request.on_timeout(request, soft, timeout)
        if not soft and not state.should_terminate:
            self._ended(request, TimeLimitExceeded(timeout), Reason.TIME_LIMIT)

    def announce_revoked(self, request: Any, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """As Celery's; then record it."""
        self._is_revoked = True
        Request._announce_revoked(request, reason, terminated, signum, expired)  # noqa: SLF001 - Celery's own
        self._note(request, Outcome.EXPIRED if expired else Outcome.REVOKED)

    # records

    def _ended(self, request: Any, exc: BaseException, cause: Reason | None) -> None:
        if self._was_recorded:
            return
        self._log_decision(request, exc, cause=cause, celery="requeued" if self._was_requeued else "ended it")
        failed = failed_of(exc)
        outcome = Outcome.REDELIVERY_SCHEDULED if self._was_requeued else Outcome.DISCARDED
        reason = Reason.EXHAUSTED if cause is None else cause
        self._note(request, outcome, reason=reason, exception=failed.type, fingerprint=failed.fingerprint)

    def _note(self, request: Any, outcome: Outcome, **facts: Any) -> None:
        if not self._was_recorded:
            self._was_recorded = True
            facts |= times_of(self._runtime, request, self._headers, Envelope.of(self._headers))
            record(self._runtime, self._headers, self._queue, outcome, attempt=_attempts(request), **facts)

    def _log_decision(
        self, request: Any, exc: BaseException, *, celery: str, cause: Reason | None = None, requested_delay: float | None = None
    ) -> None:
        runtime, task, queue = self._runtime, request.type, self._queue
        if runtime.enforces or not runtime.policies.is_enabled(task, queue):
            return
        attempt, eligible = _attempts(request), eligible_of(request.request_dict)
        facts, decider = DeliveryFacts(queue, attempt, time.monotonic(), eligible=eligible), Decider(runtime, task)
        if isinstance(exc, Reject) and not exc.requeue:
            decided: decision.Decision = decider.end(facts, Reason.REJECTED)
        else:
            throws = classes_of(request.task.throws)
            decided = decider.decide(facts, exc, cause, requested_delay=requested_delay, throws=throws)
        call = {"task_id": request.id, "task": task, "queue": queue, "attempt": attempt, "celery": celery}
        log.info("decision.observed", **call, **_in_words(decided))


def record(runtime: Runtime, headers: Mapping[str, Any], queue: str, outcome: Outcome, attempt: int = 1, **facts: Any) -> None:
    """Append one event about a message that Celery alone ends."""
    known = {"worker": runtime.worker, "attempt": attempt, "delivery": attempt, **facts}
    append(runtime, about(headers, queue, str(headers.get("id")).encode(), outcome, **known))


def append(runtime: Runtime, event: Event) -> None:
    """Append one event that moves no message. It waits in the outbox while the broker does not answer."""
    transport = runtime.transport
    runtime.outbox.carry_out("", lambda: transport.acknowledge("", event), runtime.answer_callback(None, event) or ignore)


def _attempts(request: Any) -> int:
    return int(request.request_dict.get("retries") or 0) + 1


def queue_of(message: Any) -> str:
    """The queue that a message came from; its routing key if the queue is not known."""
    held = getattr(message, "held", None)
    if held is not None:
        return str(held.queue)
    named = getattr(message, "queue", None)
    return str(named if named is not None else (message.delivery_info or {}).get("routing_key", ""))


def _in_words(decided: decision.Decision) -> dict[str, Any]:
    if isinstance(decided, decision.Redeliver):
        return {"decision": "redeliver", "delay": round(decided.delay, 3)}
    kind = "dead_letter" if isinstance(decided, decision.DeadLetter) else "discard"
    return {"decision": kind, "reason": str(decided.reason), "detail": decided.detail}


def _seconds(when: Any) -> float | None:
    """The delay of a `Retry`, whose `when` is seconds or a time."""
    if when is None or isinstance(when, (int, float)):
        return when
    return float(max(when.timestamp() - time.time(), 0.0))
