"""What is looked at before a worker takes its first message, and the one line that says what it will do.

Refuses, with `ConfigurationError`: policies that contradict themselves, and a dead-letter queue that nobody has made where it may
not be made by us. Every other broker discards in that case; we do not start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kombu

from redelivery.errors import BrokerError, ConfigurationError
from redelivery.middleware.destinations import objection
from redelivery.middleware.logs import log
from redelivery.middleware.own_strategy import WHY, own_strategies
from redelivery.middleware.transports import kind_of
from redelivery.middleware.transports.base import Capability
from redelivery.middleware.transports.fallback import KNOWN, is_known
from redelivery.settings import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery.worker.consumer import Consumer

    from redelivery.middleware.install import Redelivery
    from redelivery.settings import RedeliveryPolicy

__all__ = ["announce", "check_dead_letter_queues", "check_policies", "summary"]

#: What a worker's line says of a broker that cannot do it.
OF_A_WORKER = frozenset(Capability) - {Capability.REDELIVERY_COUNTS, Capability.LEASES}
_KNOWN = " and ".join(".".join(map(str, each)) for each in KNOWN)


def check_policies(install: Redelivery) -> None:
    """Build the policy of every task on every queue that the app consumes."""
    for queue in install.app.amqp.queues.consume_from:
        for task in install.app.tasks:
            install.policy_for(queue, task).dead_letter_queue_for(queue)


def check_dead_letter_queues(install: Redelivery) -> None:
    """Look for dead-letter queues whose names are taken, or that may not be made on the way; to observe, none is needed."""
    if not install.enforces:
        return
    for queue in install.app.amqp.queues.consume_from:
        for target in _targets(install, queue, lambda policy: policy.enabled):
            if (why := objection(install.transport, target)) is not None:
                msg = f"queue {queue!r}: dead-letter queue {target!r} {why}; name another with dead_letter_queue or expiry_queue"
                raise ConfigurationError(msg)
        for target in _required(install, queue):
            if not _has_queue(install, target):
                words = f"Queue({target!r}, Exchange({target!r}), routing_key={target!r})(channel).declare()"
                msg = (
                    f"queue {queue!r}: dead-letter queue {target!r} does not exist, and auto_create_dead_letter_resources is off; "
                    f"declare it (kombu: {words}), or let it be created"
                )
                raise ConfigurationError(msg)


def _has_queue(install: Redelivery, name: str) -> bool:
    transport: Any = install.transport
    if not install.has_leases:
        return bool(transport.has_queue(name))
    return bool(transport.client.exists(transport.keys.list(name), transport.keys.bindings(name)))


def _required(install: Redelivery, queue: str) -> list[str]:
    """Where the dead letters and the expired of this queue go, by the policies of all its tasks, and may not be made on the way."""
    return _targets(install, queue, lambda policy: policy.enabled and not policy.auto_create_dead_letter_resources)


def _targets(install: Redelivery, queue: str, which: Callable[[RedeliveryPolicy], bool] = lambda _: True) -> list[str]:
    """Where the dead letters and the expired of this queue go, by the policies of all its tasks."""
    policies = [install.policy_for(queue), *(install.policy_for(queue, task) for task in install.app.tasks)]
    targets = [
        find(queue) for policy in filter(which, policies) for find in (policy.dead_letter_queue_for, policy.expiry_queue_for)
    ]
    return sorted({target for target in targets if target is not None})


def warn_of_eviction(install: Redelivery) -> None:
    """Say where the server may throw messages away by itself: the only deaths on Redis that nobody records."""
    if not install.has_leases:
        return
    memory = install.transport.client.info("memory")
    policy = memory.get("maxmemory_policy", "noeviction")
    if memory.get("maxmemory") and policy != "noeviction":
        why = "a full server throws messages away, unrecorded: set maxmemory-policy noeviction"
        log.warning("broker.evicts", maxmemory_policy=policy, maxmemory=memory["maxmemory"], why=why)


#: What a queue's declaration may make the broker do by itself, past every policy here.
BYPASSES = ("x-dead-letter-exchange", "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-delivery-limit")


_DROPPED = "the broker throws messages away by these, unrecorded: take them out, and use max_time_to_live and the like"
_KEPT = "the broker ends messages by these itself: bring them into the books with `redelivery dlq import`, or use max_time_to_live"


_ENDS_OURS = "dead letters, delays or outcome events are ended by it: write its pattern so that it leaves these queues out"


def warn_of_bypasses(install: Redelivery) -> None:
    """Say where the queues' own declarations let RabbitMQ end messages by itself."""
    if kind_of(install.app) != "amqp":
        return
    queues = install.app.amqp.queues
    for name in queues.consume_from:
        queue = queues[name]
        said = {**(queue.queue_arguments or {}), **({"x-message-ttl": queue.message_ttl} if queue.message_ttl is not None else {})}
        said.update({"x-expires": queue.expires} if queue.expires is not None else {})
        said.update({"x-max-length": queue.max_length} if queue.max_length is not None else {})
        said.update({"x-max-length-bytes": queue.max_length_bytes} if queue.max_length_bytes is not None else {})
        found = [argument for argument in BYPASSES if argument in said]
        if found:
            why = _KEPT if BYPASSES[0] in found else _DROPPED
            log.warning("broker.bypasses", queue=name, arguments=",".join(found), why=why)


def warn_of_policies(install: Redelivery) -> None:
    """Say which of the broker's own policies end messages: in the app's queues, past every policy here, or in ours, for good."""
    url = install.settings.management_url
    if url is None or kind_of(install.app) != "amqp":
        return
    from redelivery.middleware.transports.amqp_names import BITS, AmqpNames  # noqa: PLC0415 - only where the broker is RabbitMQ
    from redelivery.middleware.transports.amqp_policies import ending_policies  # noqa: PLC0415 - as above

    consumed = list(install.app.amqp.queues.consume_from)
    names, letters = AmqpNames(), {target for queue in consumed for target in _targets(install, queue)}
    ours = {*letters, names.outcomes, *map(names.level, range(BITS))} - {*consumed}
    try:
        found = ending_policies(url, install.app.connection_for_write(), [*consumed, *ours])
    except BrokerError as exc:
        log.warning("broker.policies_unknown", error=str(exc), why="look with `rabbitmqctl list_policies`")
        return
    for policy in found:
        why = _ENDS_OURS if ours & {*policy.queues} else _KEPT if policy.definitions[0] == "dead-letter-exchange" else _DROPPED
        facts = {"queues": ",".join(policy.queues), "definitions": ",".join(policy.definitions)}
        log.warning("broker.policy_bypasses", policy=policy.name, **facts, why=why)


def warn_of_limits(install: Redelivery) -> None:
    """Say what cannot be promised on a broker of which nothing is known but that kombu speaks to it."""
    if kind_of(install.app) != "generic":
        return
    from redelivery.middleware.transports.generic import limits  # noqa: PLC0415 - only where the broker is such a one

    transport: Any = install.transport
    log.warning("broker.limits", transport=install.app.connection_for_write().transport_cls, limits="; ".join(limits(transport)))


def warn_of_strategies(install: Redelivery) -> None:
    """Say of which tasks no end will be seen."""
    found = {name: own for name, own in own_strategies(install.app).items() if install.is_enabled(name)}
    if found:
        log.warning("tasks.unobserved", tasks=",".join(f"{name} ({own})" for name, own in sorted(found.items())), why=WHY)


def announce(install: Redelivery, consumer: Consumer, *, is_ours: bool) -> None:
    """Say which broker, which guarantees, which policies, and where the dead letters go; `is_ours` is who receives."""
    queues = list(install.app.amqp.queues.consume_from)
    policies = {queue: install.policy_for(queue) for queue in queues}
    warn_of_eviction(install)
    warn_of_bypasses(install)
    warn_of_policies(install)
    warn_of_limits(install)
    warn_of_strategies(install)
    if install.enforces and install.has_leases and not is_known():
        why = f"known are {_KNOWN}; messages are received by kombu's own receive"
        log.warning("kombu.unknown", version=kombu.__version__, why=why)
    early = sorted(name for name, task in install.app.tasks.items() if not task.acks_late)
    log.info(
        "worker.started",
        worker=consumer.hostname,
        mode=install.settings.mode,
        broker=consumer.connection.as_uri(),
        guarantees=_guarantees(install, is_ours=is_ours),
        received_by="redelivery" if is_ours else "kombu",
        queues=",".join(queues),
        dead_letter_queues=",".join(policies[queue].dead_letter_queue_for(queue) or "none: discarded" for queue in queues),
        acknowledged_early=(",".join(early) or "none") if install.enforces else "as the app says",
        max_delivery_attempts=",".join(str(policy.max_delivery_attempts) for policy in policies.values()),
        policies="; ".join(f"{queue}: {summary(policy)}" for queue, policy in policies.items()),
        not_enabled=",".join(queue for queue, policy in policies.items() if not policy.enabled) or "none",
        broker_lacks=",".join(sorted(OF_A_WORKER - install.transport.capabilities)) or "nothing",
    )


def _guarantees(install: Redelivery, *, is_ours: bool) -> str:
    if not install.enforces:
        return "Celery's own: observed, nothing is changed"
    if not install.has_leases:
        return _without_leases(install.transport.capabilities)
    if not is_ours:
        return "each transition atomic; kombu's own receive may lose what a crash interrupts"
    return "at least once, each transition atomic"


def _without_leases(capabilities: frozenset[Capability]) -> str:
    if Capability.OUTCOME_LOG in capabilities:
        return "at least once: published with confirm, recorded, then acknowledged; a crash between two of these repeats a message"
    if Capability.KEPT_UNTIL_ACKNOWLEDGED in capabilities:
        return "at least once: published, then acknowledged; a crash between the two repeats a message"
    return "published, then acknowledged; what a worker holds when it is killed is lost"


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
