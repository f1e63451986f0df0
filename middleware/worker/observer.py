"""Observing: a message that Celery alone deals with, and what is recorded of it.

So it is for every message in `mode="observe"`, and for those of tasks and queues with `enabled = false`. Celery's retry,
acknowledging and rejecting are left as they are; after each, one event says what Celery did:

- `succeeded`, `ignored`, `revoked` and `expired` are Celery's own words;
- `redelivery_scheduled`, where it put the message back (a lost worker, `Reject(requeue=True)`); what `Task.retry` publishes is
  recorded by the publication;
- `unobserved`, where a `Strategy` of the task's own acknowledged the message;
- `discarded`, where it ended the message in any other way, for it is kept nowhere: reason `exhausted` after a failure, `rejected`,
  `time_limit` or `worker_lost`.

In `mode="observe"` a line `decision.observed` says beside it what the policy would have decided.

Limits: the age of a message is not known here, nor what a task's `retry=` would say of a result. A task that dies with its whole
worker leaves no event; an early-acknowledged one is then `lost` in the books, as it is in truth.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request

from ..child.attempt import classes_of
from ..child.task_defaults import PLAIN
from ..logs import log
from ..messages.envelope import failed_of
from ..messages.events import Outcome, Reason
from ..messages.recording import about
from ..messages.steps import eligible_of
from ..policy import decision
from ..ports import Held
from .own_strategy import strategy_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from billiard.einfo import ExceptionInfo

    from ..runtime import Runtime

__all__ = ["Observing", "queue_of", "record", "unwrapped"]


class AsCelery:
    """A task as it was before `settle`, for one message of a queue that is not `enabled`."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.acks_late, self.reject_on_worker_lost = getattr(task, PLAIN)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


class Observing(Request):
    """Celery's request; where `_observe` was called, what becomes of it is recorded."""

    _task: Any
    _observer: Runtime | None = None
    _was_recorded = False
    _was_requeued = False
    _is_revoked = False

    def _observe(self, runtime: Runtime, message: Any) -> None:
        self._observer = runtime
        self._about = message.headers
        self._queue = queue_of(message)
        if runtime.enforces and hasattr(self._task, PLAIN):
            self._task = AsCelery(self._task)
        self.on_success: Any = self._noting(self.on_success)

    def _noting(self, on_success: Any) -> Any:
        def noting(result: tuple[bool, Any, float], **kwargs: Any) -> None:
            self.__dict__.pop("on_success", None)  # what refers to itself would be left to the garbage collector
            on_success(result, **kwargs)
            if not result[0]:
                self._note(Outcome.SUCCEEDED)

        return noting

    # what Celery tells us

    def acknowledge(self) -> None:
        """As Celery's; of one that its task's own `Strategy` has run, this is all that is ever told."""
        super().acknowledge()
        if self._observer is not None and self.time_start is None and not self._is_revoked and strategy_of(self._task) is not None:
            self._note(Outcome.UNOBSERVED)

    def reject(self, requeue: bool = False) -> None:
        """As Celery's; remembers whether the message went back."""
        if self._observer is not None and not self.acknowledged:
            self._was_requeued = requeue
        super().reject(requeue=requeue)

    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """As Celery's: it has published the next attempt itself, and so recorded it."""
        super().on_retry(exc_info)
        if self._observer is not None:
            exc = unwrapped(exc_info.exception)
            cause = exc.exc if isinstance(exc.exc, BaseException) else exc
            self._say(cause, requested_delay=_seconds(exc.when), celery="retried")

    def on_failure(self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """As Celery's; then record what it did."""
        super().on_failure(exc_info, send_failed_event, return_ok)
        exc = unwrapped(exc_info.exception)
        if self._observer is None or isinstance(exc, (Retry, Terminated)) or state.should_terminate or self._already_cancelled:
            return
        if isinstance(exc, Ignore):
            self._note(Outcome.IGNORED)
            return
        lost = {WorkerLostError: Reason.WORKER_LOST, TimeLimitExceeded: Reason.TIME_LIMIT, Reject: Reason.REJECTED}.get(type(exc))
        self._ended(exc, lost)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """As Celery's; a hard one has ended the task."""
        super().on_timeout(soft, timeout)
        if self._observer is not None and not soft and not state.should_terminate:
            self._ended(TimeLimitExceeded(timeout), Reason.TIME_LIMIT)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self._is_revoked = True
        super()._announce_revoked(reason, terminated, signum, expired)
        if self._observer is not None:
            self._note(Outcome.EXPIRED if expired else Outcome.REVOKED)

    # what is recorded

    def _ended(self, exc: BaseException, cause: Reason | None) -> None:
        if self._was_recorded:
            return
        self._say(exc, cause=cause, celery="requeued" if self._was_requeued else "ended it")
        failed = failed_of(exc)
        outcome = Outcome.REDELIVERY_SCHEDULED if self._was_requeued else Outcome.DISCARDED
        self._note(outcome, reason=cause or Reason.EXHAUSTED, exception=failed.type, fingerprint=failed.fingerprint)

    def _note(self, outcome: Outcome, **facts: Any) -> None:
        if self._was_recorded or self._observer is None:
            return
        self._was_recorded = True
        record(self._observer, self._about, self._queue, outcome, attempt=self._attempts(), **facts)

    def _attempts(self) -> int:
        return int(self._request_dict.get("retries") or 0) + 1

    def _say(self, exc: BaseException, *, celery: str, cause: Reason | None = None, requested_delay: float | None = None) -> None:
        runtime = self._observer
        if runtime is None or runtime.enforces or not runtime.policies.is_enabled(self._type, self._queue):
            return
        policy = runtime.policies.policy_for(self._queue, self._type)
        eligible = eligible_of(self._request_dict)
        if isinstance(exc, Reject) and not exc.requeue:
            decided: decision.Decision = decision.ending(policy, Reason.REJECTED, eligible=eligible)
        else:
            failure = decision.Failure(
                attempt=self._attempts(),
                age=0.0,
                exception=exc,
                cause=cause,
                requested_delay=requested_delay,
                eligible=eligible,
                throws=classes_of(self._task.throws),
            )
            decided = runtime.policies.decide(self._queue, self._type, policy, failure, idle_for=0.0)
        said = _said(decided)
        log.info(
            "decision.observed",
            task_id=self.id,
            task=self._type,
            queue=self._queue,
            attempt=self._attempts(),
            celery=celery,
            **said,
        )


def record(runtime: Runtime, headers: Mapping[str, Any], queue: str, outcome: Outcome, attempt: int = 1, **facts: Any) -> None:
    """Append one event about a message that is none of ours to move. It waits in the outbox where the broker does not answer."""
    held = Held("", queue, queue, str(headers.get("id")).encode(), 0)
    event = replace(about(headers, held, outcome, worker=runtime.worker, **facts), attempt=attempt, delivery=attempt)
    transport = runtime.transport
    runtime.outbox.carry_out("", lambda: transport.acknowledge("", event), lambda _: None)


def queue_of(message: Any) -> str:
    """The queue that a message was taken from; its routing key where that is not known."""
    held = getattr(message, "held", None)
    if held is not None:
        return str(held.queue)
    named = getattr(message, "queue", None)
    return str(named if named is not None else (message.delivery_info or {}).get("routing_key", ""))


def _said(decided: decision.Decision) -> dict[str, Any]:
    if isinstance(decided, decision.Redeliver):
        return {"decision": "redeliver", "delay": round(decided.delay, 3)}
    kind = "dead_letter" if isinstance(decided, decision.DeadLetter) else "discard"
    return {"decision": kind, "reason": str(decided.reason), "detail": decided.detail}


def _seconds(when: Any) -> float | None:
    """What `Task.retry` asked for: seconds, or a time."""
    if when is None or isinstance(when, (int, float)):
        return when
    return float(max(when.timestamp() - time.time(), 0.0))


def unwrapped(exc: Any) -> Any:
    """The exception itself, where the pool handed it over in billiard's wrapping."""
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
