"""The transitions on Redis and Valkey: each is one script (`middleware/lua/`), called on a client of its own.

Enters: a tag and what is to become of its message. Leaves: an `Answer`. Nothing is ever half done: a script runs whole or, where
the server refuses it, not at all. Limits: an asynchronous replica that becomes the master may have lost what was answered last.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from redelivery.errors import BrokerError, BrokerUnavailable
from redelivery.middleware.broker_url import check_broker_url
from redelivery.middleware.keys import SEPARATOR, Keys, split_unacked
from redelivery.middleware.logs import log
from redelivery.middleware.replicas import ConfirmedRedis
from redelivery.middleware.scripts import Script
from redelivery.middleware.transports.base import Answer, Capability, Held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from celery import Celery
    from redis import ConnectionPool, Redis

    from redelivery.middleware.outcomes import Event
    from redelivery.middleware.pacing import Pace

__all__ = ["ACCEPTED", "SOCKET_TIMEOUT", "RedisTransport", "answer_of"]

#: The mark of a message that was acknowledged before its task ran (`acks_late=False`).
ACCEPTED = "accepted"
#: How long one call may take before it counts as not answered, in seconds; the outbox then asks again.
SOCKET_TIMEOUT = 5.0
#: Messages of one queue that a test may have waiting; more would keep a broker from others for too long.
MOST_ADVANCED = 10_000


class RedisTransport:
    """The transitions, on one client; safe to call from any thread."""

    #: All that any transport can do, but for what only a broker that gives messages back by itself needs.
    capabilities = frozenset(Capability) - {Capability.REDELIVERY_COUNTS}

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self._acknowledge = Script("acknowledge")
        self._defer = Script("defer")
        self._dead_letter = Script("dead_letter")
        self._start = Script("start")
        self._release = Script("release")
        self._promote = Script("promote")
        self._advance = Script("advance")
        self._cancel = Script("cancel")
        self._redrive = Script("redrive")
        self._purge = Script("purge")
        self._move = Script("move")
        self._reschedule = Script("reschedule")
        self._hand_back = Script("hand_back")
        self._renew = Script("renew")
        self._fence = Script("fence")
        self._lead = Script("lead")
        self._register = Script("register")
        self._held_keys = [keys.unacked, keys.unacked_index, keys.starts, keys.leases]

    @classmethod
    def of(cls, app: Celery) -> RedisTransport:
        """The transitions on the broker of this app, connected as its settings say (TLS, Sentinel, credentials, database, prefix).

        Raises `BrokerUnavailable` where nothing answers, `BrokerError` where the broker refuses or is no Redis,
        `ConfigurationError` where its address cannot be read.
        """
        check_broker_url(app)
        connection = app.connection_for_write()
        try:
            transport = connection.transport
            if getattr(transport, "driver_type", None) != "redis":
                msg = f"broker {connection.as_uri()} is no Redis: this version of redelivery needs a redis:// broker"
                raise BrokerError(msg)
            channel = connection.default_channel
        except (AuthenticationError, ResponseError) as exc:
            msg = f"broker {connection.as_uri()} refused the connection: {exc}"
            raise BrokerError(msg) from exc
        except KeyError as exc:
            msg = f"broker {exc} is no transport that kombu knows; is broker_url right? It looks like redis://host:6379/0"
            raise BrokerError(msg) from exc
        except (OperationalError, *connection.connection_errors, RedisError) as exc:
            msg = f"broker {connection.as_uri()} does not answer: {exc}; is it running, and is broker_url right?"
            raise BrokerUnavailable(msg) from exc
        install = getattr(app, "redelivery", None)
        wanted = 0 if install is None else install.settings.wait_replicas
        return cls(ConfirmedRedis(_patient(channel._get_pool()), wanted), Keys.of(channel))  # noqa: SLF001 - the app's own settings

    # transitions of a message that a worker holds

    def acknowledge(self, tag: str, event: Event | None) -> Answer:
        """End the message, and record `event`."""
        return self._take(self._acknowledge, [self.keys.outcomes], [tag, _token(tag)], event)

    def defer(
        self,
        tag: str,
        list_name: str,
        message: bytes,
        *,
        task_id: str,
        event: Event | None,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        first: bool = False,
        pace: Pace | None = None,
    ) -> Answer:
        """Move the message to the delay store for `delay_ms`, or until `due_ms`, by the server's clock.

        Where nothing is left to wait it goes straight back to its list: `first`, it is taken next; else behind all others. With
        `pace` it is due in the next free slot of its queue from then on.
        """
        keys = self.keys
        names = [
            keys.outcomes,
            keys.list(list_name),
            keys.destinations,
            keys.due(list_name),
            keys.waiting(list_name),
            keys.delayed_tasks,
        ]
        args = [
            tag,
            _token(tag),
            message,
            "" if delay_ms is None else delay_ms,
            "" if due_ms is None else due_ms,
            SEPARATOR.join((_encodable(task_id), uuid.uuid4().hex[:12])),
            list_name,
            SEPARATOR,
            keys.wake,
            "next" if first else "last",
            "" if pace is None else pace.gap,
            "" if pace is None or pace.latest_ms is None else pace.latest_ms,
        ]
        if pace is not None:
            names.append(keys.slots(pace.queue, pace.per_second))
        return self._take(self._defer, names, args, event)

    def dead_letter(
        self,
        tag: str,
        message: bytes,
        *,
        dead_letter_queue: str,
        queue: str,
        event: Event | None,
        must_exist: bool = False,
    ) -> Answer:
        """Move the message to `dead_letter_queue`, and record `event`; a queue that `must_exist` and does not changes nothing."""
        names = [self.keys.outcomes, self.keys.list(dead_letter_queue), self.keys.dead_letter_queues]
        if must_exist:
            names.append(self.keys.bindings(dead_letter_queue))
        return self._take(self._dead_letter, names, [tag, _token(tag), message, dead_letter_queue, queue], event)

    def start(self, tag: str) -> Answer:
        """Record that the message is about to run; `REFUSED` where it is no longer held: it must not run."""
        return answer_of(self._start(self.client, [self.keys.unacked, self.keys.starts], [tag, ""]))

    def accept(self, tag: str) -> Answer:
        """Record that the message counts as acknowledged from here on: it is held until its outcome, but never run again."""
        return answer_of(self._start(self.client, [self.keys.unacked, self.keys.starts], [tag, ACCEPTED]))

    def release(self, held: Sequence[Held]) -> int:
        """Put messages that were not run back to where they were taken from, as they were. Returns how many went back.

        Raises `ResponseError` where a list refused one, after the others have gone back.
        """
        if not held:
            return 0
        newest_first = sorted(held, key=lambda each: int(each.tag.rpartition(":")[2]), reverse=True)
        lists = [self.keys.list(each.list_name) for each in newest_first]
        names = [self.keys.unacked, self.keys.unacked_index, self.keys.starts, *lists]
        count, error = self._release(self.client, names, [part for each in newest_first for part in (each.tag, each.raw)])
        if error:
            raise ResponseError(_string(error))
        return int(count)

    def _take(self, script: Script, names: list[str], args: list[Any], event: Event | None) -> Answer:
        entry = [] if event is None else encoded(event)
        return self._ask(script, [*self._held_keys, *names], [*args, *entry])

    def _ask(self, script: Script, keys: list[str], args: list[Any]) -> Answer:
        return answer_of(script(self.client, keys, args))

    # the delay store and the dead letters

    def promote(self, limit: int) -> tuple[int, int, float | None]:
        """Move what is due, at most `limit` messages for each list.

        Returns how many moved, how many ids had no message, and the seconds until the next one is due (None: nothing waits).
        """
        lists = [_string(name) for name in self.client.zrange(self.keys.destinations, 0, -1)]
        names = [name for each in lists for name in (self.keys.due(each), self.keys.waiting(each), self.keys.list(each))]
        keys = [self.keys.destinations, self.keys.delayed_tasks, *names]
        moved, missing, next_ms, error = self._promote(self.client, keys, [limit, SEPARATOR, *lists])
        if error:
            log.error("delayed.refused", error=_string(error), why="its messages wait; mend or remove that list")
        return int(moved), int(missing), None if int(next_ms) < 0 else int(next_ms) / 1000

    def cancel(self, list_name: str, ident: str, event: Event) -> Answer:
        """Take one message out of the delay store for good, and record `event`; `ALREADY` where it no longer waits there.

        `ident` is its id in the store.
        """
        keys = self.keys
        names = [keys.destinations, keys.delayed_tasks, keys.due(list_name), keys.waiting(list_name), keys.outcomes]
        return answer_of(self._cancel(self.client, names, [ident, SEPARATOR, list_name, *encoded(event)]))

    def advance(self, ms: int, aged: Callable[[bytes], bytes]) -> int:
        """Move whatever waits `ms` milliseconds nearer to its due time: for tests, as if time had moved on. Returns how many moved.

        `aged` makes a message older. Raises `BrokerError` where more waits than a test can have put there.
        """
        lists = [_string(name) for name in self.client.zrange(self.keys.destinations, 0, -1)]
        names = [self.keys.destinations, *(key for each in lists for key in (self.keys.due(each), self.keys.waiting(each)))]
        older: list[Any] = []
        for number, each in enumerate(lists, 1):
            waiting: dict[Any, Any] = self.client.hgetall(self.keys.waiting(each))
            for ident, raw in waiting.items():
                older += (number, ident, aged(raw))
        moved = int(self._advance(self.client, names, [ms, MOST_ADVANCED, len(lists), *lists, *older]))
        if moved < 0:
            msg = f"more than {MOST_ADVANCED} messages wait for one queue: time is moved on by hand for tests only"
            raise BrokerError(msg)
        return moved

    def redrive(self, dead_letter_queue: str, letter: bytes, list_name: str, message: bytes, event: Event) -> Answer:
        """Move one dead letter back to its origin, and record it; `ALREADY` where it no longer lies there."""
        names = [self.keys.list(dead_letter_queue), self.keys.list(list_name), self.keys.outcomes]
        return answer_of(self._redrive(self.client, names, [letter, message, *encoded(event)]))

    def redrive_many(self, dead_letter_queue: str, moves: Sequence[tuple[bytes, str, bytes, Event]]) -> list[Answer | Exception]:
        """Move dead letters back, in one round trip; each is moved whole or not at all, by itself, and has its answer or its error.

        A move is what `redrive` takes behind the queue's name.
        """
        letters, outcomes = self.keys.list(dead_letter_queue), self.keys.outcomes
        return self._many(
            self._redrive,
            (
                ((letters, self.keys.list(list_name), outcomes), (letter, message, *encoded(event)))
                for letter, list_name, message, event in moves
            ),
        )

    def purge_many(
        self,
        dead_letter_queue: str,
        gone: Sequence[tuple[bytes, Event]],
        *,
        down_to: int | None = None,
    ) -> list[Answer | Exception]:
        """Remove dead letters for good, each with its event, in one round trip; each has its answer or its error.

        With `down_to`, none goes while the queue holds no more than so many.
        """
        names = (self.keys.list(dead_letter_queue), self.keys.outcomes)
        last = () if down_to is None else (down_to,)
        return self._many(self._purge, ((names, (letter, *encoded(event), *last)) for letter, event in gone))

    def move_many(
        self,
        dead_letter_queue: str,
        target: str,
        moves: Sequence[tuple[bytes, bytes, str, tuple[Event, Event]]],
    ) -> list[Answer | Exception]:
        """Move dead letters to another dead-letter queue, in one round trip; each has its answer or its error.

        A move is the letter, as it lies there, the letter as it is to lie in `target`, its origin queue, and its two events.
        """
        keys = self.keys
        names = (keys.list(dead_letter_queue), keys.list(target), keys.outcomes, keys.dead_letter_queues)
        return self._many(
            self._move,
            (
                (names, (letter, moved, target, queue, *(value for event in events for value in encoded(event))))
                for letter, moved, queue, events in moves
            ),
        )

    def _many(self, script: Script, calls: Iterable[tuple[Sequence[str], Sequence[Any]]]) -> list[Answer | Exception]:
        answers = script.many(self.client, calls)
        return [answer if isinstance(answer, Exception) else answer_of(answer) for answer in answers]

    def reschedule(self, list_name: str, ident: str, message: bytes, event: Event, *, due_ms: int | None) -> Answer:
        """Give a message in the delay store another due time (None: now); `ALREADY` where it no longer waits there."""
        keys = self.keys
        names = [keys.destinations, keys.due(list_name), keys.waiting(list_name), keys.outcomes]
        args = [ident, list_name, "" if due_ms is None else due_ms, message, keys.wake, *encoded(event)]
        return answer_of(self._reschedule(self.client, names, args))

    def hand_back(self, list_name: str, ident: str, message: bytes) -> Answer:
        """Move a message out of the delay store into its list, as `message`; `ALREADY` where it no longer waits there."""
        keys = self.keys
        names = [keys.destinations, keys.delayed_tasks, keys.due(list_name), keys.waiting(list_name), keys.list(list_name)]
        return answer_of(self._hand_back(self.client, names, [ident, SEPARATOR, list_name, message]))

    def keep_letters(self, token: str, seconds: float) -> bool:
        """Take or keep the lead among those that keep the dead letters, for this long."""
        return int(self._lead(self.client, [self.keys.letter_keeper], [token, int(seconds * 1000)])) > 0

    def watch_letters(self, token: str, seconds: float) -> bool:
        """Take or keep the lead among those that say where letters lie unread, for this long."""
        return int(self._lead(self.client, [self.keys.letter_watcher], [token, int(seconds * 1000)])) > 0

    def lead(self, token: str, seconds: float) -> bool:
        """Keep or take the lead among the dispatchers for this long."""
        return int(self._lead(self.client, [self.keys.dispatcher], [token, int(seconds * 1000)])) > 0

    # owners and leases

    def register(self, token: str, about: dict[str, Any]) -> None:
        """Open a lease for a new owner."""
        self._register(self.client, [self.keys.leases, self.keys.owners], [token, json.dumps(about)])

    def renew(self, token: str) -> bool:
        """Renew a lease; False where it is gone: the owner is fenced."""
        return int(self._renew(self.client, [self.keys.leases], [token])) > 0

    def fence(self, token: str, counter: bytes) -> bool:
        """End a lease whose counter did not move; False where it moved after all."""
        return int(self._fence(self.client, [self.keys.leases, self.keys.recovering], [token, counter])) > 0

    def unregister(self, token: str) -> None:
        """Forget an owner that holds nothing any more."""
        with self.client.pipeline() as pipe:
            for name in (self.keys.leases, self.keys.recovering, self.keys.owners):
                pipe.hdel(name, token)
            pipe.delete(self.keys.received(token))
            pipe.execute()

    def held_by(self, token: str) -> Iterator[Held]:
        """The messages that an owner holds, in no order, some perhaps twice; without blocking the server."""
        for tag, value in self.client.hscan_iter(self.keys.unacked, match=f"{token}:*", count=1000):
            raw, queue = split_unacked(value)
            yield Held(_string(tag), queue, self.keys.list_name(queue, priority_of(raw)), raw, 0)

    def started(self, tags: Sequence[str]) -> list[str | None]:
        """How each of these tags was recorded as started: `ACCEPTED`, or when (milliseconds), or not at all."""
        values: Any = self.client.hmget(self.keys.starts, list(tags)) if tags else []
        return [None if value is None else _string(value) for value in values]

    def extend(self, tags: Iterable[str], seconds: float) -> None:
        """Keep plain workers' sweeps away from these tags for this long, by the server's clock."""
        until = self.now_ms() / 1000 + seconds
        members = dict.fromkeys(tags, until)
        if members:
            self.client.zadd(self.keys.unacked_index, members, xx=True)

    def now_ms(self) -> int:
        """The server's time, milliseconds since the epoch."""
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def close(self) -> None:
        """Close the connections."""
        self.client.connection_pool.disconnect()


def encoded(event: Event) -> list[bytes]:
    """An event's values as bytes, whatever is in them."""
    return [str(value).encode("utf-8", "replace") for value in event.to_entry()]


def priority_of(raw: bytes) -> int:
    """The priority that a message was published with; 0 where it has none, or is none."""
    try:
        return int(json.loads(raw)["properties"]["priority"])  # as kombu reads it
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0


def clock_skew_ms(transport: RedisTransport) -> int:
    """How far this machine's clock is ahead of the server's, in milliseconds."""
    before = time.time()
    server = transport.now_ms()
    return round((before + time.time()) * 500) - server


def _patient(pool: ConnectionPool) -> ConnectionPool:
    """One try and one more at once: whoever must not lose a transition asks again later (see `outbox`)."""
    pool.connection_kwargs["retry"] = Retry(NoBackoff(), 1)
    if pool.connection_kwargs.get("socket_timeout") is None:
        pool.connection_kwargs["socket_timeout"] = SOCKET_TIMEOUT
    if pool.connection_kwargs.get("socket_connect_timeout") is None and "path" not in pool.connection_kwargs:
        pool.connection_kwargs["socket_connect_timeout"] = SOCKET_TIMEOUT
    return pool


def _token(tag: str) -> str:
    return tag.partition(":")[0]


def answer_of(value: Any) -> Answer:
    """What a script answered. Raises `ValueError` where it is none of its answers."""
    return Answer(_string(value))


def _string(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _encodable(value: str) -> str:
    return str(value).encode("utf-8", "replace").decode()
