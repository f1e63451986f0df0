"""Checks of the broker: does it delete messages, lose them at a restart, refuse them, or end them by its own rules?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.display import word
from redelivery.middleware.brokers.redis.broker import EVICTS

from .finding import Finding, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...ports import NotKnown
    from .seen import Seen

#: From this part of its memory on, a server is nearly full.
FULL = 0.9


def check_memory(seen: Seen) -> Iterator[Finding]:
    """Find a server that deletes messages, is nearly full, or accepts no publications."""
    condition = seen.condition
    if condition is None:
        return
    if condition.evicts:
        why = f"{EVICTS.partition(':')[0]} (redis.conf needs the line, too)"
        fix = "redis-cli config set maxmemory-policy noeviction"
        yield Finding("broker.evicts", "danger", f"maxmemory-policy is {condition.evicts}", why, fix)
    used, most = condition.memory or (0, 0)
    if most and used >= FULL * most:
        what = f"the server uses {used * 100 // most} % of its maxmemory"
        why = "a full server refuses publications, and with them your producers"
        yield Finding("broker.filling", "danger", what, why, f"redis-cli config set maxmemory {2 * most}")
    if condition.alarm:
        what = f"the broker takes no publications: {condition.alarm}"
        why = "producers wait, and workers cannot acknowledge messages: free the memory or the disk that the alarm names"
        yield Finding("broker.alarm", "danger", what, why, "rabbitmq-diagnostics alarms")


def check_persistence(seen: Seen) -> Iterator[Finding | NotKnown]:
    """Find a server that keeps nothing on its disk, or cannot write to it."""
    condition = seen.condition
    if condition is None:
        return
    yield from condition.not_known
    if condition.keeps == "nothing":
        what = "the server keeps nothing on its disk (appendonly no, save empty)"
        why = "a restart loses every message, dead letter and outcome (redis.conf needs the line, too)"
        fix = "redis-cli config set appendonly yes"
        yield Finding("broker.forgets", "danger", what, why, fix)
    for each in condition.failing:
        why = "a restart loses what came since, and the server may refuse writes (MISCONF): free space on its disk first"
        yield Finding("broker.save_failing", "danger", each, why, "redis-cli bgsave")


def check_replicas(seen: Seen) -> Iterator[Finding]:
    """Find a server that is a replica, or has fewer replicas than `wait_replicas`."""
    condition, wanted = seen.condition, seen.runtime.settings.wait_replicas
    if condition is None:
        return
    if condition.is_replica:
        why = "a replica takes no writes: nothing can be published or acknowledged"
        yield Finding("broker.replica", "danger", "broker_url names a replica", why, 'broker_url = "sentinel://…", or the master')
    elif condition.replicas is not None and condition.replicas < wanted:
        what = f"wait_replicas = {wanted}, and {condition.replicas} replicas are connected"
        why = "each publication and transition waits a second, and no replica confirms it: start them, or expect fewer"
        fix = f"wait_replicas = {condition.replicas}"
        yield Finding("broker.replicas_missing", "danger", what, why, fix)


def check_endings(seen: Seen) -> Iterator[Finding]:
    """Find policies of the broker and arguments of queues by which the broker itself ends messages."""
    vhost = str(seen.runtime.app.connection_for_write().virtual_host or "/")
    for each in () if seen.condition is None else seen.condition.endings:
        of = named(each.queues)
        if each.kind == "policy":
            what = f"the broker's policy {each.name!r} ends messages of {of} ({', '.join(each.by)})"
            yield Finding(
                "broker.policy_bypasses", "danger", what, each.why, f"rabbitmqctl clear_policy -p {word(vhost)} {word(each.name)}"
            )
        else:
            what = f"queue {of} is declared with {', '.join(each.by)}"
            fix = f"Queue({each.name!r}), and max_time_to_live in the settings"
            yield Finding("broker.bypasses", "danger", what, f"{each.why}; delete the queue and declare it again", fix)
