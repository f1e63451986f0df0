"""The outcome log without an exporter: does it stay below its cap while millions of events are recorded?"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from benchmarks.figures import less
from benchmarks.sides import side
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.middleware.brokers.redis.scripts import encoded
from redelivery.middleware.brokers.redis.transport import RedisTransport
from redelivery.middleware.messages.events import ENTRY, Event, Outcome
from redelivery.workers.duties.bounds.log_bounds import LogKeeper

if TYPE_CHECKING:
    from benchmarks.figures import Figure

__all__ = ["log_cap"]

CHUNK = 10_000


def log_cap(name: str, *, tasks: int, cap: int) -> dict[str, Figure]:
    """Record two events for each task while the log keeper runs: the largest size of the stream, relative to the cap."""
    with side(name) as here:
        client, keys = here.server.client, Keys()
        keeper = LogKeeper(RedisTransport(here.server.client, keys), cap)
        keeper.start()
        peak = 0
        for _ in range(2 * tasks // CHUNK):
            task_id = str(uuid.uuid4())
            values = [
                encoded(
                    Event(task_id=task_id, outcome=each, task="shop.charge", queue="orders", attempt=1, delivery=1, worker="w@host")
                )
                for each in (Outcome.PUBLISHED, Outcome.SUCCEEDED)
            ]
            with client.pipeline(transaction=False) as pipe:
                for at in range(CHUNK):
                    pipe.xadd(keys.outcomes, dict(zip(ENTRY, values[at % 2], strict=True)))
                pipe.execute()
            peak = max(
                peak, client.memory_usage(keys.outcomes, samples=0) if peak > cap / 2 else client.memory_usage(keys.outcomes)
            )
        keeper.stop()
        kept = client.xlen(keys.outcomes)
        return {
            "peak_of_cap": less(peak / cap, "of the cap"),
            "peak": less(peak / 1e6, "MB"),
            "event": less(peak / max(kept, 1), "bytes/event"),
            "broker": less(client.info("memory")["used_memory"] / 1e6, "MB"),
        }
