"""The holders: the workers with a lease, what each of them runs, and which messages it has fetched ahead. On Redis only.

A lease whose counter does not change belongs to a worker that died, or that cannot reach the broker. Another worker gives its
messages back when it has seen no change for the whole time of a lease. Until then the lease exists, but is not renewed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.leases import about_of

from ...brokers.redis.transport import redis_of
from ...brokers.redis.unacked import held_pages
from ...letters import Contents
from .running import running_of

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

    from ..metrics.metrics import Living
    from .running import Said

#: A living worker renews its lease at least this often (seconds).
RENEWED = 1.2


@dataclass(slots=True)
class Holder:
    """One worker: its name, its process, and when it took its lease.

    `held` is how many messages it holds; `messages` has the first of them (task id, task, queue). `said` is its answer to what it
    runs, None if it does not answer. `still` is for how many seconds its lease is known to be not renewed. `is_dead`: it does not
    answer, and `still` is at least as long as a lease lasts.
    """

    worker: str
    pid: int | None = None
    since_ms: int | None = None
    has_lease: bool = True
    still: float = 0.0
    is_dead: bool = False
    said: Said | None = None
    held: int = 0
    messages: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def is_renewed(self) -> bool:
        """Whether it lives, as far as is known."""
        return self.has_lease and (self.said is not None or self.still < RENEWED)


@dataclass(slots=True)
class Holders:
    """All of them, how many held messages were looked at, and how many of these came from each queue."""

    workers: list[Holder]
    looked_at: int
    is_cut: bool
    by_queue: Counter[str]


def holders(runtime: Runtime, *, most: int, named: int, living: Living | None = None) -> Holders:
    """Look at `most` held messages at the most, and name at most `named` of each worker. Raises what the broker's driver raises.

    With `living`, which knows the leases of earlier looks, each worker is asked what it runs; those tasks are not named again.
    """
    found = _leased(runtime, living)
    looked_at, is_cut, by_queue = 0, False, Counter[str]()
    for held in itertools.chain.from_iterable(page for _, page in held_pages(redis_of(runtime))):
        if looked_at >= most:
            is_cut = True
            break
        looked_at += 1
        name = held.owner or "(gone: its messages are given back)"
        holder = found.setdefault(held.token or name, Holder(name, has_lease=False))
        holder.held += 1
        by_queue[held.queue] += 1
        if len(holder.messages) < named:
            contents = Contents.of(held.raw)
            if holder.said is None or all(contents.task_id != each.task_id for each in holder.said.running):
                holder.messages.append((contents.task_id, contents.task, held.queue))
    return Holders(sorted(found.values(), key=lambda each: (each.worker, each.since_ms or 0)), looked_at, is_cut, by_queue)


def _leased(runtime: Runtime, living: Living | None) -> dict[str, Holder]:
    """The workers with a lease, by its token."""
    client, keys = redis_of(runtime).client, redis_of(runtime).keys
    leases: Any = client.hgetall(keys.leases)
    abouts: Any = client.hgetall(keys.owners)
    found: dict[str, Holder] = {}
    for token in leases:
        about = about_of(abouts.get(token))
        name = token.decode(errors="replace")
        found[name] = Holder(str(about.get("worker") or name), _number(about.get("pid")), _number(about.get("since")))
    if living is not None and found:
        living.still(leases)
        said = running_of(runtime.app, [each.worker for each in found.values()])
        if not found.keys() <= said.keys():
            leases = client.hgetall(keys.leases)  # workers that did not answer may have renewed their leases meanwhile
        still = living.still(leases)
        for name, holder in found.items():
            holder.said, holder.still = said.get(name), still.get(name.encode(), 0.0)
            holder.is_dead = not holder.is_renewed and holder.still >= living.lease
    return found


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
