"""The transitions on kombu's other transports (memory, filesystem, SQS, …): publish, record, then acknowledge.

They use only kombu's own interface, in the calling thread, so that they work on each of its virtual transports. A delay is an ETA
that a worker waits for; an event is a log line. Limits: see `capabilities`. `docs/guarantees.md` says for each of kombu's
transports what happens to a delivery if its worker is killed.
"""

from __future__ import annotations

import base64
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError
from kombu.transport import virtual
from kombu.utils.json import loads

from redelivery.errors import BrokerError, BrokerUnavailable
from redelivery.lazily import cached_property

from ...logs import log
from ...messages.events import Numbering
from ...messages.steps import iso, opened, sealed, unserved
from ...ports import Answer, Capability, Names
from ..broker_url import unanswered
from ..deliveries import WithoutLeases
from .deliveries import GenericClaim

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery import Celery
    from celery.worker.consumer import Consumer

    from ...messages.events import Event
    from ...policy.resolver import Pace
    from ...ports import Held, Session, TaskResult

#: Properties that the publishing channel writes itself.
OF_THE_CHANNEL = ("body_encoding", "delivery_tag", "delivery_info", "priority")


class QueueNames(Names):
    """The names on these brokers."""


class GenericTransport(WithoutLeases):
    """The transitions; safe to call from any thread."""

    redeliveries: None = None

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.keys = QueueNames()
        self.claim: GenericClaim | None = None
        self._numbers = Numbering()
        self._lock = threading.RLock()
        self._connection: Any = None
        self._channel: Any = None
        self._declared: set[str] = set()

    @classmethod
    def of(cls, app: Celery) -> GenericTransport:
        """The transitions on the broker of this app. Raises `BrokerUnavailable`."""
        transport = cls(app)
        with transport._lock:
            transport._connected()
        return transport

    @cached_property
    def capabilities(self) -> frozenset[Capability]:
        return capabilities_of(self.app.connection_for_write().get_transport_cls().Channel)

    @property
    def session(self) -> Session:
        return self

    def claim_for(self, worker: str) -> GenericClaim:
        self.claim = GenericClaim(self, worker)
        return self.claim

    def attach(self, consumer: Consumer) -> None:
        assert self.claim is not None  # noqa: S101 - the caller has begun it
        self.claim.attach(consumer)

    def has_queue(self, name: str) -> bool:
        """Raises `BrokerError`, because on these brokers a look would create the queue."""
        msg = f"this broker cannot tell whether queue {name!r} exists: leave auto_create_dead_letter_resources on"
        raise BrokerError(msg)

    def warn(self, queues: Sequence[str], letters: Iterable[str], management_url: str | None) -> None:  # noqa: ARG002 - the port's
        name = self.app.connection_for_write().transport_cls
        log.warning("broker.limits", transport=name, limits="; ".join(limits(self)))

    def acknowledge(self, tag: str, event: Event | None, result: TaskResult | None = None) -> Answer:  # noqa: ARG002 - no `FastPath`
        return self._carry(tag, event)

    def defer(
        self,
        tag: str,
        list_name: str,
        message: bytes,
        *,
        task_id: str,  # noqa: ARG002 - there is no lookup by task here
        event: Event | None,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        first: bool = False,  # noqa: ARG002 - nothing can be put at a queue's head
        pace: Pace | None = None,  # noqa: ARG002 - a retry budget is refused at start
    ) -> Answer:
        """Publish the message to its queue again; a worker then holds it until its ETA."""
        now_ms = self.now_ms()
        wait_ms = (due_ms - now_ms if due_ms is not None else delay_ms) or 0
        return self._carry(tag, event, list_name, held_until(message, now_ms + wait_ms if wait_ms > 0 else None))

    def dead_letter(
        self,
        tag: str,
        message: bytes,
        *,
        dead_letter_queue: str,
        queue: str,  # noqa: ARG002 - queues have no types here
        event: Event | None,
        must_exist: bool = False,  # noqa: ARG002 - refused at start: see `has_queue`
    ) -> Answer:
        return self._carry(tag, event, dead_letter_queue, message)

    def start(self, tag: str) -> Answer:
        """Whether this worker may still run the message; no start is recorded."""
        return Answer.DONE if self.claim is None or self.claim.holds(tag) else Answer.REFUSED

    def release(self, held: Sequence[Held]) -> int:
        """Put messages that did not run back into their queues, unmarked, behind all others; return how many went back."""
        count = 0
        for each in held:
            try:
                count += self._carry(each.tag, None, each.queue, each.raw) is Answer.DONE
            except Exception as exc:  # noqa: BLE001 - the others still go back
                log.error(
                    "release.refused", error=f"{type(exc).__name__}: {exc}", why="kombu or the broker puts it back, if it can"
                )
        return count

    def drain(self, seconds: float) -> int:  # noqa: ARG002 - each call carries its transition out before it returns
        return 0

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _carry(self, tag: str, event: Event | None, queue: str = "", message: bytes | None = None) -> Answer:
        """Publish, record, acknowledge. Raises `ConnectionError`, or what the channel raises; then nothing is acknowledged."""
        claim = self.claim
        if claim is not None and not claim.holds(tag):
            return Answer.REFUSED  # the channel is gone, and kombu or the broker has put the message back
        if message is not None:
            self._publish(queue, message)
        if event is not None:
            self._log_event(event)
        if claim is not None and tag:
            claim.settle(tag)
        return Answer.DONE

    def _log_event(self, event: Event) -> None:
        """Log the event: its fields by name, without the empty ones."""
        recorded = replace(event, event_id=self._numbers.next_id(), at_ms=self.now_ms(), clock="worker")
        log.info("outcome.recorded", **{name: value for name, value in recorded.to_dict().items() if value not in {"", None}})

    def _publish(self, queue: str, message: bytes) -> None:
        envelope: dict[str, Any] = loads(message)  # kombu's `loads` keeps the types of values
        properties = envelope["properties"]
        body = envelope.get("body") or ""
        kept = {name: value for name, value in properties.items() if name not in OF_THE_CHANNEL}
        redelivered = (properties.get("delivery_info") or {}).get("redelivered")
        kept["delivery_info"] = {"redelivered": True} if redelivered else {}
        with self._lock:
            try:
                channel = self._connected()
                if queue not in self._declared:
                    channel.queue_declare(queue=queue, durable=True, auto_delete=False)
                    self._declared.add(queue)
                made = channel.prepare_message(
                    base64.b64decode(body) if properties.get("body_encoding") == "base64" else body,
                    priority=properties.get("priority"),
                    content_type=envelope.get("content-type"),
                    content_encoding=envelope.get("content-encoding"),
                    headers=envelope["headers"],
                    properties=kept,
                )
                channel.basic_publish(made, exchange="", routing_key=queue)
            except Exception as exc:
                is_away = self._is_away(exc)
                self._disconnect()
                if is_away:
                    raise ConnectionError(str(exc)) from exc  # at this error, the outbox makes the other messages wait
                raise

    def _connected(self) -> Any:
        """The publishing channel. Raises `BrokerUnavailable` if nothing answers."""
        if self._channel is None:
            connection = self.app.connection_for_write()
            try:
                connection.connect()
                self._channel = connection.channel()
            except (OperationalError, OSError, *connection.connection_errors) as exc:
                raise unanswered(connection.as_uri(), exc) from exc
            self._connection = connection
        return self._channel

    def _is_away(self, exc: Exception) -> bool:
        """Whether the broker caused the error, and not the message."""
        if isinstance(exc, BrokerUnavailable) or isinstance(exc.__cause__, OSError):  # some channels wrap the OSError
            return True
        # Some transports count errors such as `KeyError` as connection errors.
        return isinstance(exc, self._connection.connection_errors) and not isinstance(exc, (LookupError, TypeError, ValueError))

    def _disconnect(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        self._declared.clear()
        if connection is not None:
            try:
                connection.collect()
            except Exception as exc:  # noqa: BLE001 - it is given up
                log.debug("publisher.not_closed", error=str(exc))


def capabilities_of(channel: Any) -> frozenset[Capability]:
    """The capabilities of a kombu channel class. It keeps messages only if it sends acknowledgements to its broker."""
    acknowledges = channel.basic_ack is not virtual.Channel.basic_ack or channel.QoS.ack is not virtual.QoS.ack
    found = {Capability.DEAD_LETTER_QUEUES, Capability.EXACT_DELAYS}
    return frozenset(found | ({Capability.KEPT_UNTIL_ACKNOWLEDGED} if acknowledges else set()))


def limits(transport: GenericTransport) -> list[str]:
    """Sentences for a worker's start that say what this broker does not guarantee."""
    kept = Capability.KEPT_UNTIL_ACKNOWLEDGED in transport.capabilities
    crash = "is delivered again by the broker, uncounted" if kept else "is lost: kombu has taken it off the broker"
    connection = transport.app.connection_for_write()
    default = getattr(connection.get_transport_cls().Channel, "default_visibility_timeout", None)
    seconds = (connection.transport_options or {}).get("visibility_timeout") or default
    again = f"a message that waits or runs for longer than visibility_timeout ({seconds} s) is delivered twice"
    return [
        *([again] if kept and seconds else []),
        f"what a worker holds when it is killed {crash}",
        "a crash between publishing and acknowledging repeats a message" if kept else "no crash repeats a message",
        "delayed messages are held in a worker's memory",
        "no outcome log: outcomes are the lines outcome.recorded of this log",
        "no commands for dead letters, delays and books: a dead_letter_handler consumes the dead letters",
    ]


def held_until(message: bytes, due_ms: int | None) -> bytes:
    """The message with this ETA, and without the mark that an ETA was served: the next worker holds it until then."""
    found = unserved(opened(message))
    return sealed({**found, "headers": {**found["headers"], "eta": None if due_ms is None else iso(due_ms)}})
