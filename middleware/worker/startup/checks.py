"""The checks before a worker takes its first message, and the line that announces what the worker will do.

A policy that contradicts itself, or a missing dead-letter queue that redelivery may not create, raises `ConfigurationError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from redelivery.errors import ConfigurationError
from redelivery.settings import UNLIMITED

from ...known import warn_unless_known
from ...logs import log
from ...ports import Capability
from ...transitions.homes import objection
from ..own_strategy import WHY, own_strategies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.worker.consumer import Consumer

    from redelivery.settings import RedeliveryPolicy

    from ...runtime import Runtime

#: The capabilities whose lack a worker's line reports.
OF_A_WORKER = frozenset(Capability) - {Capability.REDELIVERY_COUNTS, Capability.LEASES}
#: The consequence of an unchanged pool of Celery's.
WITHOUT = "if a child dies, the task that it has begun may begin twice, and the pool may have one child less for some seconds"


def check_policies(runtime: Runtime) -> None:
    """Build the policy of every task on every queue that the app consumes."""
    for queue in runtime.app.amqp.queues.consume_from:
        for task in runtime.app.tasks:
            runtime.policies.policy_for(queue, task).dead_letter_queue_for(queue)


def check_dead_letter_queues(runtime: Runtime) -> None:
    """Refuse a dead-letter queue that cannot take dead letters. Raises `ConfigurationError`."""
    for fault in dead_letter_queue_faults(runtime):
        raise ConfigurationError(str(fault))


def dead_letter_queue_faults(runtime: Runtime) -> Iterator[DeadLetterQueueFault]:
    """Find dead-letter queues whose names are taken, or that are missing and may not be created. `mode="observe"` needs none."""
    if not runtime.enforces:
        return
    for queue in runtime.app.amqp.queues.consume_from:
        for target in runtime.policies.targets_of(queue, lambda policy: policy.enabled):
            if (why := objection(runtime.transport, target)) is not None:
                yield DeadLetterQueueFault(queue, target, why, "name another with dead_letter_queue or expiry_queue", is_taken=True)
        for target in runtime.policies.targets_of(
            queue, lambda policy: policy.enabled and not policy.auto_create_dead_letter_resources
        ):
            if not runtime.transport.has_queue(target):
                words = f"Queue({target!r}, Exchange({target!r}), routing_key={target!r})(channel).declare()"
                why = "does not exist, and auto_create_dead_letter_resources is off"
                yield DeadLetterQueueFault(queue, target, why, f"declare it (kombu: {words}), or let it be created", is_taken=False)


class DeadLetterQueueFault(NamedTuple):
    """A dead-letter queue that cannot take the dead letters of a queue; `is_taken`: something else has its name."""

    queue: str
    dead_letter_queue: str
    why: str
    fix: str
    is_taken: bool

    def __str__(self) -> str:
        return f"queue {self.queue!r}: dead-letter queue {self.dead_letter_queue!r} {self.why}; {self.fix}"


def warn_of_strategies(runtime: Runtime) -> None:
    """Log the tasks whose end will not be seen."""
    found = {name: own for name, own in own_strategies(runtime.app).items() if runtime.policies.is_enabled(name)}
    if found:
        log.warning("tasks.unobserved", tasks=",".join(f"{name} ({own})" for name, own in sorted(found.items())), why=WHY)


def announce(runtime: Runtime, consumer: Consumer, *, is_ours: bool) -> None:
    """Log broker, guarantees, policies and dead-letter queues; `is_ours`: redelivery receives, not kombu."""
    queues = list(runtime.app.amqp.queues.consume_from)
    policies = {queue: runtime.policies.policy_for(queue) for queue in queues}
    letters = {target for queue in queues for target in runtime.policies.targets_of(queue)}
    runtime.transport.warn(queues, letters, runtime.settings.management_url)
    warn_of_strategies(runtime)
    if runtime.enforces:
        warn_unless_known("celery", WITHOUT)
        warn_unless_known("billiard", WITHOUT)
    early = sorted(name for name, task in runtime.app.tasks.items() if not task.acks_late)
    log.info(
        "worker.started",
        worker=consumer.hostname,
        mode=runtime.settings.mode,
        broker=consumer.connection.as_uri(),
        guarantees=_guarantees(runtime, is_ours=is_ours),
        received_by="redelivery" if is_ours else "kombu",
        queues=",".join(queues),
        dead_letter_queues=",".join(policies[queue].dead_letter_queue_for(queue) or "none: discarded" for queue in queues),
        acknowledged_early=(",".join(early) or "none") if runtime.enforces else "as the app says",
        max_delivery_attempts=",".join(str(policy.max_delivery_attempts) for policy in policies.values()),
        policies="; ".join(f"{queue}: {summary(policy)}" for queue, policy in policies.items()),
        not_enabled=",".join(queue for queue, policy in policies.items() if not policy.enabled) or "none",
        broker_lacks=",".join(sorted(OF_A_WORKER - runtime.transport.capabilities)) or "nothing",
    )


def _guarantees(runtime: Runtime, *, is_ours: bool) -> str:
    if not runtime.enforces:
        return "Celery's own: observed, nothing is changed"
    if not runtime.has_leases:
        return _without_leases(runtime.transport.capabilities)
    if not is_ours:
        return "each transition atomic; kombu's own receive may lose what a crash interrupts"
    return "at least once, each transition atomic"


def _without_leases(capabilities: frozenset[Capability]) -> str:
    if Capability.OUTCOME_LOG in capabilities:
        return "at least once: published with confirm, recorded, then acknowledged; a crash between two of these repeats a message"
    if Capability.KEPT_UNTIL_ACKNOWLEDGED in capabilities:
        return "at least once: published, then acknowledged; a crash between the two repeats a message"
    return "published, then acknowledged; messages of a killed worker are lost"


def summary(policy: RedeliveryPolicy) -> str:
    """A policy in a few words, for a line of the log or a table."""
    if not policy.enabled:
        return "not enabled"
    limit = "no limit" if policy.max_delivery_attempts == UNLIMITED else f"{policy.max_delivery_attempts} attempts"
    if policy.redeliveries_per_second is not None:
        limit = f"{limit}, {policy.redeliveries_per_second:g} redeliveries/s at most"
    if not policy.redelivery_delay:
        return f"{limit}, at once"
    return f"{limit}, {policy.redelivery_delay:g} s x {policy.redelivery_delay_multiplier:g} up to {policy.cap:g} s"
