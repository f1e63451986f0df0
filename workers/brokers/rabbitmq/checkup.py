"""What `redelivery doctor` asks RabbitMQ: whether it accepts publications, what ends messages there, and its oldest outcome event.

RabbitMQ reports an alarm only to a connection that publishes. So one empty message is published to an exclusive queue: it comes
back, or the broker reports that it is blocked. Only the management plugin reports the broker's policies; if no `management_url` is
set, or the plugin does not answer, they are not known.
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

#: Seconds that the broker may take to deliver the empty message, or to report that it is blocked.
TIMEOUT = 5.0
_ALARMS = NotKnown("whether the broker has an alarm", "it did not answer a publication in time", "rabbitmq-diagnostics alarms")
_POLICIES = "whether the broker's own policies end messages"
_LIST = "rabbitmqctl list_policies"


class AmqpCheckup:
    """See `Checkup`."""

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
        """Why the broker accepts no publications; empty if it accepts them, None if it does not answer."""
        connection = self._transport.connect()
        said: list[Any] = []
        came: list[Any] = []
        made: Any = connection.connection
        made.on_blocked = said.append
        try:
            channel = made.channel()
            name = channel.queue_declare("", exclusive=True, auto_delete=True).queue
            channel.basic_consume(name, no_ack=True, callback=came.append)
            channel.basic_publish(amqp.Message(b""), "", name)
            until = time.monotonic() + TIMEOUT
            while not said and not came and (left := until - time.monotonic()) > 0:
                try:
                    made.drain_events(timeout=left)
                except TimeoutError:
                    break
        finally:
            connection.collect(socket_timeout=1.0)  # a blocked broker does not answer a close
        return str(said[0]) or "an alarm" if said else "" if came else None

    def log_state(self) -> LogState:
        """As `Checkup.log_state`, by a look at the log's first message only."""
        with self._transport.connect() as connection, Look(connection, self._transport.keys.outcomes, most=1, read=body_of) as look:
            found = next(iter(look), None)
            first = None if found is None else next(iter(events_of(found.raw)), None)
        return LogState(oldest_ms=None if first is None else first.at_ms)

    def leases(self) -> dict[str, str]:
        """As `Checkup.leases`: there are none, because the broker itself delivers a dead worker's messages again."""
        return {}

    def consumers(self, queues: Collection[str]) -> dict[str, int]:
        with self._transport.connect() as connection:
            return {name: counts[1] for name in queues if (counts := counts_of(connection, name)) is not None}

    def wrong_clocks(self) -> None:
        """As `Checkup.wrong_clocks`: RabbitMQ does not report its time, so that a producer cannot compare its clock."""
        return
