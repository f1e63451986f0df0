"""The settlement of one held message: it leaves once, by a transition with its event, which the outbox carries out.

If the broker does not answer, the transition waits in the outbox. If the broker refuses it, because another worker has the message,
this is logged and nothing changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker import state

from ...logs import log
from ...ports import NOT_KEPT, Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...messages.events import Event
    from ...policy.resolver import Pace
    from ...ports import Held, Moves, TaskResult
    from ...runtime import Runtime

#: How long a message waits if the pool failed to take it (milliseconds).
SET_BACK_MS = 1000


class Settlement:
    """How one held message leaves; `is_done`: its transition has begun.

    It keeps no reference to Celery's request: the request refers to its delivery, and only the garbage collector would free two
    objects that refer to each other.
    """

    __slots__ = ("held", "is_done", "runtime", "tag")

    def __init__(self, runtime: Runtime, held: Held) -> None:
        self.runtime, self.held, self.tag = runtime, held, held.tag
        self.is_done = False

    def acknowledge(self, request: Any, event: Event | None, result: TaskResult | None = None) -> None:
        """End the message of a task that is over. Without an event, the end is recorded already. `result` is stored as well."""
        tag = self.tag
        self._ask(request, lambda transport: transport.acknowledge(tag, event, result), event)

    def defer(
        self, request: Any, name: str, raw: bytes, task_id: str, event: Event | None, *, delay_ms: int, pace: Pace | None = None
    ) -> None:
        """Move the message to the list or queue of this name, after the delay."""
        tag = self.tag
        how: dict[str, Any] = {"task_id": task_id, "event": event, "delay_ms": delay_ms, "pace": pace}
        self._ask(request, lambda transport: transport.defer(tag, name, raw, **how), event)

    def set_back(self, request: Any) -> None:
        """Deliver the message again a little later, uncounted: the pool failed to take it."""
        state.task_ready(request)
        self.defer(request, self.held.list_name, self.held.raw, str(request.id), None, delay_ms=SET_BACK_MS)

    def accept_early(self, request: Any) -> None:
        """Note (`acks_late=False`) that the message never runs again. It stays held until its outcome is recorded."""
        tag, runtime = self.tag, self.runtime
        request.acknowledged = True
        lease = runtime.owner.lease
        if lease is not None and lease.has_minted(tag):
            runtime.outbox.carry_out(tag, lambda: lease.accept(tag), lambda _: runtime.make_room(tag))
        else:
            # With kombu's own receive, a message in `unacked` would come back after the visibility timeout.
            runtime.outbox.carry_out(tag, lambda: runtime.transport.acknowledge(tag, None), self._answered(request))
            self.tag = ""

    def give_up(self, request: Any) -> None:
        """Drop a message that another worker has now."""
        state.task_ready(request)
        request.acknowledged = True
        self.runtime.owner.drop(self.held.tag)

    def carry_out(self, request: Any, transition: Callable[[], Answer], event: Event | None) -> None:
        """Let the message leave by this transition, which records the event; wait for the broker's answer."""
        request.acknowledged = self.is_done = True
        self.runtime.outbox.carry_out(self.tag, transition, self._answered(request, event))

    def _ask(self, request: Any, transition: Callable[[Moves], Answer], event: Event | None) -> None:
        request.acknowledged = self.is_done = True
        self.runtime.outbox.ask(self.tag, transition, self._answered(request, event), self.runtime.transport)

    def _answered(self, request: Any, event: Event | None = None) -> Callable[[Answer], None]:
        tag, task_id, runtime = self.tag, request.id, self.runtime
        on_answer = runtime.answer_callback(self.held, event)

        def answered(answer: Answer) -> None:
            if answer is Answer.REFUSED:
                log.warning("transition.refused", task_id=task_id, tag=tag, why=NOT_KEPT)
            if runtime.holds_messages:  # false for a thread that outlives its worker's stop
                runtime.owner.drop(tag)
            if on_answer is not None:
                on_answer(answer)

        return answered
