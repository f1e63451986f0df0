"""The runtime of one app: what everything inside knows. `install` puts it together."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from celery.exceptions import Ignore

from .logs import log
from .messages.envelope import failed_of, text
from .messages.recording import MAX_TEXT
from .ports import Answer, Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

    from redelivery.settings import RedeliverySettings

    from .messages.envelope import Failed
    from .messages.events import Event
    from .policy.resolver import Resolver
    from .ports import Carrier, Deliveries, Held, Transport


class Telemetry(Protocol):
    """Who tells OpenTelemetry of each step of a message (`telemetry`), where the setting `opentelemetry` is on."""

    def publishing(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Celery's `send_task_message`, within a span that goes along with the message."""

    def hand_over(self, request: Any, delivery: Any) -> None:
        """A held delivery's request is about to go to the pool."""

    def around(self, attempted: Callable[..., Any]) -> Callable[..., Any]:
        """The function that runs an attempt, its first argument, within a span."""

    def settling(self, held: Held | None, event: Event) -> Callable[[Answer], None]:
        """A message is about to leave, or (without one) an event is to be recorded: what is told of the broker's answer."""

    def operated(self, headers: Mapping[str, Any], queue: str, event: Event, began_ns: int) -> None:
        """An operator has had a message with these headers moved, which lay in this queue, since `began_ns`; that is recorded."""

    def watch_depths(self, look: Callable[[], Any]) -> None:
        """Tell how much waits where, whenever `look` finds something: names of gauges, values and labels."""


class Runtime:
    """The app, its policies, its broker, what a worker holds, and what the broker has not answered yet.

    `connect` opens the transitions of the app's broker when they are first asked for, and `tell` makes who tells OpenTelemetry.
    """

    def __init__(
        self,
        app: Celery,
        policies: Resolver,
        outbox: Carrier,
        connect: Callable[[Celery], Transport],
        tell: Callable[[Runtime], Telemetry],
    ) -> None:
        self.app = app
        self.policies = policies
        self.outbox = outbox
        self._connect, self._tell = connect, tell
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
        #: Who is told of each event that this worker has recorded, if anybody is.
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

    @functools.cached_property
    def release(self) -> str | None:
        """The release of the app, as events name it; None where nobody says."""
        return text(self.settings.known_release, MAX_TEXT) or None

    @functools.cached_property
    def telemetry(self) -> Telemetry | None:
        """Who tells OpenTelemetry, if anybody does. Raises `ConfigurationError`."""
        return self._tell(self) if self.settings.opentelemetry else None

    def now_ms(self) -> int:
        """What a worker knows of the broker's clock; of this machine's, before it has connected."""
        return round(time.time() * 1000) if self._owner is None else self._owner.now_ms()

    @functools.cached_property
    def transport(self) -> Transport:
        """The transitions, on a client of their own; `capabilities` says what this broker lacks.

        Raises `BrokerUnavailable`, `BrokerError`.
        """
        return self._connect(self.app)

    @property
    def has_leases(self) -> bool:
        """Whether this broker's messages are held under leases, and not by the broker itself."""
        return Capability.LEASES in self.transport.capabilities

    @property
    def owner(self) -> Deliveries:
        """What this worker holds. Raises `RuntimeError` outside a worker."""
        if self._owner is None:
            msg = "there is no owner outside a worker"
            raise RuntimeError(msg)
        return self._owner

    @property
    def holds_messages(self) -> bool:
        """Whether this process is a worker that has connected."""
        return self._owner is not None

    def hold(self, owner: Deliveries | None) -> None:
        """From here on this is what the worker holds; None: it holds nothing any more."""
        self._owner = owner

    def telling(self, held: Held | None, event: Event | None) -> Callable[[Answer], None] | None:
        """A message is about to leave, and this event to be recorded: what is to be called with the answer, if anybody listens.

        Without an event nothing is recorded, and nobody is told.
        """
        listener, telemetry = self.listener, self.telemetry
        if event is None or (listener is None and telemetry is None):
            return None
        told = None if telemetry is None else telemetry.settling(held, event)
        if listener is None:
            return told

        def heard(answer: Answer) -> None:
            if answer in {Answer.DONE, Answer.ALREADY}:
                listener(event)
            if told is not None:
                told(answer)

        return heard

    def watch_publications(self, amqp: Any) -> None:
        """Have this app's publications told of, where they are to be; decided at the first of them, when the settings are read."""
        make = amqp._create_task_sender  # noqa: SLF001 - what Celery publishes with is made of the settings, when it is needed
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
        """Give a message's place in the prefetch window back, where it is held here."""
        held = None if self._owner is None else self._owner.held.get(tag)
        if held is not None:
            held.make_room()

    def start(self, tag: str) -> None:
        """Record that a message is about to run. Raises `celery.exceptions.Ignore` where it was given to another worker."""
        if self.transport.start(tag) is Answer.REFUSED:
            log.warning("start.refused", tag=tag, why="the message was given to another worker")
            msg = "the message was given to another worker"
            raise Ignore(msg)

    def failed_of(self, exc: BaseException, *, with_traceback: bool = True) -> Failed:
        """What an exception says, as far as messages store it."""
        return self.stored(failed_of(exc, with_traceback=with_traceback and self.settings.store_failure_texts))

    def stored(self, failed: Failed) -> Failed:
        """What messages store of a failure: with `store_failure_texts = false`, its type and fingerprint."""
        return failed if self.settings.store_failure_texts else replace(failed, message="", traceback="")
