"""The holders: the workers with a lease, since when, and what each of them holds. On Redis alone.

A lease that was not renewed for its whole time belongs to a worker that died: its messages go back when another worker sees that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.leases import about_of

from ...brokers.redis.transport import redis_of
from ...brokers.redis.unacked import held_pages
from ...letters import Contents

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime


@dataclass(slots=True)
class Holder:
    """One worker: its name, its process, when it took its lease; how many messages it holds, and the first of them by task."""

    worker: str
    pid: int | None = None
    since_ms: int | None = None
    has_lease: bool = True
    held: int = 0
    messages: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass(slots=True)
class Holders:
    """All of them, how many held messages were looked at, and how many of these came from each queue."""

    workers: list[Holder]
    looked_at: int
    is_cut: bool
    by_queue: Counter[str]


def holders(runtime: Runtime, *, most: int, named: int) -> Holders:
    """Look at `most` held messages at the most, and name so many of each worker. Raises what the broker does."""
    client, keys = redis_of(runtime).client, redis_of(runtime).keys
    leases: Any = client.hkeys(keys.leases)
    abouts: Any = client.hgetall(keys.owners)
    found: dict[str, Holder] = {}
    for token in leases:
        about = about_of(abouts.get(token))
        name = str(about.get("worker") or token.decode(errors="replace"))
        found[name] = Holder(name, _number(about.get("pid")), _number(about.get("since")))
    looked_at, is_cut, by_queue = 0, False, Counter[str]()
    for _, page in held_pages(redis_of(runtime)):
        for held in page:
            name = held.owner or "(gone: its messages are given back)"
            holder = found.setdefault(name, Holder(name, has_lease=False))
            holder.held += 1
            by_queue[held.queue] += 1
            if len(holder.messages) < named:
                contents = Contents.of(held.raw)
                holder.messages.append((contents.task_id, contents.task, held.queue))
        looked_at += len(page)
        if looked_at >= most:
            is_cut = True
            break
    return Holders(sorted(found.values(), key=lambda each: each.worker), looked_at, is_cut, by_queue)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
