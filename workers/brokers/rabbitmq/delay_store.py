"""The delay store on RabbitMQ, for operators: the levels of the native delayed delivery.

Each level is a queue for one bit of the delay. A message waits in the levels of its delay, from the highest down. They are read in
that order, so a message that moves on meanwhile is seen at least once. Reading holds the messages for a moment, so they may leave
their level that much later, never earlier. Due times come from the messages' headers, because a level does not report them.

Limits: if the connection breaks during a change, or the command dies, the old message may stay and the new one may be there, too:
no journal is kept. Due times are whole seconds, rounded up. At most `MAX_HELD` messages of each level are seen, and a search reads
all levels. `glance` reads at most `GLANCED` messages, from the lowest levels, which are due first; a message that moves down
meanwhile may be missed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import amqp
from amqp.exceptions import AMQPError

from redelivery.errors import BrokerUnavailable
from redelivery.middleware.brokers.rabbitmq.delays import waiting
from redelivery.middleware.brokers.rabbitmq.names import BITS, address
from redelivery.middleware.brokers.rabbitmq.peek import MAX_HELD, Look, depth_of
from redelivery.middleware.ports import Answer

from ...letters import Contents
from ...ports import Delayed, Glance
from .letters import UNCONFIRMED, carry_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kombu import Connection

    from redelivery.middleware.brokers.rabbitmq.names import AmqpNames
    from redelivery.middleware.brokers.rabbitmq.peek import Found
    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport
    from redelivery.middleware.messages.events import Event

#: Characters of a routing key before the address: a digit and a point for each bit.
BEFORE_ADDRESS = 2 * BITS
#: The maximum number of messages that `glance` reads: about half a second.
GLANCED = 500
#: The maximum seconds until the broker confirms a message.
TIMEOUT = 30.0
#: The error if it is not known whether the change was carried out and the old message removed.
NOT_SURE = (
    "the broker did not answer: the message {what}, and may wait as before, too: "
    "`redelivery task show {task_id}` says where it is, before you run this again"
)


class AmqpDelayStore:
    """Implements `DelayStore` on RabbitMQ."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport, self._names = transport, transport.keys

    def glance(self, limit: int, parts: int, queue: str | None = None, within_ms: int | None = None) -> Glance:
        every, unseen = self._read_some()
        found, now_ms = _sorted(every, queue), self._transport.now_ms()
        until_ms = now_ms + within_ms if within_ms is not None else max(found[-1].due_ms if found else 0, now_ms + 1)
        course, later = [0] * parts, 0
        for each in found:
            if each.due_ms > until_ms:
                later += 1
            else:
                course[max(-(-(each.due_ms - now_ms) * parts // (until_ms - now_ms)) - 1, 0)] += 1
        return Glance(_totals(every), found[:limit], course, until_ms, later, unseen)

    def totals(self) -> dict[str, int]:
        return _totals(self._each_once())

    def soonest(self, limit: int, queue: str | None = None) -> list[Delayed]:
        return _sorted(self._each_once(), queue)[:limit]

    def pages(self, queue: str | None = None) -> Iterator[list[Delayed]]:
        """Yield one page. Its messages are given back to the broker before it is returned."""
        yield [each for each in self._each_once() if queue is None or each.queue == queue]

    def of_task(self, task_id: str) -> list[Delayed]:
        return [each for each in self._each_once() if each.contents.task_id == task_id]

    def ids_like(self, given: str, most: int) -> list[str]:
        return sorted({each.contents.task_id for each in self.like(given)})[:most]

    def like(self, given: str) -> list[Delayed]:
        """The delayed messages of all tasks whose ids begin with `given`."""
        return [each for each in self._each_once() if each.contents.task_id.startswith(given)]

    def cancel(self, list_name: str, ident: str, event: Event) -> Answer:  # noqa: ARG002 - the id has its level
        return self._carry_out(ident, event)

    def reschedule(self, list_name: str, ident: str, message: bytes, event: Event, *, due_ms: int | None) -> Answer:
        waits = None if due_ms is None else waiting(self._names, list_name, message, due_ms - self._transport.now_ms())
        if waits is None:
            return self._carry_out(ident, event, message, end_of(self._names, list_name))
        return self._carry_out(ident, event, waits.message, waits.target)

    def walk(self, connection: Connection) -> Iterator[Delayed]:
        """All delayed messages, in no order. A message may come twice."""
        for bit in self._levels(connection):
            yield from self._look(connection, bit, MAX_HELD)

    def _levels(self, connection: Connection) -> dict[int, int]:
        """The levels that have messages, from the highest down, with their counts."""
        depths = {bit: depth_of(connection, self._names.level(bit)) or 0 for bit in reversed(range(BITS))}
        return {bit: depth for bit, depth in depths.items() if depth}

    def _look(self, connection: Connection, bit: int, most: int) -> Iterator[Delayed]:
        names = {address(queue): queue for queue in self._transport.app.amqp.queues}
        with Look(connection, self._names.level(bit), most=most) as look:
            for found in look:
                goes_to = found.routing_key[BEFORE_ADDRESS:]
                contents = Contents.of(found.raw)
                queue = names.get(goes_to, goes_to)
                yield Delayed(contents, queue, queue, _due_ms(contents), f"{bit}:{_digest(found.raw)}")

    def _read_some(self) -> tuple[list[Delayed], int]:
        """Return at most `GLANCED` delayed messages, and how many others there are."""
        with self._transport.connect() as connection:
            levels = self._levels(connection)
            total = sum(levels.values())
            if total <= GLANCED:
                return _once(each for bit in levels for each in self._look(connection, bit, MAX_HELD)), 0
            found: list[Delayed] = []
            for bit in reversed(levels):
                found += self._look(connection, bit, GLANCED - len(found))
                if len(found) >= GLANCED:
                    break
        seen = _once(found)
        return seen, max(total - len(seen), 0)

    def _each_once(self) -> list[Delayed]:
        with self._transport.connect() as connection:
            return _once(self.walk(connection))

    def _carry_out(self, ident: str, event: Event, message: bytes | None = None, target: tuple[str, str] = ("", "")) -> Answer:
        """Remove one message from its level, or move it to `target`. Returns `ALREADY` if the message no longer waits."""
        bit, _, digest = ident.partition(":")
        with self._transport.connect() as connection:
            _require_publications(connection)
            for level in reversed(range(int(bit) + 1)):
                if not depth_of(connection, self._names.level(level)):
                    continue
                with Look(connection, self._names.level(level)) as look:
                    for found in look:
                        if _digest(found.raw) != digest:
                            continue
                        return self._replace(look, found, event, message, target)
        return Answer.ALREADY

    def _replace(self, look: Look, found: Found, event: Event, message: bytes | None, target: tuple[str, str]) -> Answer:
        """Publish and record the change, then remove the old message. Raises `BrokerUnavailable` if it may be there, too."""
        try:
            answer = carry_out(self._transport, event, message, target)
            if answer is Answer.DONE:
                look.take(found)
                look.settle()
        except (OSError, AMQPError, BrokerUnavailable):
            answer = Answer.UNSURE
        if answer is Answer.UNSURE:
            what = "may be recorded as cancelled" if message is None else "may have been moved"
            raise BrokerUnavailable(NOT_SURE.format(what=what, task_id=event.task_id))
        return answer


def _require_publications(connection: Connection) -> None:
    """Publish a message that no queue gets. Raises `BrokerUnavailable` if the broker has an alarm.

    During an alarm, RabbitMQ carries out a publication only after the alarm: when the message has long been back in its level.
    """
    try:
        connection.connection.channel().basic_publish_confirm(amqp.Message(b"."), confirm_timeout=TIMEOUT)
    except TimeoutError as exc:
        connection.collect(socket_timeout=1.0)  # a blocked broker does not answer a close
        raise BrokerUnavailable(UNCONFIRMED) from exc


def _once(every: Iterable[Delayed]) -> list[Delayed]:
    return list({each.contents.raw: each for each in every}.values())


def _totals(every: Iterable[Delayed]) -> dict[str, int]:
    return dict(sorted(Counter(each.queue for each in every).items()))


def _sorted(every: Iterable[Delayed], queue: str | None) -> list[Delayed]:
    return sorted((each for each in every if queue is None or each.queue == queue), key=lambda each: each.due_ms)


def end_of(names: AmqpNames, queue: str) -> tuple[str, str]:
    """Return the exchange and the key that send a due message to this queue only."""
    return names.delivery_exchange, "0." * BITS + address(queue)


def _due_ms(contents: Contents) -> int:
    """Return the due time in the message's header; 0 if there is none."""
    try:
        eta = datetime.fromisoformat(str(contents.headers.get("eta")))
        return round((eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


def _digest(raw: bytes) -> str:
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()
