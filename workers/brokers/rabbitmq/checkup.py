"""What `redelivery doctor` asks RabbitMQ: whether it accepts publications, which rules end messages, and its oldest outcome event.

RabbitMQ reports an alarm only to a connection that publishes. So one empty message is published to an exclusive queue: either it is
delivered, or the broker reports that it is blocked. Only the management plugin reports the broker's policies.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import amqp

from redelivery.errors import BrokerError
from redelivery.middleware.brokers.rabbitmq.events import events_of
from redelivery.middleware.brokers.rabbitmq.peek import Look, counts_of
from redelivery.middleware.brokers.rabbitmq.policies import bypasses_of, bypassing_policies

from ...ports import Condition, Ending, LogState, NotKnown
from .outcome_log import body_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport

#: The maximum seconds until the broker delivers the empty message, or reports that it is blocked.
TIMEOUT = 5.0
_ALARMS = NotKnown("whether the broker has an alarm", "it did not answer a publication in time", "rabbitmq-diagnostics alarms")
_POLICIES = "whether the broker's own policies end messages"
_LIST = "rabbitmqctl list_policies"


class AmqpCheckup:
    """Implements `Checkup` on RabbitMQ."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport = transport

    def condition(self, queues: Sequence[str], letters: Collection[str], management_url: str | None) -> Condition:
        app, not_known = self._transport.app, []
        endings = [Ending("declaration", each.queue, (each.queue,), each.arguments, each.why) for each in bypasses_of(app, queues)]
        if management_url is None:
            not_known.append(NotKnown(_POLICIES, "AMQP does not report them", f"set management_url, or run: {_LIST}"))
        else:
            try:
                found = bypassing_policies(management_url, app, queues, letters, self._transport.keys)
                endings += [Ending("policy", policy.name, policy.queues, policy.definitions, why) for policy, why in found]
            except BrokerError as exc:
                not_known.append(NotKnown(_POLICIES, str(exc), f"correct management_url, or run: {_LIST}"))
        alarm = self._alarm()
        if alarm is None:
            not_known.append(_ALARMS)
        return Condition(alarm=alarm, endings=tuple(endings), not_known=tuple(not_known))

    def _alarm(self) -> str | None:
        """Return why the broker accepts no publications; empty if it accepts them, None if it does not answer."""
        connection = self._transport.connect()
        reasons: list[Any] = []
        delivered: list[Any] = []
        amqp_connection: Any = connection.connection
        amqp_connection.on_blocked = reasons.append
        try:
            channel = amqp_connection.channel()
            name = channel.queue_declare("", exclusive=True, auto_delete=True).queue
            channel.basic_consume(name, no_ack=True, callback=delivered.append)
            channel.basic_publish(amqp.Message(b""), "", name)
            deadline = time.monotonic() + TIMEOUT
            while not reasons and not delivered and (left := deadline - time.monotonic()) > 0:
                try:
                    amqp_connection.drain_events(timeout=left)
                except TimeoutError:
                    break
        finally:
            connection.collect(socket_timeout=1.0)  # a blocked broker does not answer a close
        return str(reasons[0]) or "an alarm" if reasons else "" if delivered else None

    def log_state(self) -> LogState:
        with self._transport.connect() as connection, Look(connection, self._transport.keys.outcomes, most=1, read=body_of) as look:
            found = next(iter(look), None)
            first = None if found is None else next(iter(events_of(found.raw)), None)
        return LogState(oldest_ms=None if first is None else first.at_ms)

    def leases(self) -> dict[str, str]:
        """Return no leases: the broker itself delivers a dead worker's messages again."""
        return {}

    def consumers(self, queues: Collection[str]) -> dict[str, int]:
        with self._transport.connect() as connection:
            return {name: counts[1] for name in queues if (counts := counts_of(connection, name)) is not None}

    def wrong_clocks(self) -> None:
        """Return None: RabbitMQ does not report its time, so a producer cannot compare its clock."""
        return
