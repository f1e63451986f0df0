"""The consumer bootstep, which wraps Celery's message handlers.

It starts receiving, and wraps every task and its request class. `admission` decides about a message before Celery sees it. A
message that is not a task, cannot be read, or names an unknown task dies, and its bytes are kept: Celery would drop it. After any
other error with a message, the message dies, and the worker goes on.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.exceptions import Ignore
from celery.utils.imports import symbol_by_name
from celery.worker import state
from celery.worker.request import Request
from kombu.exceptions import ContentDisallowed

from redelivery.display import refuse
from redelivery.errors import BrokerError, RedeliveryError

from ..child.report import replace_tracers
from ..child.task_defaults import apply_defaults
from ..child.task_wrapper import guard
from ..known import is_known
from ..logs import log
from ..messages.envelope import Envelope, Failed
from ..messages.events import Reason
from ..ports import ignore
from ..transitions.death import bury
from .admission import Arrivals
from .celery_lines import guard_celery_lines
from .deliveries.held_delivery import HeldDelivery
from .dispatch import hand_over
from .lifecycle import begin, connecting, end, give_back_last
from .own_strategy import own_strategies
from .pool_patches.begun import read_reports_first
from .pool_patches.children import correct_children
from .pool_patches.stop import keep_handlers_short, stop_of
from .request import Egress, request_class
from .startup.checks import announce, check_dead_letter_queues, check_policies
from .startup.contradictions import contradictions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery
    from celery.worker.consumer import Consumer

    from ..ports import Held
    from ..runtime import Runtime

#: What an operator does if the broker refuses a worker's command.
NEEDED = "rename none of its commands, and give its user a worker's rights (deploying.md, the least rights)"
#: A worker waits this many seconds if its last two connections failed within them.
PAUSE = 1.0


class Ingress(bootsteps.StartStopStep):
    """Installs redelivery in a worker's consumer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    label = "redelivery"

    def __init__(self, consumer: Consumer, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.runtime: Runtime = consumer.app.redelivery
        guard_celery_lines(consumer.channel_errors)
        self._hostname = consumer.hostname
        self._feed: Callable[[], None] = ignore
        self._strategies: dict[str, str] = {}
        with _refusing():
            check_policies(self.runtime)
        if found := contradictions(self.runtime):
            refuse(*found)
        letter_handlers: dict[str, str] = {}
        if self.runtime.letter_handlers:
            from .deliveries.letter_handler import handlers_of  # noqa: PLC0415 - few apps have one

            with _refusing():
                letter_handlers = handlers_of(self.runtime)
        self._arrivals = Arrivals(self.runtime, letter_handlers)
        self.runtime.shares_process = "prefork" not in type(consumer.pool).__module__
        self.runtime.is_ending = False
        self._stop = stop_of(consumer, self.runtime)
        self._prepare(consumer.app)  # before the pool starts its children
        consumer.update_strategies = self._replacing_tracers(consumer)
        signals.worker_process_init.connect(self._replace_tracers, weak=False, dispatch_uid=f"redelivery:{id(consumer.app)}")
        consumer.add_task_queue = self._acknowledging(consumer.add_task_queue)
        consumer.create_task_handler = self._in_front_of(consumer.create_task_handler)
        consumer.on_connection_error_after_connected = _pausing(consumer.on_connection_error_after_connected)
        consumer.on_task_request = self._starting(consumer.on_task_request, consumer.timer)
        consumer.on_decode_error = self._dying(consumer.on_decode_error, Reason.UNDECODABLE, at=0)
        consumer.on_unknown_message = self._dying(consumer.on_unknown_message, Reason.INVALID, at=1)
        consumer.on_unknown_task = self._dying(consumer.on_unknown_task, Reason.UNKNOWN_TASK, at=1)
        consumer.on_invalid_task = self._dying(consumer.on_invalid_task, Reason.INVALID, at=1)

    def _prepare(self, app: Celery) -> None:
        """Wrap the app's tasks and their request classes; a second call wraps only new tasks."""
        for task in app.tasks.values():
            if self.runtime.enforces:
                apply_defaults(task)
                guard(task, self.runtime)
            task.Request = request_class(symbol_by_name(task.Request) if task.Request is not None else Request)
        self._strategies = own_strategies(app)

    def _replacing_tracers(self, consumer: Consumer) -> Callable[[], None]:
        """Celery calls `update_strategies` again if a module with further tasks was loaded (`pool_restart`)."""
        update = consumer.update_strategies

        def update_strategies() -> None:
            self._prepare(consumer.app)
            update()
            replace_tracers(consumer.app, self.runtime, consumer.hostname)

        return update_strategies

    def _replace_tracers(self, **_: Any) -> None:
        replace_tracers(self.runtime.app, self.runtime, str(self._hostname))

    def start(self, consumer: Consumer) -> None:
        """Begin when the consumer has connected, also again. If the broker refuses a command, the worker ends with one line."""
        with _refusing():
            try:
                self._start(consumer)
            except consumer.connection_errors:
                raise  # Celery's consumer connects again
            except Exception as exc:
                transport, retries = self.runtime.transport, consumer.app.conf.broker_channel_error_retry
                if retries or transport.is_transient(exc) or not transport.is_driver_error(exc):
                    raise
                msg = f"the broker refuses what a worker needs: {exc}; {NEEDED}"
                raise BrokerError(msg) from exc

    def _start(self, consumer: Consumer) -> None:
        is_first = not self.runtime.worker
        begin(self.runtime, consumer.hostname)
        if self.runtime.enforces and (session := self.runtime.transport.session) is not None:
            with connecting():
                session.attach(consumer)
            give_back_last(self.runtime)
        self._use_loop(consumer)
        path = self.runtime.transport.fast_path if self.runtime.enforces and self.runtime.settings.fast_results else None
        self.runtime.stores_results = path is not None and path.stores_results(consumer.app)
        if self._stop is not None:
            self._stop.watch(consumer)
        if self.runtime.enforces:
            keep_handlers_short(consumer, self.runtime)
        is_ours = self._receive(consumer)
        if is_first:
            check_dead_letter_queues(self.runtime)
            announce(self.runtime, consumer, is_ours=is_ours)

    def _receive(self, consumer: Consumer) -> bool:
        """Begin to receive, unless kombu must do it; return whether redelivery receives."""
        runtime = self.runtime
        if not (runtime.enforces and runtime.settings.fast_receive):
            return False
        path = runtime.transport.fast_path
        return path is not None and path.receive(consumer, runtime.owner, self._limit(consumer), self._arrivals.on_garbage)

    def _use_loop(self, consumer: Consumer) -> None:
        """Read the children's reports and the broker's answers in the event loop, if there is one and it runs no tasks."""
        runtime, hub = self.runtime, consumer.hub
        if hub is None or runtime.shares_process or not runtime.enforces:
            return
        if is_known("celery", "billiard"):
            read_reports_first(consumer.pool, hub, runtime.owner, self._stop)
            self._feed = correct_children(consumer.pool, hub)
        path = runtime.transport.fast_path
        runtime.outbox.under_way = None if path is None else path.pipeline(hub, runtime.outbox.carry_out)

    def stop(self, consumer: Consumer) -> None:  # noqa: ARG002 - Celery's signature
        """Wait for answers when the consumer has stopped or lost its connection. Tasks still run: nothing is given back yet."""
        self.runtime.outbox.settle()

    def shutdown(self, consumer: Consumer) -> None:  # noqa: ARG002 - Celery's signature
        """Give back what has not run, when the pool has stopped."""
        end(self.runtime)
        if self._stop is not None:
            self._stop.close()

    # in front of Celery's own methods

    def _acknowledging(self, add: Callable[..., None]) -> Callable[..., None]:
        """Ignore the `no_ack` of a queue that remote control adds. At a start such a queue is refused."""

        def add_task_queue(queue: str, *args: Any, **options: Any) -> None:
            if self.runtime.enforces and self.runtime.policies.is_enabled("", queue):
                options.pop("no_ack", None)
                known = dict(self.runtime.app.amqp.queues).get(queue)
                if known is not None and (known.exchange is None or known.exchange.type != "fanout"):
                    known.no_ack = False
            add(queue, *args, **options)

        return add_task_queue

    def _in_front_of(self, create: Callable[[], Any]) -> Callable[[], Any]:
        def create_task_handler(*args: Any, **kwargs: Any) -> Any:
            handle = create(*args, **kwargs)

            def on_task_received(message: Any) -> Any:
                held = self._arrivals.held(message)
                if held is None or not self._arrivals.is_enabled(message, held):
                    self._arrivals.leave_alone(held)
                    self._arrivals.observe(message)
                    return handle(message)
                if self.runtime.is_ending:
                    return None  # no more tasks begin: the message is given back with the others that have not run
                try:
                    if self._arrivals.has_left(message, held) or (self._strategies and not self._may_begin(message, held)):
                        return None
                    return handle(message)
                except Exception as exc:
                    if self.runtime.transport.is_driver_error(exc):  # not kombu's connection errors: they include KeyError
                        raise
                    if state.should_terminate:  # a signal's handler raised it meanwhile
                        log.exception("message.interrupted", tag=held.tag, queue=held.queue)
                        return None
                    log.exception("message.invalid", tag=held.tag, queue=held.queue)
                    request = held.request
                    if not (held.has_left or (request is not None and (request.is_running() or request.was_handed_over()))):
                        bury(self.runtime, held, Reason.INVALID, self.runtime.failed_of(exc), is_reported=False)
                    return None

            return on_task_received

        return create_task_handler

    def _may_begin(self, message: Any, held: Held) -> bool:
        """Whether a task's own `Strategy` may get its message; record the start first, if that is needed."""
        name = message.headers.get("task")
        if name not in self._strategies:
            return True
        policy = self.runtime.policies.policy_for(held.queue, name)
        if not Envelope.of(message.headers).suspect and policy.persist_delivery_count != "always":
            return True
        try:
            self.runtime.start(held.tag)
        except Ignore:  # another worker has the message now
            self.runtime.owner.drop(held.tag)
            return False
        return True

    def _starting(self, handle: Callable[[Any], Any], timer: Any) -> Callable[[Any], Any]:
        """Prepare a request when it goes to the pool (`dispatch`), not before its ETA."""

        def on_task_request(request: Any) -> Any:
            if not isinstance(request, Egress):
                return handle(request)
            delivery = request.delivery
            if isinstance(delivery, HeldDelivery):
                early = delivery.due - time.monotonic()  # gevent's timers count from when its loop last read the clock
                if early > 0:
                    return timer.call_after(early, on_task_request, (request,))
                if self.runtime.telemetry is not None:
                    self.runtime.telemetry.hand_over(request, delivery)
                hand_over(request, delivery, self.runtime)
            answer = handle(request)
            self._feed()
            return answer

        return on_task_request

    def _limit(self, consumer: Consumer) -> Callable[[], int]:
        """How many messages `worker_disable_prefetch` allows."""
        if not consumer.app.conf.worker_disable_prefetch:
            return lambda: 64

        def limit() -> int:
            processes = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
            return max(int(processes) - self._occupied(), 0)

        return limit

    def _occupied(self) -> int:
        """How many held messages occupy a place: those that neither leave nor wait for an ETA."""
        leaving = self.runtime.outbox.tags() if len(self.runtime.outbox) else set()
        requests = [held.request for tag, held in list(self.runtime.owner.held.items()) if tag not in leaving]
        lists = [state.reserved_requests, getattr(state, "scheduled_requests", ())]  # Celery 5.6 does not list scheduled ones
        return len(state.reserved_requests) + sum(1 for each in requests if each is None or not any(each in kind for kind in lists))

    # deaths

    def _dying(self, original: Callable[..., Any], reason: Reason, *, at: int) -> Callable[..., Any]:
        """Call Celery's own handler, which logs, stores and signals; then move the message to its dead-letter queue."""

        def dying(*args: Any) -> Any:
            message = args[at]
            held = self._arrivals.held(message)
            if held is None or not self._arrivals.is_enabled(message, held):
                self._arrivals.leave_alone(held)
                answer = original(*args)
                self._arrivals.note_end(message, reason)
                return answer
            cause = next((arg for arg in args if isinstance(arg, BaseException)), None)
            failed = (
                self.runtime.failed_of(cause) if cause is not None else Failed(type="redelivery.UnknownMessage", fingerprint=reason)
            )
            why = Reason.UNDECODABLE if isinstance(cause, ContentDisallowed) else reason
            message.ack = message.reject = message.ack_log_error = message.reject_log_error = ignore
            try:
                return original(*args)
            except Exception:  # noqa: BLE001 - any client's message
                log.exception("message.invalid", tag=held.tag, queue=held.queue)
                return None
            finally:
                bury(self.runtime, held, why, failed, is_reported=False)

        return dying


@contextmanager
def _refusing() -> Iterator[None]:
    """End the worker with one line, without a traceback, if its configuration is refused."""
    try:
        yield
    except RedeliveryError as exc:
        refuse(exc)


def _pausing(report: Callable[[Exception], object]) -> Callable[[Exception], None]:
    """Call `report`, and pause if the broker refuses each new connection: Celery would connect again at once."""
    last = -PAUSE

    def on_connection_error_after_connected(exc: Exception) -> None:
        nonlocal last
        report(exc)
        if time.monotonic() - last < PAUSE:
            time.sleep(PAUSE)
        last = time.monotonic()

    return on_connection_error_after_connected
