"""The model's broker: a real server, the model's calls to it, and all its content, read in one step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import Celery

from redelivery import Redelivery
from redelivery.middleware.brokers.redis.keys import split_unacked, unacked_suffix
from redelivery.middleware.brokers.redis.publishing.bounds import evict_oldest, evicted, publish_within
from redelivery.middleware.brokers.redis.scripts import Script, encoded
from redelivery.middleware.messages.envelope import ANNOUNCED
from redelivery.middleware.messages.events import Event, Outcome, Reason, entries
from redelivery.middleware.policy.resolver import Bounds
from redelivery.workers.brokers.redis.transport import redis_of
from tests.faults.model.books import LISTS, MAX_ATTEMPTS, MAX_LENGTH
from tests.support.desk import task_message

if TYPE_CHECKING:
    from redelivery.middleware.brokers.redis.broker import RedisBroker
    from redelivery.middleware.brokers.redis.publishing.bounds import Eviction
    from tests.faults.model.books import Message
    from tests.support.servers import Server

__all__ = ["A_SLOT_AN_HOUR", "Broker", "Seen", "event_of"]

LETTERS = ("DLQ.orders", "DLQ.bounded", "DLQ.away")
#: A retry budget of one redelivery in an hour.
A_SLOT_AN_HOUR = 1 / 3600
#: An hour after each attempt, without jitter.
POLICY = {
    "max_delivery_attempts": MAX_ATTEMPTS,
    "redelivery_delay": 3600,
    "max_redelivery_delay": 3600,
    "redelivery_delay_multiplier": 1,
    "redelivery_collision_avoidance_factor": 0,
}


@dataclass(frozen=True)
class Seen:
    """The content of the broker: task ids by list (the oldest first), by tag, and by list and due time; and its own key lists."""

    lists: dict[str, list[str]]
    held: dict[str, str]
    waiting: dict[str, tuple[str, int]]
    idents: dict[str, str]
    events: list[tuple[str, str, str]]
    leases: dict[str, int]
    recovering: set[str]
    index: set[str]
    starts: set[str]
    tasks: set[str]
    destinations: dict[str, int]
    slots: dict[str, list[tuple[int, int]]]


class Broker:
    """A server only for the model, empty at its start."""

    def __init__(self, server: Server) -> None:
        self.app = Celery("model", broker=server.url, set_as_current=False)
        self.install = Redelivery(self.app, {"queues": {"#": POLICY}})
        self.transport: RedisBroker = redis_of(self.install)
        self.client: Any = self.transport.client
        self.keys = self.transport.keys
        self.client.flushall()
        self.began_ms = self.transport.now_ms()
        self._publish, self._receive = Script("publish"), Script("receive")

    def publish(self, message: Message, priority: int) -> None:
        """As one of our producers does."""
        raw = _published(message, priority, announced=True)
        names = [self.keys.outcomes, message.list_name]
        self._publish(self.client, names, [json.dumps(raw), "", *encoded(event_of(message, Outcome.PUBLISHED))])

    def push(self, message: Message, priority: int) -> None:
        """As a plain producer does."""
        self.client.lpush(message.list_name, json.dumps(_published(message, priority, announced=False)))

    def publish_within(self, message: Message, priority: int, *, refuses: bool, is_dated: bool) -> None:
        """As one of our producers does to a queue with bounds. Raises `QueueFull`."""
        publish_within(
            self.client,
            self.keys,
            self.install,
            Bounds(is_dated, MAX_LENGTH, refuses=refuses),
            message=_published(message, priority, announced=True),
            event=event_of(message, Outcome.PUBLISHED),
            queue=message.queue,
            list_name=message.list_name,
            expires="",
        )

    def evict(self, queue: str, most: int) -> int:
        """Evict, as the keeper of the queue does; returns how many."""
        known: tuple[int, bytes] | None = None
        count = 0
        while True:
            letter = None if known is None else self._letter_of(queue, known[1])
            state, at, raw = evict_oldest(self.client, self.keys, queue, most=most, known=known, eviction=letter)
            count += state == "done"
            if state == "within" or not raw:
                return count
            known = at, raw

    def evict_wrongly(self, queue: str, place: int, raw: bytes) -> str:
        """Ask for the eviction of a message that is not the oldest; returns the answer."""
        known = (5 + place, raw)
        return evict_oldest(self.client, self.keys, queue, most=0, known=known, eviction=self._letter_of(queue, raw))[0]

    def _letter_of(self, queue: str, raw: bytes) -> Eviction:
        now = self.transport.now_ms()
        return evicted(self.install, raw, queue, Reason.MAX_LENGTH, now_ms=now, detail="too long")

    def receive(
        self, token: str, number: int, *, budget: int, turn: int, queues: tuple[str, ...], room: int
    ) -> tuple[str, dict[str, bytes]]:
        """As the worker's channel does; the state, and the messages by tag."""
        keys = self.keys
        fixed = [keys.unacked, keys.unacked_index, keys.received(token), keys.leases, keys.woken(token)]
        fixed += [*map(keys.watch, queues), *map(keys.idle, queues)]
        lists = [keys.list(keys.list_name(queue, step)) for step in keys.priority_steps for queue in queues]
        args = [token, number, budget, room, len(queues), -1, 0, *map(unacked_suffix, queues), turn]
        state, _, _, _, *batch = self._receive(self.client, [*fixed, *lists], args)
        raws = [raw if int(index) else split_unacked(raw)[0] for index, raw in zip(batch[1::3], batch[2::3], strict=True)]
        return state.decode(), {tag.decode(): raw for tag, raw in zip(batch[::3], raws, strict=True)}

    def look(self) -> Seen:
        """Read everything at one moment."""
        keys = self.keys
        names = [*LISTS["orders"], *LISTS["bounded"], *LETTERS]
        with self.client.pipeline() as pipe:
            for name in names:
                pipe.lrange(name, 0, -1)
            for name in LISTS["orders"] + LISTS["bounded"]:
                pipe.hgetall(keys.waiting(name))
                pipe.zrange(keys.due(name), 0, -1, withscores=True)
            for name in (keys.unacked, keys.leases, keys.recovering, keys.starts):
                pipe.hgetall(name)
            for name in (keys.unacked_index, keys.delayed_tasks, keys.destinations):
                pipe.zrange(name, 0, -1, withscores=True)
            for queue in LISTS:
                pipe.zrange(keys.slots(queue, A_SLOT_AN_HOUR), 0, -1, withscores=True)
            pipe.xrange(keys.outcomes)
            found = pipe.execute()
        lists = {name: [_id(raw) for raw in reversed(found.pop(0))] for name in names}
        waiting, idents = {}, {}
        for name in LISTS["orders"] + LISTS["bounded"]:
            raws, dues = found.pop(0), dict(found.pop(0))
            assert raws.keys() == dues.keys()
            waiting.update({_id(raw): (name, int(dues[ident])) for ident, raw in raws.items()})
            idents.update({_id(raw): ident.decode() for ident, raw in raws.items()})
        unacked, leases, recovering, starts, index, tasks, destinations, *slots, log = found
        return Seen(
            lists=lists,
            held={tag.decode(): _id(split_unacked(value)[0]) for tag, value in unacked.items()},
            waiting=waiting,
            idents=idents,
            events=[(each.task_id, str(each.outcome), str(each.reason)) for each in entries(log)],
            leases={token.decode(): int(counter) for token, counter in leases.items()},
            recovering={token.decode() for token in recovering},
            index={tag.decode() for tag, _ in index},
            starts={tag.decode() for tag in starts},
            tasks={member.decode() for member, _ in tasks},
            destinations={name.decode(): int(score) for name, score in destinations},
            slots={queue: [(int(begins), int(ends)) for begins, ends in each] for queue, each in zip(LISTS, slots, strict=True)},
        )

    def raw_of(self, list_name: str, task_id: str) -> bytes:
        """The bytes of a message that lies in this list."""
        found: list[bytes] = [raw for raw in self.client.lrange(list_name, 0, -1) if _id(raw) == task_id]
        return found[0]


def event_of(message: Message, outcome: Outcome, reason: str = "") -> Event:
    """What is recorded of a step."""
    return Event(task_id=message.task_id, outcome=outcome, reason=reason, queue=message.queue, generation=message.generation)


def _published(message: Message, priority: int, *, announced: bool) -> dict[str, Any]:
    marks: dict[str, Any] = {ANNOUNCED: 1} if announced else {}
    return task_message(message.task_id, "model.task", priority=priority, **marks)


def _id(raw: bytes) -> str:
    return str(json.loads(raw)["headers"]["id"])
