"""The transitions of a request: how a message that it holds leaves, as one step of the broker's.

Enters: an `Ending`, or a delay; leaves: a transition, handed to the outbox together with the event that it records. One that the
broker does not answer waits there; one that it refuses, because the message was given to another worker, is logged and changes
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker import state

from ..logs import log
from ..messages.events import Event, Outcome, Reason
from ..messages.recording import recorded_id
from ..messages.steps import Attempt, opened, redelivered, sealed
from ..policy.decision import DeadLetter, Discard
from ..ports import Answer
from ..transitions.death import Death, burial, tell_death
from .deciding import Deciding, Ending

if TYPE_CHECKING:
    from ..messages.envelope import Failed

__all__ = ["Transitions"]

#: How long a message waits that the pool could not be given, through no fault of its own.
SET_BACK_MS = 1000


class Transitions(Deciding):
    """A request that carries out what was decided; `_left` says that its message has its transition."""

    _expires_ms: int | None = None
    _ending: Ending | None = None
    _left = False

    def _redeliver(self, delay_ms: int, failed: Failed, *, crash: bool = False, requeued: bool = False) -> None:
        self._left = True
        held = self._held
        assert held is not None  # noqa: S101 - the callers have looked
        now = self._runtime.owner.now_ms()
        raw = self._again(now, delay_ms, failed, crash=crash, requeued=requeued)
        if self._expires_ms is not None:
            delay_ms = min(delay_ms, max(self._expires_ms - now, 0))  # where it expires earlier, it is to die then
        event = self._event(Outcome.REDELIVERY_SCHEDULED, _crash_reason(failed) if crash else None, failed, delay_ms)
        pace = self._runtime.policies.pace_of(held.queue, self._expires_ms)
        self._ask(
            lambda transport: transport.defer(
                self._tag,
                held.list_name,
                raw,
                task_id=self.id,
                event=event,
                delay_ms=delay_ms,
                pace=pace,
            ),
        )

    def _again(self, now: int, delay_ms: int, failed: Failed, *, crash: bool, requeued: bool = False) -> bytes:
        """The message as it is delivered again, when this attempt has ended."""
        held = self._held
        assert held is not None  # noqa: S101 - the callers have looked
        attempt = Attempt(at_ms=now, worker=str(self._hostname), exception=failed.text, delay_ms=delay_ms)
        message = redelivered(
            opened(held.raw),
            held.queue,
            seen_ms=held.seen_ms,
            attempt=attempt,
            crash=crash,
            requeued=requeued,
            due_ms=now + delay_ms if delay_ms else None,
        )
        return sealed(message)

    def _leave(self, ending: Ending) -> None:
        self._left = True
        held, failed = self._held, ending.failed
        assert held is not None  # noqa: S101 - the callers have looked
        event = self._event(ending.outcome, ending.reason, failed)
        if ending.reason is None:
            self._ask(lambda transport: transport.acknowledge(self._tag, event))
            return
        decided = (DeadLetter if ending.keep else Discard)(ending.reason, ending.detail)
        now, attempt = self._runtime.owner.now_ms(), None
        if ending.reason is not Reason.EXPIRED:
            attempt = Attempt(at_ms=now, worker=self._hostname, exception="" if failed is None else failed.text)
        death = Death.of(decided, self._policy, self._envelope, held.queue, failed=failed, attempt=attempt)
        if death.target is None:
            self._ask(lambda transport: transport.acknowledge(self._tag, event))
        else:
            transport, message = self._runtime.transport, opened(held.raw)
            self._carry_out(burial(transport, held, message, event, death, now_ms=now, tag=self._tag))
        tell_death(event, death.target, ending.detail)

    def set_back(self) -> None:
        """The pool could not be given this message, through no fault of its own: it comes again a little later, uncounted."""
        state.task_ready(self)
        self._left = True
        held = self._held
        assert held is not None  # noqa: S101 - only asked where we hold the message
        transport, tag = self._runtime.transport, self._tag
        self._carry_out(
            lambda: transport.defer(tag, held.list_name, held.raw, task_id=str(self.id), event=None, delay_ms=SET_BACK_MS)
        )

    def _acknowledge_early(self) -> None:
        """`acks_late=False`: from here on the message is never run again; it is held until its outcome is known, and recorded."""
        tag, runtime = self._tag, self._runtime
        lease = runtime.owner.lease
        if lease is None or not lease.has_minted(tag):
            # kombu's own receive: what stayed in its `unacked` would come back after the visibility timeout.
            self._carry_out(lambda: runtime.transport.acknowledge(tag, None))
            self._tag = ""
            return
        self.acknowledged = True
        runtime.outbox.carry_out(tag, lambda: lease.accept(tag), lambda _: runtime.make_room(tag))

    def _recording(self, on_success: Any) -> Any:
        def recording(result: tuple[bool, Any, float], **kwargs: Any) -> None:
            on_success(result, **kwargs)
            if not result[0]:
                self._leave(Ending(Outcome.SUCCEEDED))

        return recording

    def _carry_out(self, transition: Any) -> None:
        self.acknowledged = True
        tag = self._tag
        self._runtime.outbox.carry_out(tag, transition, lambda answer: self._answered(tag, answer))

    def _ask(self, transition: Any) -> None:
        self.acknowledged = True
        tag, runtime = self._tag, self._runtime
        runtime.outbox.ask(tag, transition, lambda answer: self._answered(tag, answer), runtime.transport)

    def _answered(self, tag: str, answer: Answer) -> None:
        if answer is Answer.REFUSED:
            log.warning("transition.refused", task_id=self.id, tag=tag, why="the message was given to another worker")
        self._runtime.owner.drop(tag)

    def _event(
        self,
        outcome: Outcome,
        reason: Reason | None,
        failed: Failed | None = None,
        delay_ms: int | None = None,
    ) -> Event:
        request, envelope, held = self._request_dict, self._envelope, self._held
        assert held is not None  # noqa: S101 - the callers have looked
        return Event(
            task_id=recorded_id(self.id, held),
            outcome=outcome,
            generation=envelope.generation,
            task=self._type,
            queue=envelope.life_queue(held.queue),
            reason="" if reason is None else reason,
            attempt=envelope.attempt + 1,
            delivery=envelope.delivery + 1,
            delay_ms=delay_ms,
            worker=self._hostname,
            exception="" if failed is None else failed.type,
            fingerprint="" if failed is None else failed.fingerprint,
            root_id=request.get("root_id") or "",
            parent_id=request.get("parent_id") or "",
            nesting=request.get("replaced_task_nesting") or 0,
        )


def _crash_reason(failed: Failed) -> Reason:
    return Reason.TIME_LIMIT if failed.type.endswith("TimeLimitExceeded") else Reason.WORKER_LOST
