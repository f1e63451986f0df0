"""Cancels, promotes (due now) and reschedules messages in the delay store.

Each change moves the message and records its event in one step. A message that has become due meanwhile is not changed (`ALREADY`).
A cancelled task gets the result REVOKED, and its chord counts it. A dead letter that waits for its dead-letter queue or its handler
is refused with `InputError`: use `redelivery dlq`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.errors import InputError
from redelivery.middleware.logs import log
from redelivery.middleware.messages.events import Outcome, Reason
from redelivery.middleware.messages.steps import deferred, iso, sealed
from redelivery.middleware.ports import Answer
from redelivery.middleware.transitions.notify import store_end

from ...brokers.broker import broker_of
from ..words.short_ids import MAX_CANDIDATES, hint, is_whole, meant

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.runtime import Runtime

    from ...letters import Contents
    from ...ports import Delayed, DelayStore


def of_task(store: DelayStore, given: str, *, where: str) -> list[Delayed]:
    """Return the delayed messages of the task with this id, or beginning of an id.

    Raises `InputError` if there are none, or if several tasks match. `where` names a command that finds any task, for its text.
    """
    task_id = given if is_whole(given) else meant(given, store.ids_like(given, MAX_CANDIDATES + 1))
    found = [] if task_id is None else store.of_task(task_id)
    if not found:
        msg = f"task {given} is not delayed{hint([given])}: {where} says where it is"
        raise InputError(msg)
    return found


def changeable(found: Delayed) -> Delayed:
    """Return the message. Raises `InputError` if it is a dead letter, or if its bytes are not a message."""
    envelope = found.contents.envelope
    if envelope.is_letter or envelope.undelivered is not None:
        msg = f"task {found.contents.task_id} is dead, and waits for its dead-letter queue or its handler: see `redelivery dlq`"
        raise InputError(msg)
    if found.contents.message is None:
        msg = f"{found.contents.task_id} is not a message: its bytes can only wait"
        raise InputError(msg)
    return found


def cancel(runtime: Runtime, found: Delayed, *, actor: str | None = None, store: DelayStore | None = None) -> Answer:
    """Remove a message from the delay store. Raises as `changeable`.

    `actor` is recorded in the event. An operation gives its own `store`; the default is the broker's store.
    """
    contents = changeable(found).contents
    event = contents.event(Outcome.CANCELLED, found.queue, reason=Reason.OPERATOR, worker=runtime.worker, actor=actor)
    answer = (store or broker_of(runtime.transport).delayed).cancel(found.list_name, found.ident, event)
    if answer is Answer.DONE:
        log.info("delayed.cancelled", task_id=contents.task_id, queue=found.queue, why="operator")
        _notify_caller(runtime, contents)
    return answer


def reschedule(runtime: Runtime, found: Delayed, *, due_ms: int | None, actor: str | None = None) -> Answer:
    """Change a message's due time to `due_ms` (the broker's time; None: now). Raises as `changeable`."""
    contents, store = changeable(found).contents, broker_of(runtime.transport).delayed
    assert contents.message is not None  # noqa: S101 - a message has been seen just above
    until_ms = runtime.transport.now_ms() if due_ms is None else due_ms
    seen_ms = contents.envelope.first_seen_ms or until_ms
    message = sealed(deferred(contents.message, found.queue, seen_ms=seen_ms, eta=iso(until_ms)))
    answer = store.reschedule(found.list_name, found.ident, message, _deferral(runtime, found, actor), due_ms=due_ms)
    if answer is Answer.DONE:
        log.info("delayed.rescheduled", task_id=contents.task_id, queue=found.queue, due_ms=until_ms)
    return answer


def _deferral(runtime: Runtime, found: Delayed, actor: str | None) -> Event:
    contents = found.contents
    return contents.event(
        Outcome.DEFERRED,
        found.queue,
        reason=Reason.OPERATOR,
        attempt=contents.envelope.attempt + 1,
        delivery=contents.envelope.delivery + 1,
        worker=runtime.worker,
        actor=actor,
    )


def _notify_caller(runtime: Runtime, contents: Contents) -> None:
    """Store the result REVOKED as Celery stores it, so that the caller and a chord learn that the task has ended."""
    if contents.message is not None and contents.is_task:
        store_end(runtime.app, contents.message, "cancelled")
