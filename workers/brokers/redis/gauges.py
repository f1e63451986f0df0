"""The metrics of Redis: a few commands for each queue, in three round trips. The cost does not depend on the queues' length.

Only one message of each dead-letter queue is read, the oldest. The numbers are not read at the same instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from ...letters import Letter
from ...ports import Gauge
from .taken_keys import is_taken, warn_of_taken
from .transport import OnRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping


class RedisGauges(OnRedis):
    """Implements `Gauges` on Redis."""

    def sample(
        self, queues: Collection[str], letter_queues: Mapping[str, str], living: Callable[[Mapping[bytes, bytes]], int]
    ) -> Iterator[Gauge]:
        """Measure the origins of the dead-letter queues, too."""
        yield from self._messages(sorted({*queues, *letter_queues.values()} - letter_queues.keys()), letter_queues)
        yield from self._workers_and_log(living)

    def _messages(self, queues: Collection[str], letter_queues: Mapping[str, str]) -> Iterator[Gauge]:
        client, keys = self._client, self._keys
        destinations: Any = client.zrange(keys.destinations, 0, -1, withscores=True)
        next_due = {name.decode(errors="replace"): float(due_ms) for name, due_ms in destinations}
        now_ms = self._transport.now_ms()
        with client.pipeline(transaction=False) as pipe:
            for queue in queues:
                for name in keys.list_names(queue):
                    pipe.llen(keys.list(name))
            for name in next_due:
                pipe.zcard(keys.due(name))
            for name in letter_queues:
                pipe.llen(keys.list(name))
                pipe.lindex(keys.list(name), -1)
            answers = iter(pipe.execute(raise_on_error=False))
        for queue in queues:
            lengths = {keys.list(name): next(answers) for name in keys.list_names(queue)}
            taken = [key for key, length in lengths.items() if is_taken(length)]
            for key in taken:
                warn_of_taken(key)
            if not taken:
                yield Gauge.of("queue_messages", sum(map(_number, lengths.values())), queue=queue)
        yield from _delayed(((keys.queue_of(name), _number(next(answers)), due_ms) for name, due_ms in next_due.items()), now_ms)
        for name, origin in letter_queues.items():
            yield Gauge.of("dead_letters", _number(next(answers)), dead_letter_queue=name, queue=origin)
            oldest = next(answers)
            died_ms = None if oldest is None else Letter.of(oldest).died_ms
            if died_ms is not None:
                yield Gauge.of("oldest_dead_letter_age_seconds", _seconds(now_ms - died_ms), dead_letter_queue=name, queue=origin)

    def _workers_and_log(self, living: Callable[[Mapping[bytes, bytes]], int]) -> Iterator[Gauge]:
        client, keys = self._client, self._keys
        with client.pipeline(transaction=False) as pipe:
            pipe.hlen(keys.unacked)
            pipe.hgetall(keys.leases)
            pipe.exists(keys.dispatcher)
            pipe.memory_usage(keys.outcomes, samples=100)
            pipe.hget(keys.trimmed, "entries")
            pipe.hget(keys.exported, "at")
            pipe.xinfo_stream(keys.outcomes)
            answers: list[Any] = pipe.execute(raise_on_error=False)
        info: Any = answers.pop()
        if isinstance(info, ResponseError) and "no such key" in str(info):
            info = {"length": 0, "entries-added": 0}
        for answer in (*answers, info):
            if isinstance(answer, Exception):
                raise answer
        held, leases, leading, taken, lost, exported_ms = answers
        yield Gauge.of("held_messages", int(held))
        yield Gauge.of("workers", living(leases))
        yield Gauge.of("dispatchers", int(leading))
        yield Gauge.of("outcomes_recorded_total", int(info["entries-added"]))
        yield Gauge.of("outcome_log_events", int(info["length"]))
        yield Gauge.of("outcome_log_bytes", 0 if taken is None else int(taken))
        yield Gauge.of("outcome_log_lost_events", 0 if lost is None else int(lost))
        if exported_ms is not None:
            yield Gauge.of("outcome_log_exported_timestamp_seconds", int(exported_ms) / 1000)


def _number(answer: Any) -> int:
    """Return the number that the broker answered. Raises its error."""
    if isinstance(answer, Exception):
        raise answer
    return int(answer)


def _delayed(lists: Iterable[tuple[str, int, float]], now_ms: int) -> Iterator[Gauge]:
    """Return the gauges of the delay store. `lists` has the queue of each list, its number of messages, and the first due time."""
    waiting: dict[str, int] = {}
    overdue: dict[str, float] = {}
    for queue, count, due_ms in lists:
        waiting[queue] = waiting.get(queue, 0) + count
        overdue[queue] = max(overdue.get(queue, 0), _seconds(now_ms - due_ms))
    for queue in sorted(waiting):
        yield Gauge.of("delayed_messages", waiting[queue], queue=queue)
        yield Gauge.of("overdue_seconds", overdue[queue], queue=queue)


def _seconds(ms: float) -> float:
    """Return milliseconds as seconds; 0 if they are negative because a clock was set back."""
    return max(ms, 0) / 1000
