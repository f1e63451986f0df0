"""Ingress: what arrives, looked at before Celery does.

A consumer bootstep. It arms the receiving of the worker's task channel, wraps every task and its request class, and puts itself in
front of Celery's message handler:

- a message that is not due for a while moves to the delay store, so that no worker keeps it in memory;
- one that has been delivered too often is a death before it runs;
- one that is no task, or cannot be read, or names a task that nobody has, is a death with its bytes kept: Celery would drop it.

Whatever else goes wrong with one message is its own death, not its neighbours' and not the worker's.
"""

from __future__ import annotations

import base64
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.exceptions import Ignore, TaskRevokedError
from celery.utils.imports import symbol_by_name
from celery.worker import state
from celery.worker.request import Request
from redis.exceptions import RedisError

from redelivery.errors import EnvelopeError, RedeliveryError
from redelivery.middleware import decision
from redelivery.middleware.departure import about, burial, raw_id
from redelivery.middleware.egress import Egress, request_class
from redelivery.middleware.envelope import ANNOUNCED, HEADER, Envelope, Failed, deferred, eligible_of, opened, sealed
from redelivery.middleware.logs import log
from redelivery.middleware.outcomes import Outcome, Reason
from redelivery.middleware.startup import announce, check_dead_letter_queues, check_policies
from redelivery.middleware.task import failed_of, guard
from redelivery.middleware.transports.receiver import Receiver
from redelivery.middleware.transports.receiving import Receiving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery.worker.consumer import Consumer

    from redelivery.middleware.install import Redelivery
    from redelivery.middleware.transports.base import Held

__all__ = ["Ingress"]


class Ingress(bootsteps.StartStopStep):
    """The bootstep."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    label = "redelivery"

    def __init__(self, consumer: Consumer, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.install: Redelivery = consumer.app.redelivery
        with _refusing():
            check_policies(self.install)
        self.install.shares_process = "prefork" not in type(consumer.pool).__module__
        for task in consumer.app.tasks.values():
            if self.install.is_enabled(task.name):
                guard(task, self.install)
                task.Request = request_class(symbol_by_name(task.Request) if task.Request is not None else Request)
        consumer.create_task_handler = self._in_front_of(consumer.create_task_handler)
        consumer.on_task_request = self._starting(consumer.on_task_request)
        consumer.on_decode_error = self._dying(consumer.on_decode_error, Reason.UNDECODABLE, at=0)
        consumer.on_unknown_message = self._dying(consumer.on_unknown_message, Reason.INVALID, at=1)
        consumer.on_unknown_task = self._dying(consumer.on_unknown_task, Reason.UNKNOWN_TASK, at=1)
        consumer.on_invalid_task = self._dying(consumer.on_invalid_task, Reason.INVALID, at=1)

    def start(self, consumer: Consumer) -> None:
        """The consumer has connected, for the first time or again."""
        is_first = not self.install.worker
        self.install.begin(consumer.hostname)
        if is_first:
            with _refusing():
                check_dead_letter_queues(self.install)
            announce(self.install, consumer)
        channel = consumer.task_consumer.channel
        if isinstance(channel, Receiving) and self.install.settings.fast_receive:
            channel.arm(Receiver(self.install.owner, self._limit(consumer), self._on_garbage))

    def stop(self, consumer: Consumer) -> None:
        """The consumer has stopped, or lost its connection: nothing is given back yet, tasks are running."""

    def shutdown(self, consumer: Consumer) -> None:  # noqa: ARG002 - Celery's signature
        """The pool has stopped: give back what has not run."""
        self.install.end()

    # in front of Celery's handler

    def _in_front_of(self, create: Callable[[], Any]) -> Callable[[], Any]:
        def create_task_handler(*args: Any, **kwargs: Any) -> Any:
            handle = create(*args, **kwargs)

            def on_task_received(message: Any) -> Any:
                held: Held | None = getattr(message, "held", None)
                if held is None:
                    return handle(message)
                try:
                    if self._must_stop(message, held):
                        return None
                    return handle(message)
                except (RedisError, ConnectionError):  # not kombu's connection errors: they include KeyError
                    raise
                except Exception as exc:  # noqa: BLE001 - the message is anybody's
                    log.exception("message.invalid", tag=held.tag, queue=held.queue)
                    if held.request is None or not (held.request.is_running() or held.request.was_handed_over()):
                        self._die(held, Reason.INVALID, failed_of(exc))
                    return None

            return on_task_received

        return create_task_handler

    def _must_stop(self, message: Any, held: Held) -> bool:
        """Whether the message has left already: to the delay store, or to its dead-letter queue."""
        headers = message.headers
        if not isinstance(headers, dict):
            return False
        if not _is_sound(headers):
            failed = Failed(type="redelivery.InvalidHeaders", message="timelimit or retries is no number", fingerprint="headers")
            self._die(held, Reason.INVALID, failed)
            return True
        eta, envelope = headers.get("eta"), headers.get(HEADER)
        if envelope is None:
            self._note_arrival(headers, message.properties, held)
        if eta is None and envelope is None:
            return False
        known = Envelope.of(headers)
        if eta is not None and eta != known.served_eta and self._defer(held, eta):
            return True
        policy = self.install.policy_for(held.queue, str(headers.get("task")))
        if 0 <= policy.max_delivery_attempts <= known.attempt and known.attempt:
            failed = Failed(type="redelivery.Exhausted", message=f"{known.attempt} deliveries", fingerprint="exhausted")
            self._die(held, Reason.EXHAUSTED, failed)
            return True
        return False

    def _note_arrival(self, headers: dict[str, Any], properties: Any, held: Held) -> None:
        """Record what the books could not know otherwise: nobody recorded the publication, or some other client put it back."""
        delivery_info = properties.get("delivery_info") if isinstance(properties, dict) else None
        was_restored = isinstance(delivery_info, dict) and delivery_info.get("redelivered") is True
        is_announced = ANNOUNCED in headers
        reasons = [name for name, holds in (("unannounced", not is_announced), ("redelivered", was_restored)) if holds]
        for reason in reasons:
            event = about(headers, held, Outcome.RECEIVED, reason=reason, worker=self.install.worker)
            self.install.outbox.carry_out("", partial(self.install.transport.acknowledge, "", event), _nothing)

    def _defer(self, held: Held, eta: object) -> bool:
        due_ms = _milliseconds(eta, self.install.app)
        threshold_ms = self.install.settings.eta_threshold * 1000
        if due_ms is None or due_ms - held.seen_ms <= threshold_ms:
            return False
        raw = opened(held.raw)
        message = sealed(deferred(raw, held.queue, seen_ms=held.seen_ms))
        event = about(raw["headers"], held, Outcome.DEFERRED, worker=self.install.worker)
        self._carry_out(
            held,
            lambda: self.install.transport.defer(
                held.tag,
                held.list_name,
                message,
                task_id=event.task_id,
                event=event,
                due_ms=due_ms,
            ),
        )
        return True

    def _starting(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Where the pool has processes of its own, record the start of a touched message just before it is handed over."""

        def on_task_request(request: Any) -> Any:
            if not isinstance(request, Egress):
                return handle(request)
            if self.install.shares_process:
                request.keep_future()
            elif request.must_start:
                request.execute_using_pool = _started(request, request.execute_using_pool, self.install)
            return handle(request)

        return on_task_request

    def _limit(self, consumer: Consumer) -> Callable[[], int]:
        """How many messages `worker_disable_prefetch` allows."""
        if not consumer.app.conf.worker_disable_prefetch:
            return lambda: 64

        def limit() -> int:
            processes = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
            return max(int(processes) - len(state.reserved_requests), 0)

        return limit

    # deaths

    def _dying(self, original: Callable[..., Any], reason: Reason, *, at: int) -> Callable[..., Any]:
        """Celery's own handler still logs, stores and signals; the message then goes to its dead-letter queue, not away."""

        def dying(*args: Any) -> Any:
            message = args[at]
            held: Held | None = getattr(message, "held", None)
            if held is None:
                return original(*args)
            cause = next((arg for arg in args if isinstance(arg, BaseException)), None)
            failed = failed_of(cause) if cause is not None else Failed(type="redelivery.UnknownMessage", fingerprint=reason)
            message.ack = message.reject = message.ack_log_error = message.reject_log_error = _nothing
            try:
                return original(*args)
            except Exception:  # noqa: BLE001 - the message is anybody's
                log.exception("message.invalid", tag=held.tag, queue=held.queue)
                return None
            finally:
                self._die(held, reason, failed)

        return dying

    def _on_garbage(self, held: Held, exc: Exception) -> None:
        log.error("message.undecodable", tag=held.tag, queue=held.queue, error=str(exc))
        self._note_arrival({}, {}, held)
        self._die(held, Reason.UNDECODABLE, failed_of(exc))

    def _die(self, held: Held, reason: Reason, failed: Failed) -> None:
        """Move the message to its dead-letter queue: with a death record where it has an envelope, else in one of ours."""
        try:
            message = opened(held.raw)
        except EnvelopeError:
            message = wrapped(held.raw)
        headers = message["headers"]
        if not isinstance(headers.get("id"), str):
            headers["id"] = raw_id(held.raw)  # so that the letter can be found under the id that its event has
        policy = self.install.policy_for(held.queue, str(headers.get("task")))
        ending = decision.ending(policy, reason, eligible=eligible_of(headers))
        target = policy.dead_letter_queue_for(held.queue) if isinstance(ending, decision.DeadLetter) else None
        event = about(
            headers,
            held,
            Outcome.DISCARDED if target is None else Outcome.DEAD_LETTERED,
            reason=ending.reason,
            worker=self.install.worker,
            exception=failed.type,
            fingerprint=failed.fingerprint,
        )
        transition = burial(
            self.install.transport,
            held,
            message,
            event,
            target=target,
            reason=reason,
            now_ms=self.install.owner.now_ms(),
            attempt=None,
            failed=failed,
        )
        self._carry_out(held, transition)
        log.info("message.dead_lettered", task_id=event.task_id, queue=held.queue, dead_letter_queue=target, reason=reason)

    def _carry_out(self, held: Held, transition: Any) -> None:
        self.install.outbox.carry_out(held.tag, transition, lambda _: self.install.owner.drop(held.tag))


def wrapped(raw: bytes) -> dict[str, Any]:
    """An envelope for bytes that have none: they are its body, in base64, whatever they are."""
    return {
        "body": base64.b64encode(raw).decode(),
        "content-type": "application/octet-stream",
        "content-encoding": "binary",
        "headers": {"id": raw_id(raw)},
        "properties": {"body_encoding": "base64", "delivery_tag": "raw", "delivery_info": {}},
    }


def _milliseconds(eta: object, app: Any) -> int | None:
    """When an ETA header is due; None where it cannot be read: Celery then says what is wrong with it."""
    from celery.utils.time import maybe_iso8601, maybe_make_aware  # noqa: PLC0415 - only for messages with an ETA

    try:
        return round(float(maybe_make_aware(maybe_iso8601(eta), app.conf.timezone).timestamp()) * 1000)
    except (AttributeError, ValueError, TypeError, OverflowError):
        return None


def _is_sound(headers: dict[str, Any]) -> bool:
    """Whether what Celery hands to its pool and its timers unseen is what they can take."""
    limits, retries = headers.get("timelimit"), headers.get("retries")
    if limits is not None:
        if not isinstance(limits, (list, tuple)) or len(limits) != 2:  # noqa: PLR2004 - hard and soft
            return False
        if not all(each is None or isinstance(each, (int, float)) for each in limits):
            return False
    return retries is None or isinstance(retries, int)


def _started(request: Any, execute: Callable[..., Any], install: Redelivery) -> Callable[..., Any]:
    def execute_using_pool(pool: Any, **kwargs: Any) -> Any:
        tag = request.message.held.tag
        try:
            install.start(tag)
        except Ignore:
            # Celery gives the pool's place back for this exception, and for no other.
            state.task_ready(request)
            request.acknowledged = True
            install.owner.drop(tag)
            raise TaskRevokedError(request.id) from None
        return execute(pool, **kwargs)

    return execute_using_pool


@contextmanager
def _refusing() -> Iterator[None]:
    """What is refused ends the worker with one line, not with a traceback."""
    try:
        yield
    except RedeliveryError as exc:
        sys.stderr.write(f"redelivery: error: {exc}\n")
        raise SystemExit(1) from None


def _nothing(*_: Any, **__: Any) -> None:
    pass
