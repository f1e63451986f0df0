"""Events in the outcome log, written as the transitions write them, without a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.middleware.messages.events import ENTRY, Event, Outcome

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["KEYS", "record", "text"]

KEYS = Keys()


def record(client: Redis, count: int, *, first: int = 0, entry_id: str = "*", keys: Keys = KEYS, **fields: Any) -> list[str]:
    """Add `count` events of the tasks `task-<first>` and so on. Returns the event ids."""
    fields.setdefault("outcome", Outcome.SUCCEEDED)
    with client.pipeline(transaction=False) as pipe:
        for number in range(first, first + count):
            event = Event(**{"task_id": f"task-{number}", "task": "shop.charge", "queue": "orders", "attempt": 1, **fields})
            pipe.xadd(keys.outcomes, dict(zip(ENTRY, event.to_entry(), strict=True)), id=entry_id)
        return [text(added) for added in pipe.execute()]


def text(answer: Any) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer)
