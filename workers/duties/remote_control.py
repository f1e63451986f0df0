"""Remote control of the delay store: Celery's `revoke` cancels messages in it, and `inspect scheduled` shows them.

A consumer bootstep wraps control commands of Celery in this worker. Each does what Celery's command does, and then:

- `revoke` and `terminate` take the messages of these tasks out of the delay store. The first worker to do so stores REVOKED,
  reports it to a chord, sends the signal and the event, and records `revoked`;
- `revoke_by_stamped_headers` does the same with stamped messages among those of this worker's queues that are due first. Later ones
  are revoked when they are due, by any worker that remembers the stamps, as in Celery;
- `inspect scheduled` lists the messages that wait in the worker, and then those of its queues in the store that are due first.

In addition, the command `redelivery` reports the worker's version of redelivery, its mode, its clock, and its running tasks.

If the broker does not answer, nothing is lost: as in Celery, the worker remembers the revoked ids, and the task is revoked when it
is due.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.utils.functional import maybe_list
from celery.worker import state
from celery.worker.consumer.control import Control
from celery.worker.request import Request
from kombu.transport.virtual import Message

from redelivery.middleware.brokers.errors import REDIS_ERRORS
from redelivery.middleware.logs import HIDDEN, error_text, log
from redelivery.middleware.messages.events import Outcome
from redelivery.middleware.ports import Answer, Capability
from redelivery.middleware.transitions.notify import Caller

from ..brokers.broker import broker_of
from ..operations.fleet.running import ABOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery.worker.consumer import Consumer

    from ..ports import Delayed, DelayStore

#: The most waiting messages that `inspect scheduled` lists, and that are searched for stamps.
MAX_LISTED, MAX_SEARCHED = 500, 2000
#: The most running tasks that are named, the longest-running first.
MAX_RUNNING = 50
#: The priority of an ETA in Celery's timer, which Celery shows.
ETA_PRIORITY = 6

Command = Callable[..., Any]


class RemoteControl(bootsteps.StartStopStep):
    """The bootstep."""

    requires = ("celery.worker.consumer.control:Control", "redelivery.middleware.worker.bootstep:Ingress")
    label = "redelivery remote control"

    def __init__(self, consumer: Consumer, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._consumer, self._runtime = consumer, consumer.app.redelivery
        self._is_installed = False

    def start(self, consumer: Consumer) -> None:
        """Wrap the commands, once: the consumer's mailbox outlives its connection."""
        control = next((step for step in consumer.blueprint.order if isinstance(step, Control)), None)
        if control is None or self._is_installed:
            return
        node, self._is_installed = control.box.node, True
        node.handlers = {**node.handlers, ABOUT: self._about}
        required = {Capability.CANCEL_DELAYED, Capability.BROWSE_LETTERS_UNMARKED}
        if not required <= self._runtime.transport.capabilities or not self._runtime.enforces:
            return  # with Celery's own commands, a revoked task is remembered, and revoked when it is due
        ours = {
            "revoke": self._revoking,
            "terminate": self._revoking,
            "revoke_by_stamped_headers": self._revoking_stamped,
            "scheduled": self._listing,
            "dump_schedule": self._listing,
        }
        node.handlers |= {name: wrap(node.handlers[name]) for name, wrap in ours.items() if name in node.handlers}

    def _about(self, _: Any) -> dict[str, Any]:
        """The answer for `redelivery doctor` and the operator's page."""
        facts = {"version": version("redelivery"), "mode": self._runtime.settings.mode, "now_ms": int(time.time() * 1000)}
        token = self._runtime.owner.token if self._runtime.holds_messages else ""
        running = sorted(_running(), key=lambda each: -each["ms"])
        return {**facts, "owner": token, "runs": len(running), "running": running[:MAX_RUNNING]}

    def _revoking(self, command: Command) -> Command:
        @functools.wraps(command)
        def revoke(state: Any, *args: Any, task_id: Any = None, **options: Any) -> Any:
            answer = command(state, *args, task_id=task_id, **options)
            ids = maybe_list(task_id) or []
            self._cancel(each for ident in ids for each in self._store.of_task(str(ident)))
            return answer

        return revoke

    def _revoking_stamped(self, command: Command) -> Command:
        @functools.wraps(command)
        def revoke_by_stamped_headers(state: Any, *args: Any, headers: Any = None, **options: Any) -> Any:
            answer = command(state, *args, headers=headers, **options)
            stamps = dict(each.split("=")[:2] for each in headers) if isinstance(headers, list) else headers
            self._cancel(each for each in self._waiting(MAX_SEARCHED) if _is_stamped(each.contents.headers, stamps))
            return answer

        return revoke_by_stamped_headers

    def _listing(self, command: Command) -> Command:
        @functools.wraps(command)
        def scheduled(state: Any, **options: Any) -> list[dict[str, Any]]:
            shown: list[dict[str, Any]] = list(command(state, **options))
            try:
                waiting = self._waiting(MAX_LISTED)
            except REDIS_ERRORS as exc:
                log.warning("delayed.not_seen", error=str(exc))
                return shown
            return shown + [self._shown(each, request) for each in waiting if (request := self._request(each)) is not None]

        return scheduled

    def _cancel(self, found: Iterable[Delayed]) -> None:
        """Take these messages out of the store, and report their tasks as revoked."""
        try:
            for each in found:
                self._cancel_one(each)
        except REDIS_ERRORS as exc:
            log.warning("delayed.not_cancelled", error=str(exc), why="revoked when due, by a worker that remembers it")

    def _cancel_one(self, delayed: Delayed) -> None:
        request = self._request(delayed)
        if request is None:
            return
        contents = delayed.contents
        event = contents.event(
            Outcome.REVOKED,
            delayed.queue,
            attempt=contents.envelope.attempt + 1,
            delivery=contents.envelope.delivery + 1,
            worker=self._runtime.worker,
        )
        if self._store.cancel(delayed.list_name, delayed.ident, event) is not Answer.DONE:
            return
        log.info("delayed.cancelled", task_id=contents.task_id, queue=delayed.queue, why="revoked")
        try:
            request.send_event("task-revoked", terminated=False, signum=None, expired=False)
        except Exception:  # noqa: BLE001 - the events' broker may fail
            log.exception("hook.failed", task_id=contents.task_id, hook="revoked")
        Caller.of(request).revoked()

    @property
    def _store(self) -> DelayStore:
        return broker_of(self._runtime.transport).delayed

    def _waiting(self, most: int) -> list[Delayed]:
        """The `most` delayed messages of this worker's queues that are due first."""
        consumer = self._consumer.task_consumer
        queues = [] if consumer is None else [queue.name for queue in consumer.queues]
        found: Iterator[Delayed] = (each for queue in queues for each in self._store.soonest(most, queue))
        return sorted(found, key=lambda each: each.due_ms)[:most]

    def _request(self, delayed: Delayed) -> Request | None:
        """Celery's request for a message; None if it cannot be read, or only other workers have its task."""
        contents, consumer = delayed.contents, self._consumer
        task = consumer.app.tasks.get(contents.task)
        if task is None or not contents.is_task:
            return None
        try:
            message = Message(contents.message, channel=consumer.connection.default_channel, accept=consumer.task_consumer.accept)
            return Request(message, app=consumer.app, hostname=consumer.hostname, eventer=consumer.event_dispatcher, task=task)
        except Exception as exc:  # noqa: BLE001 - any client may have written the message
            log.debug("delayed.unreadable", task_id=contents.task_id, error=error_text(exc))
            return None

    def _shown(self, delayed: Delayed, request: Request) -> dict[str, Any]:
        eta, info = datetime.fromtimestamp(delayed.due_ms / 1000, UTC).isoformat(), request.info()
        if self._runtime.settings.redact:
            info.update(args=HIDDEN, kwargs=HIDDEN)
        return {"eta": eta, "priority": ETA_PRIORITY, "request": info}


def _running() -> Iterator[dict[str, Any]]:
    """The tasks that the pool runs, each with its milliseconds so far."""
    now = time.monotonic()
    for request in list(state.active_requests):
        accepted, held = getattr(request, "accepted", None), getattr(request.message, "held", None)
        if accepted is not None:
            queue = "" if held is None else held.queue
            yield {"id": str(request.id), "task": str(request.name), "queue": queue, "ms": round((now - accepted) * 1000)}


def _is_stamped(headers: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a message has one of these stamps, compared as in Celery."""
    stamps, names = headers.get("stamps"), headers.get("stamped_headers")
    if not isinstance(stamps, dict) or not isinstance(names, list):
        return False
    carried = {name: maybe_list(stamps.get(name)) or [] for name in names}
    return any(stamp in (maybe_list(values) or []) for name, values in wanted.items() for stamp in carried.get(name, ()))
