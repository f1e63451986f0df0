"""Celery's request for a task, as a thin adapter that passes Celery's calls to one delivery.

A message that this worker holds has a `HeldDelivery` (`LetterDelivery` if it is a dead letter). Celery alone ends all others, which
`ObservedDelivery` records. Celery's generated request class overrides `execute_using_pool` and `on_success`, so a success is
recorded in `acknowledge`, or by a wrapper of `on_success`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.worker import state
from celery.worker.request import Request

from ..child.attempt import DELIVERY
from ..child.result import Carried
from ..messages.envelope import ANNOUNCED, COPIES, DELIVERED, EXPIRATION, HEADER, RELEASED, Envelope
from ..messages.ttl import PUBLISHED
from .deliveries.held_delivery import HeldDelivery
from .deliveries.observer import ObservedDelivery, PlainDelivery
from .deliveries.run_time import count_from_due
from .own_strategy import strategy_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from billiard.einfo import ExceptionInfo

    from ..ports import TaskResult
    from ..runtime import Runtime

#: Headers that are not the task's own: Celery's (`celery.app.task.Context`), and redelivery's.
CELERYS = {*vars(Context), "lang", "task", "argsrepr", "kwargsrepr", "compression"}
NO_CUSTOM_HEADERS = CELERYS | {HEADER, ANNOUNCED, PUBLISHED, EXPIRATION, DELIVERED, COPIES, RELEASED, "redelivered"}
PLAIN = PlainDelivery()


class Egress(Request):
    """Celery's request, and its delivery."""

    delivery: PlainDelivery | ObservedDelivery | HeldDelivery = PLAIN
    #: Whether Celery's own strategy handed it to the pool, which then reports its end here.
    is_handed_over = False
    #: When the pool's child took the task (monotonic), and how many seconds it then ran; None if unknown.
    accepted: float | None = None
    ran: float | None = None
    #: The task's result, if the worker must store it.
    result: TaskResult | None = None
    _future: Future[Any] | None = None
    _apply_result: Any

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        runtime: Runtime | None = getattr(self._app, "redelivery", None)
        if runtime is None:
            return
        held = getattr(message, "held", None)
        if held is None or not runtime.policies.is_enabled(self._type, held.queue):
            self.delivery = ObservedDelivery(self, message, runtime)
            self._watch_success()
            return
        held.request, kind, envelope = self, HeldDelivery, Envelope.of(message.headers)
        if envelope.is_letter:
            from .deliveries.letter_handler import LetterDelivery as kind  # noqa: PLC0415, N813 - few apps have a handler
        self.delivery = delivery = kind(self, message, runtime, held, envelope)
        self._request_dict[DELIVERY] = tuple(delivery.facts)
        # Without redelivery's headers, which must not be copied to messages that the task publishes.
        shown = {key: value for key, value in message.headers.items() if key not in NO_CUSTOM_HEADERS}
        count_from_due(shown, message.headers, envelope, runtime.now_ms)
        self._request_dict["headers"] = shown
        if not self._task.acks_late:
            self._watch_success()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep a report's run time and result in the `on_success` that Celery's generated class has."""
        super().__init_subclass__(**kwargs)
        generated = vars(cls).get("on_success")
        if generated is None:
            return

        @functools.wraps(generated)
        def on_success(self: Egress, failed__retval__runtime: tuple[Any, ...], **kwargs: Any) -> Any:
            self._keep_report(failed__retval__runtime)
            return generated(self, failed__retval__runtime, **kwargs)

        cls.on_success = on_success  # type: ignore[method-assign]

    def _keep_report(self, report: tuple[Any, ...]) -> None:
        _, returned, self.ran = report
        if isinstance(returned, Carried):
            self.result = returned.result

    def _watch_success(self) -> None:
        """Report a success to the delivery, which Celery does not do."""
        on_success = self.on_success

        def watched(result: tuple[bool, Any, float], **kwargs: Any) -> None:
            self.__dict__.pop("on_success", None)  # only the garbage collector would free a request that refers to itself
            on_success(result, **kwargs)
            if not result[0]:
                self.delivery.succeeded(self)

        self.__dict__["on_success"] = watched

    @property
    def _context(self) -> Context:
        """As Celery's; if the body cannot be read, made from the headers, so that the end can be reported."""
        try:
            context: Context = super()._context
        except Exception:  # noqa: BLE001 - any client may have written the body
            context = Context(self._request_dict)
        return context

    @property
    def has_events(self) -> bool:
        """Whether this task's events are sent. Celery's dispatcher may be on only for the heartbeat."""
        eventer = self._eventer
        if eventer is None or not eventer.enabled or not self._task.send_events:
            return False
        return not eventer.groups or "task" in eventer.groups

    @property
    def was_ended(self) -> bool:
        """Whether the worker itself has cancelled or revoked the task."""
        return bool(self._already_cancelled or self._already_revoked)

    # where its task is

    def is_running(self) -> bool:
        """Whether the task runs here, or can no longer be stopped from running."""
        if self in state.active_requests:
            return True
        return self._future is not None and not self._future.cancel()

    def was_handed_over(self) -> bool:
        """Whether the pool got the task, which may then have begun."""
        if self.is_with_strategy:
            return True
        return (self._apply_result is not None or self.time_start is not None) and self._future is None

    @property
    def is_with_strategy(self) -> bool:
        """Whether the task's own `Strategy` has the task, and may run it at any time."""
        return not self.is_handed_over and strategy_of(self._task) is not None

    def is_one_of(self, jobs: set[Any]) -> bool:
        """Whether its job in the pool is one of these; Celery keeps a weak reference to it."""
        return self._apply_result is not None and self._apply_result() in jobs

    def take_back(self) -> None:
        """Note that the pool did not begin the task: its message goes back uncounted."""
        self._apply_result = None

    def keep_future(self, result: Any) -> None:
        """Keep the future of a pool of threads, which can cancel a task that has not begun. Celery's reference is weak."""
        self._future = getattr(result, "f", None)

    # Celery's calls

    def on_success(self, failed__retval__runtime: tuple[Any, ...], **kwargs: Any) -> Any:
        """As Celery's; a task's own `Strategy` may not use the generated class."""
        self._keep_report(failed__retval__runtime)
        return super().on_success(failed__retval__runtime, **kwargs)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """As Celery's; keeps the time."""
        self.accepted = time_accepted
        super().on_accepted(pid, time_accepted)

    def acknowledge(self) -> None:
        """Pass the call to `delivery`, like all methods below."""
        self.delivery.acknowledge(self)

    def reject(self, requeue: bool = False) -> None:  # noqa: D102
        self.delivery.reject(self, requeue)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:  # noqa: D102
        self.delivery.cancel(self, pool, signal, emit_retry)

    def on_retry(self, exc_info: ExceptionInfo) -> None:  # noqa: D102
        self.delivery.on_retry(self, exc_info)

    def on_failure(self, exc_info: ExceptionInfo, send_failed_event: bool = True, return_ok: bool = False) -> None:  # noqa: D102
        self.delivery.on_failure(self, exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: D102
        self.delivery.on_timeout(self, soft, timeout)

    def revoked(self) -> bool:  # noqa: D102
        return bool(self.delivery.revoked(self))

    def maybe_expire(self) -> bool:  # noqa: D102
        return bool(self.delivery.expired(self))

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self.delivery.announce_revoked(self, reason, terminated, signum, expired)


def request_class(base: type[Request]) -> type[Request]:
    """The request class to use for a task whose own request class is `base`."""
    if issubclass(base, Egress):
        return base
    if base is Request:
        return Egress
    # The application's own class comes first, so that its methods wrap these as they wrap Celery's.
    return type(f"Egress{base.__name__}", (base, Egress), {"__module__": __name__})
