"""Dead letters: what lies in the dead-letter queues, and why it died.

Enters: the broker, and the app's settings, which say what dead-letter queues there may be. Leaves: queues with their counts, and
letters, a page or one by one. Nothing is changed. Refuses, with `InputError`, the name of a queue that is no dead-letter queue:
what waits in an ordinary queue is alive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.errors import InputError
from redelivery.middleware.transports.base import Capability
from redelivery.workers.contents import Letter, may_be
from redelivery.workers.letter_list import letters_at
from redelivery.workers.pages import list_pages
from redelivery.workers.redis_transport import redis_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from redelivery.middleware.runtime import Runtime
    from redelivery.middleware.transports.redis import RedisTransport

__all__ = ["DeadLetterQueue", "depth", "found", "known", "newest", "required", "summaries"]

#: Letters whose reasons stand for all of a queue's.
SAMPLE = 200


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """One dead-letter queue. `reasons` counts those of its `sampled` newest letters, the most frequent first."""

    name: str
    origin: str
    letters: int
    oldest_ms: int | None = None
    newest_ms: int | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    sampled: int = 0


def known(install: Runtime) -> dict[str, str]:
    """Every dead-letter queue with its origin: those that were used, and those of the queues that this app consumes."""
    transport = redis_of(install)
    names: dict[str, str] = {}
    for queue in install.app.amqp.queues:
        target = install.policies.policy_for(queue).dead_letter_queue_for(queue)
        if target is not None:
            names[target] = queue
    if Capability.BROWSE_LETTERS_UNMARKED in transport.capabilities:  # RabbitMQ has no place to note which were used
        used: Any = transport.client.hgetall(transport.keys.dead_letter_queues)
        names.update({name.decode(errors="replace"): origin.decode(errors="replace") for name, origin in used.items()})
    return dict(sorted(names.items()))


def required(install: Runtime, name: str) -> str:
    """The name again, where there is such a dead-letter queue. Raises `InputError`, which lists those that there are."""
    names = known(install)
    if name in names:
        return name
    there = f"there are: {', '.join(names)}" if names else "nothing has died yet, and no queue of the app keeps letters"
    msg = f"there is no dead-letter queue {name!r}; {there}"
    raise InputError(msg)


def summaries(install: Runtime) -> list[DeadLetterQueue]:
    """All dead-letter queues, counted; their times and reasons come from a bounded number of letters."""
    return [_summary(redis_of(install), name, origin) for name, origin in known(install).items()]


def _summary(transport: RedisTransport, name: str, origin: str) -> DeadLetterQueue:
    if Capability.BROWSE_LETTERS_UNMARKED not in transport.capabilities:
        return DeadLetterQueue(name, origin, depth(transport, name))
    key = transport.keys.list(name)
    with transport.client.pipeline(transaction=False) as pipe:
        pipe.llen(key)
        pipe.lrange(key, 0, SAMPLE - 1)
        pipe.lindex(key, -1)
        count, sample, oldest = pipe.execute()
    if not sample or oldest is None:
        return DeadLetterQueue(name, origin, int(count))
    letters = [Letter.of(raw) for raw in sample]
    reasons = Counter(letter.reason or "unknown" for letter in letters)
    return DeadLetterQueue(
        name,
        origin,
        letters=int(count),
        oldest_ms=Letter.of(oldest).died_ms,
        newest_ms=letters[0].died_ms,
        reasons=dict(reasons.most_common()),
        sampled=len(letters),
    )


def depth(transport: RedisTransport, name: str) -> int:
    """How many letters there are; none is looked at."""
    if Capability.BROWSE_LETTERS_UNMARKED in transport.capabilities:
        return int(transport.client.llen(transport.keys.list(name)))
    from redelivery.workers.amqp_letters import AmqpDesk  # noqa: PLC0415 - only where the broker is RabbitMQ

    other: Any = transport
    return AmqpDesk.of(other).depth(name) or 0


def newest(transport: RedisTransport, name: str, limit: int) -> list[Letter]:
    """The `limit` newest letters, the newest first."""
    with letters_at(transport, name) as letters:
        return [Letter.of(raw) for raw in letters.newest(limit)]


def found(transport: RedisTransport, name: str, task_ids: Collection[str]) -> Iterator[Letter]:
    """The letters of these tasks, the newest first; reads the whole queue, in pages."""
    if Capability.BROWSE_LETTERS_UNMARKED not in transport.capabilities:
        yield from _found_in_order(transport, name, task_ids)
        return
    seen = set()
    for _, page in list_pages(transport.client, transport.keys.list(name)):
        for raw in page:
            if not may_be(raw, task_ids) or raw in seen:
                continue
            letter = Letter.of(raw)
            if letter.task_id in task_ids:
                seen.add(raw)
                yield letter


def _found_in_order(transport: RedisTransport, name: str, task_ids: Collection[str]) -> Iterator[Letter]:
    """As `found`, where a queue is read from its oldest letter on."""
    with letters_at(transport, name) as letters:
        read = (Letter.of(raw) for page in letters.pages() for raw in page if may_be(raw, task_ids))
        chosen = [letter for letter in read if letter.task_id in task_ids]
    yield from reversed(chosen)
