"""The metrics of RabbitMQ: what can be had by passive declares, and so without a management plugin, and without a look.

Enters: the app and its broker. Leaves: how many messages are ready in each queue, each dead-letter queue, the delay store and the
outcome log, and how many consumers a queue has. What a worker holds, how old a letter is, and what is overdue is not to be seen so.
Cost: one question for each queue, and one for each of the delay store's 28 levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound

from redelivery.middleware.brokers.rabbitmq.names import BITS

from ...ports import Gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from kombu import Connection

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport


class AmqpGauges:
    """See `Gauges`."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport = transport

    def sample(
        self,
        queues: Collection[str],
        letter_queues: Mapping[str, str],
        living: Callable[[Mapping[bytes, bytes]], int],  # noqa: ARG002 - there are no leases
    ) -> Iterator[Gauge]:
        """As `Gauges.sample`; a queue that is not there has no sample."""
        transport = self._transport
        with transport.connect() as connection:
            for queue in queues:
                declared = _declared(connection, queue)
                if declared is not None:
                    yield Gauge.of("queue_messages", declared[0], queue=queue)
                    yield Gauge.of("queue_consumers", declared[1], queue=queue)
            for name, origin in letter_queues.items():
                declared = _declared(connection, name)
                if declared is not None:
                    yield Gauge.of("dead_letters", declared[0], dead_letter_queue=name, queue=origin)
            levels = [_declared(connection, transport.keys.level(bit)) for bit in _levels(connection, transport)]
            if levels:
                yield Gauge.of("delayed_messages", sum(declared[0] for declared in levels if declared is not None))
            log = _declared(connection, transport.keys.outcomes)
            if log is not None:
                yield Gauge.of("outcome_log_messages", log[0])


def _levels(connection: Connection, transport: AmqpTransport) -> range:
    """The levels of the delay store, which are made together; none before a worker has made them."""
    return range(BITS) if _declared(connection, transport.keys.level(0)) is not None else range(0)


def _declared(connection: Connection, queue: str) -> tuple[int, int] | None:
    """How many messages are ready in a queue, and how many consumers it has; None where there is none of this name."""
    try:
        answer: Any = connection.default_channel.queue_declare(queue, passive=True)
    except NotFound:
        return None
    return int(answer.message_count), int(answer.consumer_count)
