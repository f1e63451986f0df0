"""What `redelivery doctor` asks Redis: its memory, whether it writes to disk, its replicas, leases, and noted clocks.

It sends a fixed number of commands. Only `CONFIG GET` tells whether there are snapshots; if the user may not call it, this one fact
is not known.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from redelivery.middleware.brokers.redis.broker import eviction_of
from redelivery.middleware.brokers.redis.publishing.producer_clock import DAY_MS
from redelivery.middleware.brokers.redis.scripts import text_of

from ...ports import Condition, LogState, NotKnown
from .transport import OnRedis

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


_SNAPSHOTS = NotKnown(
    "whether the server writes snapshots", "its user may not ask for the setting (CONFIG GET)", "redis-cli config get save"
)


class RedisCheckup(OnRedis):
    """Implements `Checkup` on Redis."""

    def condition(self, queues: Sequence[str], letters: Collection[str], management_url: str | None) -> Condition:  # noqa: ARG002 - the port's
        memory: Any = self._client.info("memory")
        persistence: Any = self._client.info("persistence")
        replication: Any = self._client.info("replication")
        eviction, saves = eviction_of(memory), self._saves()
        keeps_log = bool(persistence.get("aof_enabled"))
        is_known = keeps_log or saves is not None
        return Condition(
            evicts="" if eviction is None else eviction[0],
            keeps=("log" if keeps_log else "snapshots" if saves else "nothing") if is_known else None,
            failing=tuple(_failing(persistence)),
            memory=(int(memory.get("used_memory") or 0), int(memory.get("maxmemory") or 0)),
            is_replica=replication.get("role") == "slave",
            replicas=int(replication.get("connected_slaves") or 0),
            not_known=() if is_known else (_SNAPSHOTS,),
        )

    def _saves(self) -> str | None:
        """The setting `save`; None if the user may not read it."""
        try:
            return str(self._client.config_get("save").get("save", ""))
        except ResponseError:
            return None

    def log_state(self) -> LogState:
        client, keys = self._client, self._keys
        with client.pipeline(transaction=False) as pipe:
            pipe.memory_usage(keys.outcomes, samples=100)
            pipe.hget(keys.trimmed, "entries")
            pipe.xrange(keys.outcomes, count=1)
            taken, lost, oldest = pipe.execute()
        at_ms = int(text_of(oldest[0][0]).partition("-")[0]) if oldest else None
        return LogState(oldest_ms=at_ms, bytes=int(taken or 0), lost=int(lost or 0))

    def leases(self) -> dict[str, str]:
        counters: Any = self._client.hgetall(self._keys.leases)
        return {text_of(token): text_of(counter) for token, counter in counters.items()}

    def consumers(self, queues: Collection[str]) -> None:  # noqa: ARG002 - the port's
        """Return None: Redis has only lists, and does not know which workers read them."""
        return

    def wrong_clocks(self) -> dict[str, int]:
        day = self._transport.now_ms() // DAY_MS
        found: dict[str, int] = {}
        for each in (day - 1, day):
            noted: Any = self._client.hgetall(self._keys.clocks(each))
            found |= {text_of(host): _ahead(note) for host, note in noted.items()}
        return {host: ahead for host, ahead in found.items() if ahead}


def _failing(persistence: Mapping[str, Any]) -> Iterator[str]:
    if persistence.get("rdb_last_bgsave_status", "ok") != "ok":
        yield "its last snapshot failed"
    if persistence.get("aof_enabled") and persistence.get("aof_last_write_status", "ok") != "ok":
        yield "its last write to the append-only file failed"
    if persistence.get("aof_enabled") and persistence.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield "its last rewriting of the append-only file failed"


def _ahead(note: bytes) -> int:
    """Return by how many milliseconds a clock was ahead; 0 if redelivery did not write the note."""
    try:
        return int(json.loads(note)["ahead_ms"])
    except (ValueError, LookupError, TypeError):
        return 0
