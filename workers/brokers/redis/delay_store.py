"""The delay store on Redis, for operators. Each list has a sorted set of due times and a hash of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.redis.keys import SEPARATOR
from redelivery.middleware.brokers.redis.stores import Under
from redelivery.middleware.ports import Answer

from ...letters import Contents
from ...ports import Delayed, Glance, Halted
from .transport import OnRedis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redelivery.middleware.brokers.redis.transport import RedisTransport
    from redelivery.middleware.messages.events import Event

    from ...ports import Claim

#: Messages that are read in one round trip.
PAGE = 250
#: The maximum number of delayed messages of one task. A task has several if it was published several times with the same id.
MAX_OF_TASK = 1000


class RedisDelayStore(OnRedis):
    """Implements `DelayStore` on Redis. Each change is one script, which moves the message and records the event.

    Under the claim of an operation, cancelled messages are counted, and `Halted` is raised if it may not continue.
    """

    def __init__(self, transport: RedisTransport, claim: Claim | None = None) -> None:
        super().__init__(transport)
        self._claim = claim

    def glance(self, limit: int, parts: int, queue: str | None = None, within_ms: int | None = None) -> Glance:
        names, now_ms = self._lists_of(queue), self._transport.now_ms()
        keys = [self._keys.due(name) for name in names]
        until_ms = now_ms + within_ms if within_ms is not None else max(self._last_due(keys), now_ms + 1)
        edges = [now_ms + (until_ms - now_ms) * at // parts for at in range(parts + 1)]
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                for at in range(parts):
                    pipe.zcount(key, f"({edges[at]}" if at else "-inf", edges[at + 1])
                pipe.zcount(key, f"({until_ms}", "+inf")
            counts: list[int] = pipe.execute()
        *course, later = [sum(counts[at :: parts + 1]) for at in range(parts + 1)]
        return Glance(self.totals(), self._soonest(names, limit), course, until_ms, later)

    def _last_due(self, keys: Sequence[str]) -> int:
        """The latest due time in these lists, in ms; 0 if they are empty."""
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.zrange(key, -1, -1, withscores=True)
            answers: list[list[tuple[bytes, float]]] = pipe.execute()
        return max((round(score) for last in answers for _, score in last), default=0)

    def totals(self) -> dict[str, int]:
        names = self.lists()
        counts: dict[str, int] = {}
        with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.zcard(self._keys.due(name))
            for name, count in zip(names, pipe.execute(), strict=True):
                queue = self._keys.queue_of(name)
                counts[queue] = counts.get(queue, 0) + int(count)
        return {queue: count for queue, count in sorted(counts.items()) if count}

    def soonest(self, limit: int, queue: str | None = None) -> list[Delayed]:
        return self._soonest(self._lists_of(queue), limit)

    def _soonest(self, names: Sequence[str], limit: int) -> list[Delayed]:
        with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.zrange(self._keys.due(name), 0, limit - 1, withscores=True)
            answers: list[list[tuple[bytes, float]]] = pipe.execute()
        due = [(score, name, ident) for name, page in zip(names, answers, strict=True) for ident, score in page]
        chosen: dict[str, list[tuple[bytes, float]]] = {}
        for score, name, ident in sorted(due)[:limit]:
            chosen.setdefault(name, []).append((ident, score))
        return sorted((each for name, some in chosen.items() for each in self._read(name, some)), key=lambda each: each.due_ms)

    def pages(self, queue: str | None = None) -> Iterator[list[Delayed]]:
        """Read by due times, so that no message is missed if others leave meanwhile."""
        for name in self._lists_of(queue):
            after, seen = "-inf", set[bytes]()
            while True:
                due: Any = self._client.zrangebyscore(self._keys.due(name), after, "+inf", 0, PAGE + len(seen), withscores=True)
                new = [(ident, score) for ident, score in due if ident not in seen]
                if not new:
                    break
                yield self._read(name, new)
                last = new[-1][1]
                seen = {ident for ident, score in due if score == last}
                after = repr(last)

    def of_task(self, task_id: str) -> list[Delayed]:
        begin = (task_id + SEPARATOR).encode("utf-8", "replace")
        members: Any = self._client.zrangebylex(self._keys.delayed_tasks, b"[" + begin, b"(" + begin + b"\xff", 0, MAX_OF_TASK)
        found = []
        for member in members:
            unique, _, name = member[len(begin) :].partition(SEPARATOR.encode())  # a priority's list has the separator in its name
            ident = begin + unique
            score = self._client.zscore(self._keys.due(name.decode()), ident)
            if score is not None:
                found += self._read(name.decode(), [(ident, score)])
        return found

    def ids_like(self, given: str, most: int) -> list[str]:
        """Send one command for each id, because the index is sorted by task id."""
        begin, found = given.encode("utf-8", "replace"), list[str]()
        after = b"[" + begin
        while len(found) < most:
            members: Any = self._client.zrangebylex(self._keys.delayed_tasks, after, b"(" + begin + b"\xff", 0, 1)
            if not members:
                break
            task_id, separator, _ = members[0].partition(SEPARATOR.encode())
            found.append(task_id.decode("utf-8", "replace"))
            after = b"[" + task_id + separator + b"\xff"
        return found

    def cancel(self, list_name: str, ident: str, event: Event) -> Answer:
        under = None if self._claim is None else Under(self._keys.operation(self._claim.operation_id), None, self._claim.token)
        answer = self._transport.stores.cancel(list_name, ident, event, under)
        if answer is Answer.REFUSED:
            raise Halted
        return answer

    def reschedule(self, list_name: str, ident: str, message: bytes, event: Event, *, due_ms: int | None) -> Answer:
        return self._transport.stores.reschedule(list_name, ident, message, event, due_ms=due_ms)

    def lists(self) -> list[str]:
        """The lists for which messages are delayed."""
        names: Any = self._client.zrange(self._keys.destinations, 0, -1)
        return [name.decode() for name in names]

    def _lists_of(self, queue: str | None) -> list[str]:
        """The lists of one queue, one for each priority; None: all lists."""
        return [each for each in self.lists() if queue is None or self._keys.queue_of(each) == queue]

    def page_of(self, list_name: str, start: int, count: int) -> tuple[int, list[Delayed]]:
        """Return the number of ids from the `start`-th on, at most `count`, and their messages by due time."""
        due: Any = self._client.zrange(self._keys.due(list_name), start, start + count - 1, withscores=True)
        return len(due), self._read(list_name, due)

    def _read(self, name: str, due: list[tuple[bytes, float]]) -> list[Delayed]:
        """The messages with these ids, except messages that have left meanwhile."""
        if not due:
            return []
        raws: Any = self._client.hmget(self._keys.waiting(name), [ident for ident, _ in due])
        queue = self._keys.queue_of(name)
        return [
            Delayed(Contents.of(raw), name, queue, round(score), ident.decode())
            for (ident, score), raw in zip(due, raws, strict=True)
            if raw is not None
        ]
