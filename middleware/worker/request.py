"""Egress: how a message leaves the worker that held it.

One request is one delivery of one message. It leaves by exactly one transition, in the worker's main process:

1. *It succeeded.* Celery acknowledges: acknowledged, and recorded as `succeeded`; or as `unobserved`, where a `Strategy` of the
   task's own ran it (`own_strategy`), so that nobody told us of its end.
2. *It is to be delivered again.* The child raised `Redelivering`; or a child was lost, or ran out of time, and it is decided here:
   moved to the delay store (or back to its queue), and recorded as `redelivery_scheduled`.
3. *It died.* The exception carries the decision, or it is taken here: moved to the dead-letter queue and recorded as
   `dead_lettered`; or ended and recorded as `discarded`, where its policy keeps no letters.
4. *It was revoked, expired or ignored*, Celery's own words: recorded as such; an expired one is a death.

Whatever Celery stores for the caller (`AsyncResult`), it stores before the message leaves; a worker that dies in between has the
message delivered again. A transition that the broker does not answer waits in the outbox; one that it refuses, because the message
was given to another worker, is logged and changes nothing.

This is what Celery tells a request. What is decided then is in `ending`, what a lost child could not do in `lost_child`, when a
message is over in `expiry`, and the moves themselves in `transition`.

Limits: the methods that Celery's generated request class overrides (`execute_using_pool`, `on_success`) are never called here, so a
success is recorded in `acknowledge`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError, WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.worker import state
from celery.worker.request import Request

from ..child.attempt import CONTEXT, DECIDED, Redelivering
from ..logs import log
from ..messages.envelope import COPIES, DELIVERED, EXPIRATION
from ..messages.events import Outcome, Reason
from ..messages.steps import ANNOUNCED, HEADER, Envelope, Failed, eligible_of
from ..messages.ttl import PUBLISHED, TIME_TO_LIVE
from ..policy import decision
from .deadline import Expiring
from .deciding import Ending
from .observer import unwrapped
from .own_strategy import strategy_of
from .worker_lost import LosingChild, success_was_stored, worker_lost_info

if TYPE_CHECKING:
    from concurrent.futures import Future

    from billiard.einfo import ExceptionInfo

    from ..ports import Held
    from ..runtime import Runtime

__all__ = ["Egress", "request_class"]

#: What Celery does not count among a task's own headers (`celery.app.task.Context`), and what is ours.
NO_CUSTOM_HEADERS = {*vars(Context), "lang", "task", "argsrepr", "kwargsrepr", "compression"} | {
    HEADER,
    ANNOUNCED,
    PUBLISHED,
    EXPIRATION,
    DELIVERED,
    COPIES,
    "redelivered",
}


class Egress(Expiring, LosingChild):
    """Celery's request, whose message leaves by a transition; one that we do not hold, or that is not `enabled`, is observed."""

    #: Whether it was handed to the pool by Celery's own strategy, so that its end is told here.
    is_told = False
    _future: Future[Any] | None = None
    _apply_result: Any

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        held: Held | None = getattr(message, "held", None)
        runtime: Runtime | None = getattr(self._app, "redelivery", None)
        if runtime is None:
            return
        if held is None or not runtime.policies.is_enabled(self._type, held.queue):
            self._observe(runtime, message)
            return
        self._held, self._runtime, self._tag = held, runtime, held.tag
        held.request = self
        self._envelope = Envelope.of(message.headers)
        if self._envelope.served_eta is not None and self._request_dict.get("eta") == self._envelope.served_eta:
            # The delay store has waited for this ETA, by the server's clock: Celery must not judge it again by this machine's.
            self._eta = None
        elif self._eta is not None:
            self._eta = self._by_this_clock(self._eta)
        if runtime.policies.keeps_time or self._expires is not None or TIME_TO_LIVE in message.headers:
            self._begin_lifetime(message)
        self._request_dict[CONTEXT] = self._context_of(runtime)
        # What Celery calls a task's own headers: without ours, which must not go along with what the task publishes.
        self._request_dict["headers"] = {key: value for key, value in message.headers.items() if key not in NO_CUSTOM_HEADERS}
        if not self._task.acks_late:
            self.on_success: Any = self._recording(self.on_success)

    def _context_of(self, runtime: Runtime) -> dict[str, Any]:
        held, envelope = self._held, self._envelope
        assert held is not None  # noqa: S101 - set just before
        first_seen = held.seen_ms if envelope.first_seen_ms is None else envelope.first_seen_ms
        return {
            "tag": held.tag,
            "queue": held.queue,
            "attempt": self.attempt,
            "generation": envelope.generation,
            "first_seen_ms": first_seen,
            "age": max(held.seen_ms - first_seen, 0) / 1000,
            "received": time.monotonic(),
            "received_ms": runtime.owner.now_ms(),
            "expires_ms": self._expires_ms,
            "waited": sum(each.get("delay") or 0 for each in envelope.attempts) / 1000,
            "eligible": eligible_of(self._request_dict),
            "must_start": self.must_start and runtime.shares_process,
            "has_events": self._has_events(),
        }

    def _has_events(self) -> bool:
        """Whether anybody is told of this task's events: the dispatcher is also there for the worker's heartbeat alone."""
        eventer = self._eventer
        if eventer is None or not eventer.enabled or not self._task.send_events:
            return False
        return not eventer.groups or "task" in eventer.groups

    @property
    def _context(self) -> Context:
        """As Celery's; where the body has another shape, what the headers say, so that its end can be told."""
        try:
            context: Context = super()._context
        except Exception:  # noqa: BLE001 - the body is anybody's
            context = Context(self._request_dict)
        return context

    @property
    def must_start(self) -> bool:
        """Whether the start of this delivery is recorded before it runs: a crash has touched the message, or its policy says so."""
        held = self._held
        if held is None:
            return False
        return (
            self._envelope.suspect or self._runtime.policies.policy_for(held.queue, self._type).persist_delivery_count == "always"
        )

    def is_running(self) -> bool:
        """Whether the task runs here, or will whatever we do."""
        if self in state.active_requests:
            return True
        return self._future is not None and not self._future.cancel()

    def was_handed_over(self) -> bool:
        """Whether the pool has been given the task, so that nobody can be sure that it has not begun."""
        if self.is_with_strategy:
            return True
        return (self._apply_result is not None or self.time_start is not None) and self._future is None

    @property
    def is_with_strategy(self) -> bool:
        """Whether the task's own `Strategy` has it, which runs it when it likes."""
        return not self.is_told and strategy_of(self._task) is not None

    def is_one_of(self, jobs: set[Any]) -> bool:
        """Whether its task is one of these jobs of the pool's; Celery keeps a weak reference to it."""
        return self._apply_result is not None and self._apply_result() in jobs

    def take_back(self) -> None:
        """The pool had room for the task, and did not begin it: its message goes back as it came."""
        self._apply_result = None

    def keep_future(self, result: Any) -> None:
        """Keep what a pool of threads returns: it alone can take back a task that has not begun; Celery keeps a weak reference."""
        self._future = getattr(result, "f", None)

    @property
    def is_held(self) -> bool:
        """Whether the message is ours to end."""
        return self._held is not None

    @property
    def has_left(self) -> bool:
        """Whether the message has its transition already."""
        return self._left

    # what Celery tells us

    def acknowledge(self) -> None:
        """The task is over, or (`acks_late=False`) about to begin: carry the ending out."""
        if self._held is None:
            super().acknowledge()
        elif not self.acknowledged:
            has_end = self.is_told or self.time_start is not None
            if self._ending is None and has_end and not self._task.acks_late:
                self._acknowledge_early()
            else:
                self._leave(self._ending or Ending(Outcome.SUCCEEDED if has_end else Outcome.UNOBSERVED))

    def reject(self, requeue: bool = False) -> None:
        """As Celery's: without requeueing it is a death; with it, one more delivery, which counts."""
        if self._held is None:
            super().reject(requeue=requeue)
            return
        if self._left or (self.acknowledged and self._task.acks_late):
            return
        if self._ending is not None:
            self._leave(self._ending)
            return
        failed = Failed(type="celery.exceptions.Reject", message=f"rejected, requeue={requeue}", fingerprint="rejected")
        decided = self._decide(Reject("rejected"), Reason.REJECTED)[1] if requeue else None
        if isinstance(decided, decision.Redeliver):
            self._redeliver(0, failed, requeued=True)  # at once, as Celery requeues
        else:
            if decided is not None:  # Celery tells nobody of what it requeues, and this is not delivered again
                self._tell_failure(Reject(f"rejected too often: {decided.detail}"), None)
            self._leave(self._death(decided or decision.ending(self._policy, Reason.REJECTED, "", eligible=self._eligible), failed))
        self.send_event("task-rejected", requeue=requeue)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """A cold shutdown ends the task, where its pool can; where it cannot (threads, solo), it ends the worker around it.

        Celery asks inside a signal's handler: what is raised here comes out of whatever the signal has interrupted, and a
        `WorkerTerminate` alone is known there for what it is.
        """
        if self._held is None:
            super().cancel(pool, signal, emit_retry)
            return
        if not emit_retry:  # as a cold shutdown asks, and a lost connection does not
            self._runtime.is_ending = True
        try:
            super().cancel(pool, signal, emit_retry)
        except NotImplementedError:
            log.warning("worker.terminated", task_id=self.id, why="a cold shutdown, and its pool cannot end a task")
            raise WorkerTerminate(EX_FAILURE) from None
        except Exception:  # noqa: BLE001 - the pool is anybody's, and the shutdown goes on
            log.exception("task.not_ended", task_id=self.id, why="a cold shutdown, and its pool could not end it")

    def on_retry(self, exc_info: ExceptionInfo) -> None:
        """Deliver the message again, as the child decided; what Celery's own `retry` has published anew is only ended here."""
        exc: Any = unwrapped(exc_info.exception)
        if self._held is None:
            super().on_retry(exc_info)
            return
        if isinstance(exc, Redelivering):
            state.task_ready(self)
            failed = exc.failed or Failed(type=type(exc).__name__)
            if not self._left:
                self._redeliver(exc.delay_ms, failed, crash=failed.type.endswith("WorkerLostError"))
        elif not self._left and not (self.acknowledged and self._task.acks_late):
            self._left = True
            self._carry_out(lambda: self._runtime.transport.acknowledge(self._tag, None))
        self.send_event("task-retried", exception=repr(exc.exc), traceback=str(exc_info.traceback))

    def on_failure(self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """The attempt failed: find the decision, or take it, and let Celery do the rest."""
        exc = unwrapped(exc_info.exception)
        if self._held is None or isinstance(exc, (Retry, Terminated)):
            super().on_failure(exc_info, send_failed_event, return_ok)
            return
        if self._left or (self.acknowledged and self._task.acks_late):
            state.task_ready(self)  # a hard time limit has ended it already
            return
        if isinstance(exc, (SystemExit, KeyboardInterrupt)) and not self._already_cancelled and not self._already_revoked:
            exc_info = worker_lost_info(self, exc)
            exc = unwrapped(exc_info.exception)
        if isinstance(exc, (WorkerLostError, TimeLimitExceeded, MemoryError)):
            if hasattr(exc, DECIDED):
                self._end_of_report(exc, exc_info)
                return
            if not success_was_stored(self):
                self._on_lost(exc, exc_info)
                return
        if isinstance(exc, Ignore):
            self._ending = Ending(Outcome.IGNORED)
        elif not isinstance(exc, (Reject, WorkerLostError)):
            self._ending = self._death_of(exc, exc_info)
        self._let_celery_fail(exc_info, send_failed_event, return_ok=return_ok)

    def _let_celery_fail(self, exc_info: ExceptionInfo, send_failed_event: bool, *, return_ok: bool) -> None:
        """What Celery does; a result that cannot be stored (under an empty id, say) does not keep the message from leaving."""
        ending, must_leave = self._ending, not self._task.acks_late
        try:
            super().on_failure(exc_info, send_failed_event, return_ok)
        except Exception:
            if ending is None:
                raise
            log.exception("hook.failed", task_id=self.id, hook="mark_as_failure")
            must_leave = True
        if must_leave and ending is not None and not self._left:
            self._leave(ending)

    def invalidate(self, exc_info: ExceptionInfo) -> None:
        """The pool cannot be given this message: it dies, and its caller is told."""
        exc = unwrapped(exc_info.exception)
        decided = decision.ending(self._policy, Reason.INVALID, "could not be handed to the pool", eligible=self._eligible)
        self._ending = self._death(decided, self._runtime.failed_of(exc))
        try:
            super().on_failure(exc_info)
        except Exception:  # noqa: BLE001 - a result backend takes no empty id, say: the worker must not end by that
            log.exception("hook.failed", task_id=self.id, hook="mark_as_failure")
        finally:
            if not self._left:
                self._leave(self._ending)


def request_class(base: type[Request]) -> type[Request]:
    """The request class to use for a task whose own one is `base`."""
    if issubclass(base, Egress):
        return base
    if base is Request:
        return Egress
    # The application's own class is in front: what it overrides wraps what is here, as it wraps Celery's.
    return type(f"Egress{base.__name__}", (base, Egress), {"__module__": __name__})
