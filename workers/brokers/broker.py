"""The features that each kind of broker offers to operations and duties. Only this module chooses by the kind of broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redelivery.errors import BrokerError

if TYPE_CHECKING:
    from redelivery.middleware.ports import Transport

    from ..ports import AuditStore, Checkup, DelayStore, Gauges, InventorySource, LetterStore, OutcomeLog, TaskSource
    from .redis.operations import RedisOperationStore


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's features."""

    delayed: DelayStore
    outcomes: OutcomeLog
    letters: LetterStore
    gauges: Gauges
    inventory: InventorySource
    tasks: TaskSource
    audit: AuditStore
    checkup: Checkup
    operations: RedisOperationStore | None = None


def broker_of(transport: Transport) -> Broker:
    """Return the features of this transport's broker. Raises `BrokerError` if it is neither Redis nor RabbitMQ."""
    # The modules of a broker are imported only if the app uses that broker.
    from redelivery.middleware.brokers.redis.transport import RedisTransport  # noqa: PLC0415 - as above

    if isinstance(transport, RedisTransport):
        from .redis.audit import RedisAudit  # noqa: PLC0415 - as above
        from .redis.checkup import RedisCheckup  # noqa: PLC0415 - as above
        from .redis.delay_store import RedisDelayStore  # noqa: PLC0415 - as above
        from .redis.gauges import RedisGauges  # noqa: PLC0415 - as above
        from .redis.inventory import RedisInventory  # noqa: PLC0415 - as above
        from .redis.letters import RedisLetterStore  # noqa: PLC0415 - as above
        from .redis.operations import RedisOperationStore  # noqa: PLC0415 - as above
        from .redis.outcome_log import RedisOutcomeLog  # noqa: PLC0415 - as above
        from .redis.task_life import RedisTasks  # noqa: PLC0415 - as above

        return Broker(
            delayed=RedisDelayStore(transport),
            outcomes=RedisOutcomeLog(transport),
            letters=RedisLetterStore(transport),
            gauges=RedisGauges(transport),
            inventory=RedisInventory(transport),
            tasks=RedisTasks(transport),
            operations=RedisOperationStore(transport),
            audit=RedisAudit(transport),
            checkup=RedisCheckup(transport),
        )
    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport  # noqa: PLC0415 - as above

    if isinstance(transport, AmqpTransport):
        from .rabbitmq.audit import AmqpAudit  # noqa: PLC0415 - as above
        from .rabbitmq.checkup import AmqpCheckup  # noqa: PLC0415 - as above
        from .rabbitmq.delay_store import AmqpDelayStore  # noqa: PLC0415 - as above
        from .rabbitmq.inventory import AmqpInventory  # noqa: PLC0415 - as above
        from .rabbitmq.letters import AmqpLetterStore  # noqa: PLC0415 - as above
        from .rabbitmq.metrics import AmqpGauges  # noqa: PLC0415 - as above
        from .rabbitmq.outcome_log import AmqpOutcomeLog  # noqa: PLC0415 - as above
        from .rabbitmq.task_life import AmqpTasks  # noqa: PLC0415 - as above

        return Broker(
            delayed=AmqpDelayStore(transport),
            outcomes=AmqpOutcomeLog(transport),
            letters=AmqpLetterStore(transport),
            gauges=AmqpGauges(transport),
            inventory=AmqpInventory(transport),
            tasks=AmqpTasks(transport),
            audit=AmqpAudit(transport),
            checkup=AmqpCheckup(transport),
        )
    msg = "this broker is neither Redis nor RabbitMQ, and nothing on it can be listed"
    raise BrokerError(msg)
