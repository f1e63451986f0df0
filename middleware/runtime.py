"""The runtime of one app: the objects that all other parts share."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from celery.exceptions import Ignore

from redelivery.lazily import cached_property

from .logs import log
from .messages.envelope import failed_of, text
from .messages.recording import MAX_TEXT
from .ports import NOT_KEPT, Answer, Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

    from redelivery.settings import RedeliverySettings

    from .messages.envelope import Failed
    from .messages.events import Event
    from .policy.resolver import Resolver
    from .ports import Carrier, Deliveries, Held, Transport


class Telemetry(Protocol):
    """Reports each step of a message to OpenTelemetry (`telemetry`), if the setting `opentelemetry` is on."""

    def publishing(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Celery's `send_task_message`, wrapped in a span whose context is sent with the message."""

    def hand_over(self, request: Any, delivery: Any) -> None:
        """Report that a held delivery's request goes to the pool."""

    def around(self, attempted: Callable[..., Any]) -> Callable[..., Any]:
        """`attempted`, which runs its first argument, an attempt, wrapped in a span."""

    def settling(self, held: Held | None, event: Event) -> Callable[[Answer], None]:
        """The function to call with the broker's answer about the move of `held`, or if it is None, about an event alone."""

    def operated(self, headers: Mapping[str, Any], queue: str, event: Event, began_ns: int) -> None:
        """Report a recorded move by an operator, of a message with these headers out of this queue; it began at `began_ns`."""

    def watch_depths(self, look: Callable[[], Any]) -> None:
        """Report the depths that `look` returns: names of gauges, values and labels."""


class Runtime:
    """The app, its policies, its broker, the messages that a worker holds, and the transitions without an answer yet.

    `connect` makes the transport when it is first used; `make_telemetry` makes the object that reports to OpenTelemetry.
    """

    def __init__(
        self,
        app: Celery,
        policies: Resolver,
        outbox: Carrier,
        connect: Callable[[Celery], Transport],
        make_telemetry: Callable[[Runtime], Telemetry],
    ) -> None:
        self.app = app
        self.policies = policies
        self.outbox = outbox
        self._connect, self._make_telemetry = connect, make_telemetry
        #: The node name of the worker; empty in a producer.
        self.worker = ""
        #: Whether the pool runs tasks in the worker's own process (threads, greenlets, `solo`).
        self.shares_process = False
        #: Whether a cold shutdown has begun.
        self.is_ending = False
        #: Whether the worker stores the result of a task with the acknowledgement of its message.
        self.stores_results = False
        #: The task that decides about the dead letters of each origin queue.
        self.letter_handlers: dict[str, str] = {}
        #: Called with each event that this worker has recorded, if it is set.
        self.listener: Callable[[Event], None] | None = None
        self._owner: Deliveries | None = None

    @property
    def settings(self) -> RedeliverySettings:
        """The settings. Raises `ConfigurationError`."""
        return self.policies.settings

    @property
    def enforces(self) -> bool:
        """Whether the settings are carried out; false in `mode="observe"`."""
        return self.policies.enforces

    @cached_property
    def release(self) -> str | None:
        """The release of the app, as events name it; None if it is not known."""
        return text(self.settings.known_release, MAX_TEXT) or None

    @cached_property
    def telemetry(self) -> Telemetry | None:
        """The object that reports to OpenTelemetry; None if the setting is off. Raises `ConfigurationError`."""
        return self._make_telemetry(self) if self.settings.opentelemetry else None

    def now_ms(self) -> int:
        """The broker's time, as far as a worker knows it; before it has connected, this machine's time."""
        return round(time.time() * 1000) if self._owner is None else self._owner.now_ms()

    @cached_property
    def transport(self) -> Transport:
        """The app's broker, with its own client. Raises `BrokerUnavailable`, `BrokerError`."""
        return self._connect(self.app)

    @property
    def has_leases(self) -> bool:
        """Whether this broker's messages are held under leases, and not by a connection."""
        return Capability.LEASES in self.transport.capabilities

    @property
    def owner(self) -> Deliveries:
        """The messages that this worker holds. Raises `RuntimeError` outside a worker."""
        if self._owner is None:
            msg = "there is no owner outside a worker"
            raise RuntimeError(msg)
        return self._owner

    @property
    def holds_messages(self) -> bool:
        """Whether this process is a worker that has connected."""
        return self._owner is not None

    def hold(self, owner: Deliveries | None) -> None:
        """Set the object that has the messages this worker holds; None if it holds none any more."""
        self._owner = owner

    def answer_callback(self, held: Held | None, event: Event | None) -> Callable[[Answer], None] | None:
        """The function to call with the broker's answer when a message leaves and this event is recorded.

        None if there is no event, or nothing listens.
        """
        listener, telemetry = self.listener, self.telemetry
        if event is None or (listener is None and telemetry is None):
            return None
        end_span = None if telemetry is None else telemetry.settling(held, event)
        if listener is None:
            return end_span

        def answered(answer: Answer) -> None:
            if answer in {Answer.DONE, Answer.ALREADY}:
                listener(event)
            if end_span is not None:
                end_span(answer)

        return answered

    def watch_publications(self, amqp: Any) -> None:
        """Report this app's publications to OpenTelemetry if it is on. The first publication reads the setting."""
        make = amqp._create_task_sender  # noqa: SLF001 - Celery calls it at the first publication
        if getattr(make, "is_watched", False):
            return

        @functools.wraps(make)
        def _create_task_sender() -> Any:
            send = make()
            return send if self.telemetry is None else self.telemetry.publishing(send)

        _create_task_sender.is_watched = True  # type: ignore[attr-defined]
        amqp._create_task_sender = _create_task_sender  # noqa: SLF001 - see above
        made = vars(amqp).get("send_task_message")
        if getattr(made, "__module__", "") == type(amqp).__module__:  # made before `Redelivery(app)`
            del amqp.send_task_message

    def make_room(self, tag: str) -> None:
        """Give a held message's place in the prefetch window back."""
        held = None if self._owner is None else self._owner.held.get(tag)
        if held is not None:
            held.make_room()

    def start(self, tag: str) -> None:
        """Record that a message is about to run. Raises `celery.exceptions.Ignore` if it is no longer kept for this worker."""
        if self.transport.start(tag) is Answer.REFUSED:
            log.warning("start.refused", tag=tag, why=NOT_KEPT)
            raise Ignore(NOT_KEPT)

    def failed_of(self, exc: BaseException, *, with_traceback: bool = True) -> Failed:
        """An exception as a failure, with the texts that messages store."""
        return self.stored(failed_of(exc, with_traceback=with_traceback and self.settings.store_failure_texts))

    def stored(self, failed: Failed) -> Failed:
        """The failure as messages store it: without texts if `store_failure_texts` is false."""
        return failed if self.settings.store_failure_texts else replace(failed, message="", traceback="")
