"""The metrics of RabbitMQ, from passive declares: no management plugin is needed, and no message is read.

They are the ready messages of each queue, each dead-letter queue, the delay store and the outcome log, and the consumers of each
queue. Messages that a worker holds, the age of dead letters and overdue messages are not known. Cost: one request for each queue,
and for each of the delay store's 28 levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.middleware.brokers.rabbitmq.names import BITS
from redelivery.middleware.brokers.rabbitmq.peek import counts_of, depth_of

from ...ports import Gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport


class AmqpGauges:
    """Implements `Gauges` on RabbitMQ."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport = transport

    def sample(
        self,
        queues: Collection[str],
        letter_queues: Mapping[str, str],
        living: Callable[[Mapping[bytes, bytes]], int],  # noqa: ARG002 - there are no leases
    ) -> Iterator[Gauge]:
        transport = self._transport
        with transport.asking() as connection:
            for queue in queues:
                declared = counts_of(connection, queue)
                if declared is not None:
                    yield Gauge.of("queue_messages", declared[0], queue=queue)
                    yield Gauge.of("queue_consumers", declared[1], queue=queue)
            for name, origin in letter_queues.items():
                depth = depth_of(connection, name)
                if depth is not None:
                    yield Gauge.of("dead_letters", depth, dead_letter_queue=name, queue=origin)
            if counts_of(connection, transport.keys.level(0)) is not None:  # all levels are declared together
                yield Gauge.of("delayed_messages", sum(depth_of(connection, transport.keys.level(bit)) or 0 for bit in range(BITS)))
            log = depth_of(connection, transport.keys.outcomes)
            if log is not None:
                yield Gauge.of("outcome_log_messages", log)
