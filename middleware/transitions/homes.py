"""Destinations: where a message may be sent, and the home of a dead letter.

A `Home` is a queue that a person or a handler has named, or the origin in a dead letter's header. Any client that can publish may
have written that header, so the origin is accepted only if one of these is true:

- the app declares the queue (`task_queues`, the queues that a worker consumes), or names it in `task_routes`, as the `queue` of a
  task, or without wildcards in the policies' tables;
- the dead-letter queue that holds the letter is named after the queue, as the policies name dead-letter queues;
- the last worker with redelivery that used this dead-letter queue consumed that queue (Redis).

Any other origin is refused with `EnvelopeError`, and so is a name that `settings.names` refuses, or that Redis uses for something
else. Exchange and routing key are used only if the app declares them for the queue; otherwise the letter goes directly there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.errors import ConfigurationError, EnvelopeError, InputError
from redelivery.settings import RedeliveryPolicy, names
from redelivery.settings.matching import AddressPattern

from ..messages.envelope import MAX_DEATHS
from ..policy.destinations import named_after
from ..ports import Capability

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery import Celery

    from ..messages.envelope import Envelope
    from ..ports import Transport

#: The most origins in the cache: a client may have written a different one into each letter.
MAX_REMEMBERED = 1000
NO_ORIGIN = "it names no origin queue"


@dataclass(frozen=True, slots=True)
class Home:
    """Where a dead letter goes: a queue, and the exchange and routing key that lead there, if the app declares them."""

    queue: str
    exchange: str = ""
    routing_key: str = ""

    @property
    def address(self) -> tuple[str, str]:
        """Exchange and routing key; by default those of the default exchange."""
        return (self.exchange, self.routing_key) if self.exchange else ("", self.queue)

    def __str__(self) -> str:
        return f"{self.queue} (exchange {self.exchange}, key {self.routing_key})" if self.exchange else self.queue


class Homes:
    """The homes of the dead letters in one dead-letter queue."""

    def __init__(self, transport: Transport, dead_letter_queue: str) -> None:
        self.transport = transport
        self.dead_letter_queue = dead_letter_queue
        self._app: Celery | None = transport.app
        self._named = frozenset(named_by(self._app)) if self._app is not None else frozenset()
        self._known: dict[str, str | None] = {}

    def of(self, envelope: Envelope) -> Home:
        """Where a dead letter came from. Raises `EnvelopeError`, whose text is the reason why it cannot go back there."""
        origin = envelope.origin
        queue = origin.get("queue")
        if not queue:
            raise EnvelopeError(NO_ORIGIN)
        if (why := self.objection_to(queue)) is not None:
            raise EnvelopeError(why)
        exchange, key = address_of(self._app, queue, str(origin.get("exchange") or ""), str(origin.get("routing_key") or ""))
        return Home(queue, exchange, key if exchange else "")

    def to(self, queue: str) -> Home:
        """The home that a person or a handler has named. Raises `EnvelopeError`."""
        if (why := objection(self.transport, queue)) is not None:
            msg = f"queue {queue!r} {why}"
            raise EnvelopeError(msg)
        return Home(queue)

    def in_words(self, home: Home) -> str:
        """The home in words: on Redis the queue alone, because messages go directly to it."""
        return home.queue if Capability.LEASES in self.transport.capabilities else str(home)

    def objection_to(self, queue: str) -> str | None:
        """Why a dead letter with this origin may not go back there; None if it may."""
        if queue not in self._known:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[queue] = self._find_objection(queue)
        return self._known[queue]

    def _find_objection(self, queue: str) -> str | None:
        why = names.objection(queue)
        if why is not None:
            return f"its origin {why}"
        if not (queue in self._named or self._is_named_after(queue) or self._is_recorded(queue)):
            return "its origin is not a queue of the app: declare it in task_queues, or redrive it elsewhere with --to"
        why = objection(self.transport, queue)
        return None if why is None else f"its origin {why}"

    def _is_named_after(self, queue: str) -> bool:
        """Whether the dead-letter queue is named after this queue, directly or through further dead-letter queues."""
        name = queue
        for _ in range(MAX_DEATHS):
            if queue not in self.dead_letter_queue or len(name) >= len(self.dead_letter_queue):
                return False
            name = named_after(name, self._policy_for(name))
            if name == self.dead_letter_queue:
                return True
        return False

    def _policy_for(self, queue: str) -> RedeliveryPolicy:
        runtime = getattr(self._app, "redelivery", None)
        policy: RedeliveryPolicy = RedeliveryPolicy() if runtime is None else runtime.policies.policy_for(queue)
        return policy

    def _is_recorded(self, queue: str) -> bool:
        registry = self.transport.registry
        return registry is not None and queue == registry.origin_of(self.dead_letter_queue)


def objection(transport: Transport, queue: str) -> str | None:
    """Why no message may be sent to a queue of this name; None if it may."""
    why = names.objection(queue)
    return transport.registry.objection_to(queue) if why is None and transport.registry is not None else why


def required(transport: Transport, queue: str) -> str:
    """Return the name. Raises `InputError` if no message may be sent to this queue."""
    if (why := objection(transport, queue)) is not None:
        msg = f"{queue!r} {why}: name a queue of the app"
        raise InputError(msg)
    return queue


def named_by(app: Celery) -> Iterator[str]:
    """Every queue that the app itself names."""
    yield from app.amqp.queues
    yield from _routed(app.conf.task_routes)
    yield from (str(queue) for task in app.tasks.values() if (queue := getattr(task, "queue", None)))
    runtime = getattr(app, "redelivery", None)
    for row in () if runtime is None else runtime.settings.rows:
        if "queues" in row.table and not {"*", "#"} & {*row.pattern.words}:
            yield row.pattern.text


def _routed(routes: Any) -> Iterator[str]:
    """The queues that `task_routes` names; a router that is a function is not called."""
    if isinstance(routes, (list, tuple)):
        for each in routes:
            if isinstance(each, (list, tuple)) and each and not isinstance(each[0], (list, tuple, dict)):
                yield from _queue_of(each[-1])  # a pattern and its route
            else:
                yield from _routed(each)
    elif hasattr(routes, "values"):
        for route in routes.values():
            yield from _queue_of(route)


def _queue_of(route: Any) -> Iterator[str]:
    queue = route.get("queue") if hasattr(route, "get") else route
    name = getattr(queue, "name", queue)
    if isinstance(name, str):
        yield name


def address_of(app: Celery | None, queue: str, exchange: str, routing_key: str) -> tuple[str, str]:
    """These exchange and routing key if the app declares them for this queue; otherwise those of the queue itself."""
    queues: Mapping[str, Any] = {} if app is None else app.amqp.queues
    if exchange and queue in queues and names.objection(routing_key or "-") is None:
        declared = queues[queue]
        ways = [(declared.exchange, declared.routing_key), *((each.exchange, each.routing_key) for each in declared.bindings or ())]
        if any(to.name == exchange and _leads(to.type, str(key or ""), routing_key) for to, key in ways if to is not None):
            return exchange, routing_key
    return "", queue


def _leads(kind: str, key: str, routing_key: str) -> bool:
    """Whether an exchange of this kind, with this binding key, delivers this routing key."""
    if kind == "topic":
        try:
            return AddressPattern(key).matches(routing_key)
        except ConfigurationError:
            return key == routing_key
    return kind in {"fanout", "headers"} or key == routing_key
