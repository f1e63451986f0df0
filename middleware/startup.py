"""What is looked at before a worker takes its first message, and the one line that says what it will do.

Refuses, with `ConfigurationError`: policies that contradict themselves, and a dead-letter queue that nobody has made where it may
not be made by us. Every other broker discards in that case; we do not start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.errors import ConfigurationError
from redelivery.middleware.logs import log
from redelivery.settings import RedeliveryPolicy

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

    from redelivery.middleware.install import Redelivery

__all__ = ["announce", "check_dead_letter_queues", "check_policies"]

#: Settings that are read and checked, and that nothing acts on yet; whoever sets one is told.
NOT_ENFORCED = (
    "auto_delete_dead_letter_resources",
    "delivery_delay",
    "max_length",
    "max_time_to_live",
    "overflow",
    "respect_time_to_live",
)


def check_policies(install: Redelivery) -> None:
    """Build the policy of every task on every queue that the app consumes."""
    if install.settings.mode != "enforce":
        msg = f"mode {install.settings.mode!r} is not available in this version: leave `mode` out, or do not install Redelivery yet"
        raise ConfigurationError(msg)
    for queue in install.app.amqp.queues.consume_from:
        for task in install.app.tasks:
            install.policy_for(queue, task).dead_letter_queue_for(queue)


def check_dead_letter_queues(install: Redelivery) -> None:
    """Look for the dead-letter queues that may not be made on the way."""
    client, keys = install.transport.client, install.transport.keys
    for queue in install.app.amqp.queues.consume_from:
        policy = install.policy_for(queue)
        target = policy.dead_letter_queue_for(queue)
        if target is None or policy.auto_create_dead_letter_resources:
            continue
        if not client.exists(keys.list(target), keys.bindings(target)) and not client.hexists(keys.dead_letter_queues, target):
            msg = (
                f"queue {queue!r}: its dead-letter queue {target!r} does not exist, and auto_create_dead_letter_resources is off;"
                f" declare the queue {target!r} (kombu: Queue({target!r}).declare()), or let it be created"
            )
            raise ConfigurationError(msg)


def _warn_of_what_is_not_enforced(install: Redelivery) -> None:
    default = RedeliveryPolicy()
    for queue in install.app.amqp.queues.consume_from:
        policy = install.policy_for(queue)
        names = [name for name in NOT_ENFORCED if getattr(policy, name) != getattr(default, name)]
        if names:
            log.warning("setting.not_enforced", queue=queue, settings=",".join(names), why="this version reads it and does nothing")
    if install.settings.wait_replicas:
        log.warning("setting.not_enforced", queue="", settings="wait_replicas", why="this version reads it and does nothing")


def announce(install: Redelivery, consumer: Consumer) -> None:
    """Say which broker, which guarantees, which queues and where their dead letters go."""
    queues = list(install.app.amqp.queues.consume_from)
    _warn_of_what_is_not_enforced(install)
    log.info(
        "worker.started",
        worker=consumer.hostname,
        broker=consumer.connection.as_uri(),
        guarantees="at least once, each transition atomic",
        queues=",".join(queues),
        dead_letter_queues=",".join(
            install.policy_for(queue).dead_letter_queue_for(queue) or "none: discarded" for queue in queues
        ),
        acknowledged_early=",".join(sorted(name for name, task in install.app.tasks.items() if not task.acks_late)) or "none",
        max_delivery_attempts=",".join(str(install.policy_for(queue).max_delivery_attempts) for queue in queues),
    )
