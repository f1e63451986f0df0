"""The workers with a lease, the tasks that each runs, and the messages that it has prefetched. Only on Redis.

A lease that is not renewed belongs to a worker that died, or that cannot reach the broker. Another worker gives its messages back
when the lease was not renewed for its whole time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redelivery.middleware.messages.envelope import json_mapping

from ...brokers.redis.transport import redis_of
from ...brokers.redis.unacked import held_pages
from ...letters import Contents
from .running import running_of

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

    from ..metrics.metrics import Living
    from .running import Said

#: A worker whose lease was not renewed for these seconds may be dead.
RENEWED = 1.2


@dataclass(slots=True)
class Holder:
    """One worker: its name, its process, and when it took its lease.

    - `held`: how many messages it holds; `messages`: the first of them (task id, task, queue).
    - `said`: its answer about the tasks that it runs; None if it does not answer.
    - `still`: for how many seconds its lease was seen not renewed.
    - `is_dead`: it does not answer, and its lease was not renewed for the whole time of a lease.
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
        """Whether the worker seems to live."""
        return self.has_lease and (self.said is not None or self.still < RENEWED)


@dataclass(slots=True)
class Holders:
    """The workers, how many held messages were read, and how many of these came from each queue."""

    workers: list[Holder]
    looked_at: int
    is_cut: bool
    by_queue: Counter[str]


def holders(runtime: Runtime, *, most: int, named: int, living: Living | None = None) -> Holders:
    """Read at most `most` held messages, and name at most `named` for each worker. Raises the errors of the broker's driver.

    With `living`, which has the leases of earlier calls, each worker is asked for its running tasks, which are not named again.
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
    client, keys = redis_of(runtime).client, redis_of(runtime).keys
    leases: Any = client.hgetall(keys.leases)
    abouts: Any = client.hgetall(keys.owners)
    found: dict[str, Holder] = {}
    for token in leases:
        about = json_mapping(abouts.get(token))
        name = token.decode(errors="replace")
        found[name] = Holder(str(about.get("worker") or name), _number(about.get("pid")), _number(about.get("since")))
    if living is not None and found:
        living.still(leases)
        said = running_of(runtime.app, [each.worker for each in found.values()])
        if not found.keys() <= said.keys():
            leases = client.hgetall(keys.leases)  # a worker that did not answer may have renewed its lease meanwhile
        still = living.still(leases)
        for name, holder in found.items():
            holder.said, holder.still = said.get(name), still.get(name.encode(), 0.0)
            holder.is_dead = not holder.is_renewed and holder.still >= living.lease
    return found


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
