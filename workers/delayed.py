"""The delay store, as an operator sees it: which messages wait for their time, and until when.

Enters: the broker. Leaves: totals for each list, and messages in the order of their due times. Nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.middleware.keys import SEPARATOR
from redelivery.middleware.transports.base import Capability
from redelivery.workers.contents import Contents

if TYPE_CHECKING:
    from redelivery.middleware.transports.redis import RedisTransport
    from redelivery.workers.amqp_letters import AmqpDesk

__all__ = ["Delayed", "lists", "of_task", "page_of", "soonest", "totals"]

#: Messages of one task that are looked up: a task has one, or as many as it was published with the same id.
MOST_OF_TASK = 1000


@dataclass(frozen=True, slots=True)
class Delayed:
    """One message that waits. `list_name` is where it goes when it is due (`due_ms`, by the server's clock).

    `ident` is its id in the store.
    """

    contents: Contents
    list_name: str
    queue: str
    due_ms: int
    ident: str = ""

    def to_row(self) -> dict[str, Any]:
        """What a listing shows."""
        return {
            "task_id": self.contents.task_id,
            "task": self.contents.task,
            "generation": self.contents.envelope.generation,
            "queue": self.queue,
            "list": self.list_name,
            "due_ms": self.due_ms,
        }


def totals(transport: RedisTransport) -> dict[str, int]:
    """How many messages wait for each queue; queues without one are left out."""
    if (desk := _desk(transport)) is not None:
        from redelivery.workers import amqp_delayed  # noqa: PLC0415 - only where the broker is RabbitMQ

        return amqp_delayed.totals(desk)
    keys, names = transport.keys, lists(transport)
    counts: dict[str, int] = {}
    with transport.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.zcard(keys.due(name))
        for name, count in zip(names, pipe.execute(), strict=True):
            counts[keys.queue_of(name)] = counts.get(keys.queue_of(name), 0) + int(count)
    return {queue: count for queue, count in sorted(counts.items()) if count}


def soonest(transport: RedisTransport, limit: int, queue: str | None = None) -> list[Delayed]:
    """The `limit` messages that are due first, of one queue or of all; costs that much for each list."""
    if (desk := _desk(transport)) is not None:
        from redelivery.workers import amqp_delayed  # noqa: PLC0415 - only where the broker is RabbitMQ

        return amqp_delayed.soonest(desk, limit, queue)
    found = []
    for name in lists(transport):
        if queue is None or transport.keys.queue_of(name) == queue:
            due: Any = transport.client.zrange(transport.keys.due(name), 0, limit - 1, withscores=True)
            found += _read(transport, name, due)
    return sorted(found, key=lambda each: each.due_ms)[:limit]


def lists(transport: RedisTransport) -> list[str]:
    """The lists for which anything waits."""
    names: Any = transport.client.zrange(transport.keys.destinations, 0, -1)
    return [name.decode() for name in names]


def page_of(transport: RedisTransport, list_name: str, start: int, count: int) -> tuple[int, list[Delayed]]:
    """`count` messages that wait for one list from the `start`-th on, the first to become due first; how many ids there were."""
    due: Any = transport.client.zrange(transport.keys.due(list_name), start, start + count - 1, withscores=True)
    return len(due), _read(transport, list_name, due)


def of_task(transport: RedisTransport, task_id: str) -> list[Delayed]:
    """The waiting messages of one task, found by the index where there is one."""
    if (desk := _desk(transport)) is not None:
        from redelivery.workers import amqp_delayed  # noqa: PLC0415 - only where the broker is RabbitMQ

        return amqp_delayed.of_task(desk, task_id)
    begin = (task_id + SEPARATOR).encode("utf-8", "replace")
    members: Any = transport.client.zrangebylex(transport.keys.delayed_tasks, b"[" + begin, b"(" + begin + b"\xff", 0, MOST_OF_TASK)
    found = []
    for member in members:
        unique, _, name = member[len(begin) :].partition(SEPARATOR.encode())  # a priority's list has the separator in its name
        ident = begin + unique
        score = transport.client.zscore(transport.keys.due(name.decode()), ident)
        if score is not None:
            found += _read(transport, name.decode(), [(ident, score)])
    return found


def _desk(transport: Any) -> AmqpDesk | None:
    """The desk, where the broker is RabbitMQ."""
    if Capability.LEASES in transport.capabilities:
        return None
    from redelivery.workers.amqp_letters import AmqpDesk  # noqa: PLC0415 - only where the broker is RabbitMQ

    return AmqpDesk.of(transport)


def _read(transport: RedisTransport, name: str, due: list[tuple[bytes, float]]) -> list[Delayed]:
    """The messages of these ids; one that has left meanwhile is left out."""
    if not due:
        return []
    raws: Any = transport.client.hmget(transport.keys.waiting(name), [ident for ident, _ in due])
    queue = transport.keys.queue_of(name)
    return [
        Delayed(Contents.of(raw), name, queue, round(score), ident.decode())
        for (ident, score), raw in zip(due, raws, strict=True)
        if raw is not None
    ]
